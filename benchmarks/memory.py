"""The paper's memory table: peak memory at the largest batch that fits for all mechanisms, and its ratios."""

import argparse
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.attention import PARTS, add_problem, probe, problem_of
from benchmarks.measure import OUT_OF_MEMORY, Record
from benchmarks.options import add_list, add_machine, add_number, set_up_device
from benchmarks.report import Panel, Report, Table, by_length, compared, lines, megabytes
from benchmarks.rows import NAIVE, SDPA, Problem, check_rows


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `memory`."""
    add_list(parser, "lengths", [512, 1024, 2048, 4096, 8192, 16384], "L")
    add_number(parser, "width", 128, "D")
    parser.add_argument("--part", choices=PARTS, default="sublayer", help="default sublayer")
    add_number(parser, "budget_mb", 4096, "memory that the largest batch may take")
    add_problem(parser, seconds=120.0)
    add_machine(parser, repeats=None)


def run(options: argparse.Namespace) -> None:
    """Run `python -m benchmarks memory`."""
    device = set_up_device(options)
    problem = problem_of(options, device, options.part, options.width)
    check_rows(options.rows, problem)
    report = Report(options, device)
    records: list[Record] = []
    for length in sorted(set(options.lengths)):
        one = replace(problem, length=length)
        records += measure_length(options.rows, one, seconds=options.row_seconds, budget_mb=options.budget_mb)
        report.write({"rows": records}, tables(records))
    one_sequence = lines(records, lambda record: record["peak_mb"] / record["n"])
    panel = Panel("peak memory", "length L", "MB for each sequence", one_sequence)
    report.finish({"rows": records}, tables(records), {"length": [panel]})


def measure_length(names: Sequence[str], problem: Problem, *, seconds: float, budget_mb: float) -> list[Record]:
    """Find the largest batch, a power of two, that fits for all rows, and their peaks at it.

    The batch is estimated from the peaks of one sequence, and halved until inputs, parameters and the call of every
    row fit `budget_mb`. A row that does not fit even one sequence is left out of the search.
    """

    def measure(rows: Sequence[str], n: int) -> dict[str, Record]:
        records = {name: probe(name, replace(problem, n=n), seconds, budget_mb) for name in rows}
        for record in records.values():
            if record["status"] == "ok":
                record["peak_mb"] = record["held_mb"] + record["extra_mb"]
                if record["peak_mb"] > budget_mb:
                    record["status"] = OUT_OF_MEMORY
        return records

    one = measure(names, 1)
    fitting = [name for name in names if one[name]["status"] == "ok"]
    largest = max((one[name]["peak_mb"] for name in fitting), default=budget_mb)
    n = 1
    while 2 * n * largest <= budget_mb:
        n *= 2
    best = measure(fitting, n) if n > 1 else one
    while n > 1 and any(record["status"] == OUT_OF_MEMORY for record in best.values()):
        n //= 2
        best = measure(fitting, n) if n > 1 else one
    records = [{"row": name, "length": problem.length, "n": n, **best.get(name, one[name])} for name in names]
    for record in records:
        shown = f"{megabytes(record['peak_mb'])} MB" if record["status"] == "ok" else record["status"]
        print(f"L={problem.length:<6} N={n:<5} {record['row']:28} {shown}")
    return records


def tables(records: Sequence[Record]) -> list[Table]:
    """Peak memory, and how many times as much the naive and the fused Transformer take."""
    batches = {record["length"]: record["n"] for record in records}
    sizes = ", ".join(f"{n} at L = {length:,}" for length, n in batches.items())
    title = f"Peak memory: MB of inputs, parameters and the call; N is {sizes}"
    result = [by_length(title, records, lambda record: megabytes(record["peak_mb"]))]
    for reference in (NAIVE, SDPA):
        if any(record["row"] == reference for record in records):
            result.append(compared("How many times as much memory is taken by", reference, records, "peak_mb"))
    return result
