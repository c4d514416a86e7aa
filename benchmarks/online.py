"""One step of a session at growing histories: LISA's constant state beside kept keys and values, and nothing kept."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.attention import is_too_slow
from benchmarks.machine import Limits, memory_budget, set_up_device
from benchmarks.measure import Call, memory_limit, seconds_of, time_in_turns
from benchmarks.plots import Figure, Panel
from benchmarks.probe import status_of
from benchmarks.report import Output, Table, heading, megabytes, milliseconds, ratio
from benchmarks.sessions import CACHED, GATE_LENGTH, ROWS, Session, check_steps

Record = dict[str, Any]


def run(options: argparse.Namespace) -> None:
    """`python -m benchmarks online`: see its --help."""
    device = set_up_device(options.device, options.threads)
    output = Output(options.output, "online", overwrite=options.overwrite)
    memory_mb = memory_budget(options.memory_mb, device)
    limits = Limits(options.row_seconds, memory_mb, options.repeats, torch.get_num_threads())
    title = heading(options.command, device)
    records: list[Record] = []
    document = {"users": options.users, "width": options.width, "limits": asdict(limits), "rows": records}
    with torch.no_grad():
        check_steps(Session(2, GATE_LENGTH, options.width, options.decay, device))
        print(title)
        for length in sorted(set(options.lengths)):
            records += measure_steps(
                Session(options.users, length, options.width, options.decay, device), limits, records
            )
            output.write(title, document, tables(records))
    for table in tables(records):
        print("\n" + table.markdown(), end="")
    output.tell(output.write(title, document, tables(records), figures(records)))


def measure_steps(session: Session, limits: Limits, earlier: Sequence[Record]) -> list[Record]:
    """Time one step of every row after histories of one length, in turns.

    Args:
        session: The users.
        limits: Of each row.
        earlier: Records at shorter histories.

    Returns:
        A record a row.
    """
    records: dict[str, Record] = {name: {"row": name, "length": session.length, "status": "ok"} for name in ROWS}
    calls: dict[str, Call] = {}
    samples: dict[str, int] = {}
    with memory_limit(limits.memory_mb):
        for name, record in records.items():
            if is_too_slow([r for r in earlier if r["row"] == name], session.length, limits):
                record["status"] = limits.over_time
                continue
            try:
                step = ROWS[name](session)
                step.call()  # warm-up
                seconds = seconds_of(step.call, 1, session.device)
                samples[name] = max(1, min(limits.repeats, int(limits.seconds / seconds)))
                calls[name], record["state_mb"] = step.call, step.state_mb
            except Exception as error:
                record["status"] = status_of(error, limits)
        title = f"history {session.length:,}"
        timings = time_in_turns(calls, samples, device=session.device, title=title)
    for name, timing in timings.items():
        if isinstance(timing, Exception):
            records[name]["status"] = status_of(timing, limits)
        else:
            records[name].update(timing._asdict())
    for record in records.values():
        shown = f"{milliseconds(record['median'])} ms" if record["status"] == "ok" else record["status"]
        print(f"L={record['length']:<8} {record['row']:34} {shown}")
    return list(records.values())


def tables(records: Sequence[Record]) -> list[Table]:
    """Time of a step, what must be kept, and the time against the Transformer's with kept keys and values."""
    lengths = list(dict.fromkeys(record["length"] for record in records))
    at = {(record["row"], record["length"]): record for record in records}
    columns = ["", *(f"L = {length:,}" for length in lengths)]

    def table(title: str, cell: Callable[[Record], str]) -> Table:
        rows = [
            [name, *(cell(r) if r["status"] == "ok" else r["status"] for r in (at[name, length] for length in lengths))]
            for name in ROWS
        ]
        return Table(title, columns, rows)

    def speed(record: Record) -> str:
        cached = at[CACHED, record["length"]]
        return ratio(cached["median"] / record["median"]) if cached["status"] == "ok" else "-"

    def time(record: Record) -> str:
        low, high = milliseconds(record["low"]), milliseconds(record["high"])
        return f"{milliseconds(record['median'])} [{low}, {high}]"

    return [
        table("One step after a history of L items: ms, median [fastest, slowest]", time),
        table("Kept between steps: MB", lambda record: megabytes(record["state_mb"])),
        table(f"How many times as fast as {CACHED}", speed),
    ]


def figures(records: Sequence[Record]) -> list[Figure]:
    """Time of a step and size of the state against the history."""
    done = [record for record in records if record["status"] == "ok"]
    time: dict[str, list[tuple[float, float]]] = {}
    state: dict[str, list[tuple[float, float]]] = {}
    for record in done:
        time.setdefault(record["row"], []).append((record["length"], record["median"] * 1e3))
        state.setdefault(record["row"], []).append((record["length"], record["state_mb"]))
    panels = [
        Panel("one step", "items in the history", "ms", time),
        Panel("kept between steps", "items in the history", "MB", state),
    ]
    return [Figure("length", panels)]
