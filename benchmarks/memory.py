"""The paper's memory table: peak memory at the largest batch that every mechanism fits, against the Transformer's."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.attention import chosen_rows
from benchmarks.gate import check_rows
from benchmarks.machine import Limits, set_up_device
from benchmarks.plots import Figure, Panel
from benchmarks.probe import OUT_OF_MEMORY, Probe, probe
from benchmarks.problem import Problem
from benchmarks.report import Output, Table, heading, megabytes, ratio
from benchmarks.rows import FLOOR, NAIVE, SDPA

Record = dict[str, Any]
Measured = dict[str, tuple[str, Probe | None]]


def run(options: argparse.Namespace) -> None:
    """`python -m benchmarks memory`: see its --help."""
    device = set_up_device(options.device, options.threads)
    output = Output(options.output, "memory", overwrite=options.overwrite)
    # On the CPU the budget itself ends a row; a GPU's allocator is asked what it took.
    memory_mb = min(options.memory_mb or options.budget_mb, options.budget_mb)
    limits = Limits(options.row_seconds, memory_mb, 1, torch.get_num_threads())
    problem = Problem(
        part=options.part,
        n=1,
        length=1,
        width=options.width,
        dtype=getattr(torch, options.dtype),
        device=device,
        backward=options.backward,
        decay=options.decay,
        n_items=options.items,
    )
    names = [name for name in chosen_rows(options.part, options.backward, options.rows) if name != FLOOR]
    check_rows(names, problem)
    title = heading(options.command, device)
    print(title)
    records: list[Record] = []
    document = {"limits": asdict(limits), "rows": records}
    for length in sorted(set(options.lengths)):
        records += measure_length(names, replace(problem, length=length), limits, budget_mb=memory_mb)
        output.write(title, document, tables(records))
    for table in tables(records):
        print("\n" + table.markdown(), end="")
    output.tell(output.write(title, document, tables(records), figures(records)))


def measure_length(names: Sequence[str], problem: Problem, limits: Limits, *, budget_mb: float) -> list[Record]:
    """Find the largest batch (a power of two) that all rows fit, and their peaks at it.

    A row that does not fit even one sequence is left out of the search. The batch is guessed from the peaks of one
    sequence, and halved until all others fit; on a GPU the allocator may also end a row earlier.

    Args:
        names: Rows.
        problem: One length.
        limits: Of each row.
        budget_mb: What inputs, parameters and the call may take together.

    Returns:
        A record a row.
    """
    one = _measure(names, replace(problem, n=1), limits, budget_mb)
    fitting = [name for name in names if one[name][0] == "ok"]
    largest = max((found.peak_mb for status, found in one.values() if found and status == "ok"), default=0.0)
    n = 1
    while fitting and 2 * n * largest <= budget_mb:
        n *= 2
    measured = one if n == 1 else _measure(fitting, replace(problem, n=n), limits, budget_mb)
    while n > 1 and any(status == OUT_OF_MEMORY for status, _ in measured.values()):
        n //= 2
        measured = one if n == 1 else _measure(fitting, replace(problem, n=n), limits, budget_mb)
    records = []
    for name in names:
        status, found = measured.get(name, one[name])
        fields = {**found._asdict(), "peak_mb": found.peak_mb} if found else {}
        records.append({"length": problem.length, "n": n, "row": name, "status": status, **fields})
        shown = f"{megabytes(found.peak_mb)} MB" if found and status == "ok" else status
        print(f"L={problem.length:<6} N={n:<5} {name:28} {shown}")
    return records


def _measure(names: Sequence[str], problem: Problem, limits: Limits, budget_mb: float) -> Measured:
    measured: Measured = {}
    for name in tqdm(names, desc=f"L={problem.length} N={problem.n}", ncols=100, disable=None, leave=False):
        status, found = probe(name, problem, limits)
        if found and status == "ok" and found.peak_mb > budget_mb:
            status = OUT_OF_MEMORY
        measured[name] = status, found
    return measured


def tables(records: Sequence[Record]) -> list[Table]:
    """Peak memory, and how many times as much the naive and the fused Transformer take."""
    lengths = list(dict.fromkeys(record["length"] for record in records))
    names = list(dict.fromkeys(record["row"] for record in records))
    at = {(record["row"], record["length"]): record for record in records}
    batches = {record["length"]: record["n"] for record in records}
    columns = ["", *(f"L = {length:,}, N = {batches[length]}" for length in lengths)]
    title = "Peak memory: MB of inputs, parameters and the call"
    rows = [
        [name, *(megabytes(r["peak_mb"]) if r["status"] == "ok" else r["status"] for r in _row(at, name, lengths))]
        for name in names
    ]
    found = [Table(title, columns, rows)]
    for reference in (NAIVE, SDPA):
        if reference in names:
            rows = [
                [name, *(_against(at[reference, r["length"]], r) for r in _row(at, name, lengths))]
                for name in names
                if name != reference
            ]
            found.append(Table(f"How many times as much memory {reference} takes", columns, rows))
    return found


def _row(at: dict[tuple[str, int], Record], name: str, lengths: Sequence[int]) -> list[Record]:
    return [at[name, length] for length in lengths]


def _against(reference: Record, record: Record) -> str:
    if record["status"] != "ok":
        return str(record["status"])
    return ratio(reference["peak_mb"] / record["peak_mb"]) if reference["status"] == "ok" else "-"


def figures(records: Sequence[Record]) -> list[Figure]:
    """MB of one sequence against the length: peaks divided by their batch."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        if record["status"] == "ok":
            lines.setdefault(record["row"], []).append((record["length"], record["peak_mb"] / record["n"]))
    return [Figure("length", [Panel("peak memory", "length L", "MB for each sequence", lines)])]
