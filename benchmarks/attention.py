"""Every attention mechanism over lengths, at a fixed number of tokens: time, memory, and how LISA compares."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.attention_report import figures, tables
from benchmarks.gate import check_rows
from benchmarks.machine import Limits, memory_budget, set_up_device
from benchmarks.measure import Call, Timing, as_cuda_graph, memory_limit, time_in_turns
from benchmarks.options import PARTS
from benchmarks.probe import probe, status_of
from benchmarks.problem import Problem
from benchmarks.report import Output, heading, milliseconds
from benchmarks.rows import rows_of
from recbole_lisa.errors import UsageError, did_you_mean

Record = dict[str, Any]
SAMPLES_SHARE = 0.2
"""Share of --row_seconds that the samples of a row may take together."""
WARM_UP_SECONDS = 0.2
"""Calls that take longer need no warm-up: the median leaves out the first sample anyway."""


def run(options: argparse.Namespace) -> None:
    """`python -m benchmarks attention`: see its --help."""
    device = set_up_device(options.device, options.threads)
    if options.cuda_graph and device.type != "cuda":
        raise UsageError("--cuda_graph records a call on a GPU: write --device=cuda, or leave it out")
    memory_mb = memory_budget(options.memory_mb, device)
    limits = Limits(options.row_seconds, memory_mb, options.repeats, torch.get_num_threads(), options.cuda_graph)
    problem = Problem(
        part="core",
        n=1,
        length=1,
        width=1,
        dtype=getattr(torch, options.dtype),
        device=device,
        backward=options.backward,
        decay=options.decay,
        n_items=options.items,
    )
    sweep(
        problem,
        limits,
        parts=options.parts,
        widths=options.widths,
        lengths=sorted(set(options.lengths)),
        tokens=options.tokens,
        chosen=options.rows,
        output=Output(options.output, "attention", overwrite=options.overwrite),
        command=options.command,
    )


def sweep(
    problem: Problem,
    limits: Limits,
    *,
    parts: Sequence[str],
    widths: Sequence[int],
    lengths: Sequence[int],
    tokens: int,
    chosen: Sequence[str] | None,
    output: Output,
    command: str,
) -> list[Record]:
    """Measure all rows at every width and length and print the tables; files are written anew after every length.

    Args:
        problem: Its dtype, device, backward, decay and items are kept.
        limits: Of each row at each length.
        parts: sublayer, core.
        widths: D.
        lengths: L, ascending.
        tokens: N * L, at most.
        chosen: Names of rows; None for all.
        output: Where the files go.
        command: For the heading.

    Returns:
        One record a row, part, width and length.

    Raises:
        UsageError: An unknown row, or a length above the tokens.
        GateError: A row is wrong.
    """
    if lengths[-1] > tokens:
        raise UsageError(f"length {lengths[-1]} is more than --tokens={tokens}: one sequence must fit")
    names = {part: chosen_rows(part, problem.backward, chosen) for part in parts}
    for part in parts:
        for width in widths:
            check_rows(names[part], replace(problem, part=part, width=width))
    title = heading(command, problem.device)
    print(title)
    records: list[Record] = []
    document = {"tokens": tokens, "limits": asdict(limits), "rows": records}
    for width in widths:
        for length in lengths:
            for part in parts:
                one = replace(problem, part=part, width=width, length=length, n=tokens // length)
                records += measure_rows(names[part], one, limits, records)
            output.write(title, document, tables(records))
    for table in tables(records):
        print("\n" + table.markdown(), end="")
    output.tell(output.write(title, document, tables(records), figures(records)))
    return records


def chosen_rows(part: str, backward: bool, chosen: Sequence[str] | None) -> list[str]:
    """The rows asked for, in the order of the tables; all without a choice.

    Raises:
        UsageError: A row is not known.
    """
    everywhere = [name for p in PARTS for name in rows_of(p, backward=backward)]
    for name in chosen or ():
        if name not in everywhere:
            known = ", ".join(dict.fromkeys(everywhere))
            raise UsageError(f"unknown row '{name}': known are {known}.{did_you_mean(name, everywhere)}")
    return [name for name in rows_of(part, backward=backward) if not chosen or name in chosen]


def measure_rows(names: Sequence[str], problem: Problem, limits: Limits, earlier: Sequence[Record]) -> list[Record]:
    """Measure rows at one length: each alone first, then those that fit in turns.

    Args:
        names: Rows.
        problem: One part, width and length.
        limits: Of each row.
        earlier: Records at shorter lengths.

    Returns:
        A record a row.
    """
    where = {"part": problem.part, "width": problem.width, "length": problem.length, "n": problem.n}
    records: dict[str, Record] = {}
    for name in tqdm(names, desc=f"{problem.part} D={problem.width} L={problem.length}", ncols=100, disable=None):
        same = [r for r in earlier if (r["row"], r["part"], r["width"]) == (name, problem.part, problem.width)]
        status, found = limits.over_time, None
        if not is_too_slow(same, problem.length, limits):
            status, found = probe(name, problem, limits)
        records[name] = {**where, "row": name, "status": status, **(found._asdict() if found else {})}
    _add_timings({name: record for name, record in records.items() if record["status"] == "ok"}, problem, limits)
    for record in records.values():
        shown = f"{milliseconds(record['median'])} ms" if record["status"] == "ok" else record["status"]
        print(f"{problem.part:8} D={problem.width:<5} L={problem.length:<6} {record['row']:28} {shown}")
    return list(records.values())


def is_too_slow(earlier: Sequence[Record], length: int, limits: Limits) -> bool:
    """Whether a row would run past its limit, from its records at shorter lengths.

    The growth between the last two lengths is taken to go on. After fewer than two nobody knows how a row grows: it is
    tried, and stopped if need be.
    """
    if any(record["status"] == limits.over_time for record in earlier):
        return True
    done = [(record["length"], record["median"]) for record in earlier if record["status"] == "ok"]
    if len(done) < 2:
        return False
    (before, faster), (last, seconds) = done[-2:]
    power = min(max(math.log(seconds / faster) / math.log(last / before), 0.0), 1.2)
    return bool(seconds * (length / last) ** power > limits.seconds)


def _add_timings(records: dict[str, Record], problem: Problem, limits: Limits) -> None:
    """Time the rows that fit, and add the timings to their records; on the CPU the probe timed the slowest already."""
    builders = rows_of(problem.part, backward=problem.backward)
    calls: dict[str, Call] = {}
    samples: dict[str, int] = {}
    with memory_limit(limits.memory_mb):
        for name, record in records.items():
            try:
                samples[name] = max(1, min(limits.repeats, int(SAMPLES_SHARE * limits.seconds / record["seconds"])))
                if samples[name] == 1 < limits.repeats and problem.device.type == "cpu":
                    record.update(Timing(record["seconds"], record["seconds"], record["seconds"], 1)._asdict())
                    continue
                case = builders[name](problem)
                if record["seconds"] < WARM_UP_SECONDS:
                    case()
                calls[name] = as_cuda_graph(case) if limits.cuda_graph else case
            except Exception as error:  # beside the inputs of the others it may not fit any more
                record["status"] = status_of(error, limits)
        seconds = {name: records[name]["seconds"] for name in calls}
        timings = time_in_turns(calls, samples, device=problem.device, seconds=seconds)
    for name, timing in timings.items():
        if isinstance(timing, Exception):
            records[name]["status"] = status_of(timing, limits)
        else:
            records[name].update(timing._asdict())
