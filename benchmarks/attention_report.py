"""Tables and plots of the attention benchmark."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.plots import Figure, Panel
from benchmarks.report import Table, megabytes, milliseconds, ratio
from benchmarks.rows import FLOOR, LISA_NAIVE, LISA_ONE_PRODUCT, LISA_ROWS, NAIVE, SDPA

Record = dict[str, Any]
Value = Callable[[Record], float]
REFERENCES = (SDPA, NAIVE)


def tables(records: Sequence[Record]) -> list[Table]:
    """Time, memory, and the speed against each reference, for every part and width."""
    found = []
    for (part, width), group in groups(records).items():
        what = f"{part}, D = {width}"
        found.append(_by_length(f"Time of {what}: ms, median [fastest, slowest] (samples)", group, _time))
        found.append(
            _by_length(
                f"Peak memory of {what}: MB above inputs and parameters (of these without the output)",
                group,
                lambda r: f"{megabytes(r['extra_mb'])} ({megabytes(max(r['extra_mb'] - r['output_mb'], 0.0))})",
            )
        )
        for reference, compared in (
            *((reference, [r for r in group if r["row"] not in (reference, FLOOR)]) for reference in REFERENCES),
            *((naive, [r for r in group if r["row"] in LISA_ROWS]) for naive in (LISA_NAIVE, LISA_ONE_PRODUCT)),
        ):
            base = {r["length"]: r["median"] for r in group if r["row"] == reference and r["status"] == "ok"}
            if base and compared:
                title = f"How many times as fast as {reference}, {what}"
                found.append(_by_length(title, compared, functools.partial(_faster, base)))
    return found


def groups(records: Sequence[Record]) -> dict[tuple[str, int], list[Record]]:
    """Records by part and width."""
    found: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        found.setdefault((record["part"], record["width"]), []).append(record)
    return found


def _by_length(title: str, group: Sequence[Record], cell: Callable[[Record], str]) -> Table:
    """Rows down, lengths across; what was not measured says why."""
    lengths = sorted({record["length"] for record in group})
    at = {(record["row"], record["length"]): record for record in group}

    def text(record: Record | None) -> str:
        if record is None:
            return ""
        return cell(record) if record["status"] == "ok" else str(record["status"])

    rows = [
        [name, *(text(at.get((name, length))) for length in lengths)]
        for name in dict.fromkeys(record["row"] for record in group)
    ]
    return Table(title, ["", *(f"L = {length:,}" for length in lengths)], rows)


def _time(record: Record) -> str:
    low, high = milliseconds(record["low"]), milliseconds(record["high"])
    return f"{milliseconds(record['median'])} [{low}, {high}] ({record['samples']})"


def _faster(base: Mapping[int, float], record: Record) -> str:
    return ratio(base[record["length"]] / record["median"]) if record["length"] in base else "-"


def figures(records: Sequence[Record]) -> list[Figure]:
    """Time against length, memory against length, and the speed against SDPA and the naive Transformer."""
    panels: dict[str, list[Panel]] = {"time": [], "memory": [], "speedup": []}
    for (part, width), group in groups(records).items():
        done = [record for record in group if record["status"] == "ok"]
        what = f"{part}, D = {width}, N L = {done[0]['n'] * done[0]['length']:,}" if done else part
        panels["time"].append(Panel(what, "length L", "ms", _lines(done, lambda r: r["median"] * 1e3)))
        panels["memory"].append(
            Panel(what, "length L", "MB above inputs and parameters", _lines(done, lambda r: max(r["extra_mb"], 0.1)))
        )
        for reference in REFERENCES:
            base = {record["length"]: record["median"] for record in done if record["row"] == reference}
            compared = [record for record in done if record["length"] in base]
            series = _lines(compared, lambda r, base=base: base[r["length"]] / r["median"])  # type: ignore[misc]
            panels["speedup"].append(Panel(f"{part}, D = {width}", "length L", f"times as fast as {reference}", series))
    return [Figure(name, found) for name, found in panels.items() if found]


def _lines(done: Sequence[Record], y: Value) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for record in done:
        lines.setdefault(record["row"], []).append((record["length"], y(record)))
    return lines
