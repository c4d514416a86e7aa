"""What a benchmark prints and writes: a heading, tables, a JSON file, a Markdown file, plots."""

import argparse
import json
import platform
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from tabulate import tabulate

from benchmarks.measure import Record
from recbole_lisa import __version__
from recbole_lisa.errors import UsageError, install_extra
from recbole_lisa.files import atomic_writer, check_output


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An aligned Markdown table."""
    return str(tabulate(rows, columns, tablefmt="github", disable_numparse=True))


class Table(NamedTuple):
    """A title and rows of text under column names."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Title and aligned Markdown table."""
        return f"{self.title}\n\n{markdown(self.columns, self.rows)}\n"


class Panel(NamedTuple):
    """One plot."""

    title: str
    x_label: str
    y_label: str
    series: Mapping[str, Sequence[tuple[float, ...]]]  # line -> points (x, y), or (x, y, low, high) with error bars
    log: bool = True  # logarithmic axes with a tick at every x
    levels: Mapping[str, float] = {}  # line -> y of a dotted horizontal line


class Report:
    """The heading, tables and files of one benchmark; raises UsageError for an output that cannot be written."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.heading = heading(options.command, device)
        self.output: str | None = options.output
        if self.output is not None:
            check_plots()
            for ending in (".json", ".md"):
                check_output(f"{self.output}{ending}", overwrite=options.overwrite)
        print(self.heading)

    def write(self, document: Record, tables: Sequence[Table], plots: Mapping[str, Sequence[Panel]] = {}) -> None:
        """Write the document as JSON, the tables as Markdown, and the plots, which are named by their file's end."""
        if self.output is None:
            return
        text = [f"# {Path(self.output).name}\n\n{self.heading}\n", *(table.markdown() for table in tables)]
        for name, panels in plots.items():
            plot = Path(f"{self.output}-{name}.png")
            draw(panels, plot)
            text.append(f"![{name}]({plot.name})\n")
        write_text(Path(f"{self.output}.json"), json.dumps({"header": self.heading, **document}, indent=2) + "\n")
        write_text(Path(f"{self.output}.md"), "\n".join(text))

    def finish(self, document: Record, tables: Sequence[Table], plots: Mapping[str, Sequence[Panel]]) -> None:
        """Print the tables and write all files."""
        print("\n" + "\n".join(table.markdown() for table in tables), end="")
        self.write(document, tables, plots)


def write_text(path: Path, text: str) -> None:
    """Write a text file, complete or not at all."""
    with atomic_writer(path) as stream:
        stream.write(text.encode())


def check_plots() -> None:
    """Refuse to start work whose plots cannot be drawn at its end: raises UsageError if matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise UsageError(f"plots need matplotlib: {install_extra('bench')}")


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Draw panels, one below the other, as a PNG file.

    A line has one colour in all panels, and LISA's are thicker; a single point has its name beside it.
    """
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    figure = Figure(figsize=(8, 4 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), squeeze=False).flatten()
    for panel, ax in zip(panels, axes, strict=True):
        for name, points in panel.series.items():
            index, (x, y, *bounds) = names.index(name), zip(*points, strict=True)
            spread = [[abs(b - value) for b, value in zip(bound, y, strict=True)] for bound in bounds] or None
            kind, width = index // 10 % 3, 2.5 if name.startswith("LISA") else 1.2
            style = {"color": f"C{index % 10}", "linestyle": ("-", "--", ":")[kind], "marker": "os^"[kind]}
            ax.errorbar(x, y, yerr=spread, label=name, markersize=3, linewidth=width, capsize=3, **style)
            if len(points) == 1:
                ax.annotate(name, (x[0], y[0]), xytext=(4, 3), textcoords="offset points", fontsize=7)
            if name in panel.levels:
                ax.axhline(panel.levels[name], color=style["color"], linestyle=":", linewidth=0.8)
        ax.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
        ax.grid(True, which="major", alpha=0.3)
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
        if panel.log:
            ax.set(xscale="log", yscale="log")
            ticks = sorted({point[0] for points in panel.series.values() for point in points})
            ax.set_xticks(ticks, labels=[f"{x:,.0f}" for x in ticks], rotation=30)
            ax.minorticks_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def by_length(title: str, records: Sequence[Record], cell: Callable[[Record], str]) -> Table:
    """Table with a line for each row name and a column for each length; a cell without a value says why."""
    lengths = sorted({record["length"] for record in records})
    cells: dict[str, dict[int, str]] = {}
    for record in records:
        text = cell(record) if record["status"] == "ok" else record["status"]
        cells.setdefault(record["row"], {})[record["length"]] = text
    rows = [[name, *(row.get(length, "") for length in lengths)] for name, row in cells.items()]
    return Table(title, ["", *(f"L = {length:,}" for length in lengths)], rows)


def compared(title: str, reference: str, records: Sequence[Record], key: str = "median") -> Table:
    """Table of how many times the reference row takes what each other row takes."""
    base = {r["length"]: r[key] for r in records if r["row"] == reference and r["status"] == "ok"}

    def cell(record: Record) -> str:
        return ratio(base[record["length"]] / record[key]) if record["length"] in base else "-"

    return by_length(f"{title} {reference}", [record for record in records if record["row"] != reference], cell)


def lines(records: Sequence[Record], y: Callable[[Record], float]) -> dict[str, list[tuple[float, float]]]:
    """Row name -> points (length, y) of the records with a value."""
    series: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        if record["status"] == "ok":
            series.setdefault(record["row"], []).append((record["length"], y(record)))
    return series


def heading(command: str, device: torch.device) -> str:
    """One line: device, threads, versions, commit (with a + if tracked files were changed) and command."""
    cpu_info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*:\s*(.+)", cpu_info.read_text("utf-8") if cpu_info.is_file() else "")
    hardware = f"{model[1] if model else platform.processor()}, {torch.get_num_threads()} threads"
    if device.type == "cuda":
        hardware = torch.cuda.get_device_name(device)
    git = ["git", "--no-optional-locks", "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=10"]
    commit = "unknown"
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(git, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=30)
        commit = done.stdout.strip() or commit
    return f"{hardware}, torch {torch.__version__}, recbole-lisa {__version__}, commit {commit}, command: {command}"


def spread(record: Record) -> str:
    """Median, fastest and slowest sample in ms."""
    return f"{milliseconds(record['median'])} [{milliseconds(record['low'])}, {milliseconds(record['high'])}]"


def milliseconds(seconds: float) -> str:
    """Three digits, in ms."""
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def megabytes(value: float) -> str:
    """Whole MB, two digits below ten."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def ratio(value: float) -> str:
    """How many times, three digits at most."""
    return f"{value:,.0f}x" if value >= 100 else f"{value:.3g}x"
