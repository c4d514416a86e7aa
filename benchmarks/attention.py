"""Every attention mechanism over lengths, at a fixed number of tokens: time, memory, and how LISA compares."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from benchmarks import measure
from benchmarks.measure import Record, TimeLimitError, in_fresh_process, peak_of_call, status_of
from benchmarks.options import add_list, add_machine, add_number, set_up_device
from benchmarks.report import Panel, Report, Table, by_length, compared, lines, megabytes, milliseconds, spread
from benchmarks.rows import LISA_NAIVE, LISA_ONE_PRODUCT, LISA_ROWS, NAIVE, ROWS, SDPA, Problem, check_rows
from recbole_lisa.errors import UsageError
from recbole_lisa.progress import progress_bar

PARTS = ("sublayer", "core")


def add_problem(parser: argparse.ArgumentParser, *, seconds: float) -> None:
    """Options of the attention problem and the limit of a row, for `attention` and `memory`."""
    add = parser.add_argument
    add("--dtype", choices=("float32", "bfloat16", "float16", "float64"), default="float32", help="default float32")
    add("--backward", action="store_true", help="forward and backward, not forward alone")
    add("--rows", nargs="+", metavar="ROW", choices=ROWS, default=list(ROWS), help="only these rows (default: all)")
    add_number(parser, "decay", 0.0, "decay of LISA's histogram; 0 is the paper's")
    add_number(parser, "items", 3417, "items V, padding included; 3417 is ML-1M's number")
    add_number(parser, "row_seconds", seconds, "skip a row at a length where one call takes longer")


def problem_of(options: argparse.Namespace, device: torch.device, part: str, width: int) -> Problem:
    """The problem of the options, without N and L."""
    settings = {"backward": options.backward, "decay": options.decay, "n_items": options.items}
    return Problem(part, width, dtype=getattr(torch, options.dtype), device=device, **settings)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `attention`."""
    add_list(parser, "lengths", [128, 1024, 8192, 16384, 65536], "L")
    add_list(parser, "widths", [128], "D; the paper has 128 1024")
    add_number(parser, "tokens", 65536, "N * L, the same for all lengths")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default both")
    add_problem(parser, seconds=30.0)
    add_machine(parser)


def run(options: argparse.Namespace) -> None:
    """Run `python -m benchmarks attention`."""
    device = set_up_device(options)
    lengths = sorted(set(options.lengths))
    if lengths[-1] > options.tokens:
        raise UsageError(f"length {lengths[-1]} is more than --tokens={options.tokens}: one sequence must fit")
    problems = [problem_of(options, device, part, width) for width in options.widths for part in options.parts]
    for problem in problems:
        check_rows(options.rows, problem)
    report = Report(options, device)
    records: list[Record] = []
    document = {"tokens": options.tokens, "rows": records}
    for length in lengths:
        for problem in problems:
            one = replace(problem, length=length, n=options.tokens // length)
            records += measure_rows(options.rows, one, records, options.row_seconds, options.repeats)
        report.write(document, tables(records))
    report.finish(document, tables(records), plots(records))


def measure_rows(
    names: Sequence[str], problem: Problem, earlier: Sequence[Record], seconds: float, repeats: int
) -> list[Record]:
    """Measure rows at one length: first each alone, then all that fit in turns; a record for each row.

    A row that was skipped in a record of a shorter length (`earlier`) is skipped here.
    """
    where = {"part": problem.part, "width": problem.width, "length": problem.length, "n": problem.n}
    late = status_of(TimeLimitError(), seconds)
    here = [r for r in earlier if (r["part"], r["width"]) == (problem.part, problem.width)]
    skipped = {r["row"] for r in here if r["status"] == late}
    records: dict[str, Record] = {}
    for name in progress_bar(names, f"{problem.part} D={problem.width} L={problem.length}"):
        alone = {"status": late} if name in skipped else probe(name, problem, seconds)
        records[name] = {"row": name, **where, **alone}
    builders, most = {}, measure.SAMPLES_FRACTION * seconds
    for name, record in records.items():
        if record["status"] == "ok" and problem.device.type == "cpu" and record["seconds"] > most:
            # The probe took the only sample of a slow row.
            record |= {**dict.fromkeys(("median", "low", "high"), record["seconds"]), "samples": 1}
        elif record["status"] == "ok":
            builders[name] = lambda build=ROWS[name].build: build(problem)
    timings = measure.time_in_turns(builders, repeats=repeats, device=problem.device, seconds=seconds)
    for name, timing in timings.items():
        records[name] |= timing
    for record in records.values():
        shown = f"{milliseconds(record['median'])} ms" if record["status"] == "ok" else record["status"]
        print(f"{problem.part:8} D={problem.width:<5} L={problem.length:<6} {record['row']:28} {shown}")
    return list(records.values())


def probe(name: str, problem: Problem, seconds: float, memory_mb: float | None = None) -> Record:
    """Status, seconds and memory of the first call of a row; on the CPU in a fresh process with limits."""
    arguments = (name, problem, torch.get_num_threads(), memory_mb or measure.free_memory_mb())
    call = probe_here if problem.device.type == "cuda" else partial(in_fresh_process, probe_here, seconds=seconds)
    try:
        record = call(*arguments)
        if record["seconds"] > seconds:
            raise TimeLimitError
    except Exception as error:
        return {"status": status_of(error, seconds)}
    return {"status": "ok", **record}


def probe_here(name: str, problem: Problem, threads: int, memory_mb: float) -> Record:
    """Build a row and call it once: seconds, extra_mb, held_mb (inputs and parameters) and output_mb."""
    torch.set_num_threads(threads)
    build = ROWS[name].build
    build(replace(problem, n=20, length=32))()  # loads libraries and compiles: too small to hide memory
    case = build(problem)
    if problem.device.type == "cpu":
        measure.limit_memory(memory_mb)
    peak = peak_of_call(case, problem.device)
    output_mb = problem.n * problem.length * problem.width * problem.dtype.itemsize / 2**20
    return {**peak._asdict(), "held_mb": case.held_mb, "output_mb": output_mb}


def _groups(records: Sequence[Record]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(f"{record['part']}, D = {record['width']}", []).append(record)
    return groups


def tables(records: Sequence[Record]) -> list[Table]:
    """Time, memory, and the speed against each reference, for every part and width."""
    result = []
    for what, group in _groups(records).items():
        title = f"Time of {what}: ms, median [fastest, slowest] (samples)"
        result.append(by_length(title, group, lambda r: f"{spread(r)} ({r['samples']})"))
        output = f"the output of {group[0].get('output_mb', 0):g} MB"
        title = f"Peak memory of {what}: MB above inputs and parameters, which include {output}"
        result.append(by_length(title, group, lambda r: megabytes(r["extra_mb"])))
        for reference in (SDPA, NAIVE, LISA_NAIVE, LISA_ONE_PRODUCT):
            rows = [r for r in group if r["row"] in (reference, *LISA_ROWS) or not reference.startswith("LISA")]
            if any(r["row"] == reference for r in rows) and len({r["row"] for r in rows}) > 1:
                result.append(compared(f"{what}: how many times as fast as", reference, rows))
    return result


def plots(records: Sequence[Record]) -> dict[str, list[Panel]]:
    """Time and memory over the length."""
    groups = _groups(records).items()
    time = [Panel(what, "length L", "ms", lines(group, lambda r: r["median"] * 1e3)) for what, group in groups]
    memory = [Panel(what, "length L", "MB", lines(group, lambda r: max(r["extra_mb"], 0.1))) for what, group in groups]
    return {"time": time, "memory": memory}
