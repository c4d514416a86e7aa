"""Plots of the benchmarks; matplotlib is imported only when one is drawn."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

Series = Mapping[str, Sequence[tuple[float, float]]]
LINE_STYLES = ("-", "--", ":")
COLUMNS = 2
EMPHASISED = "LISA"


class Panel(NamedTuple):
    """Lines.

    Attributes:
        title: Above the axes.
        x_label: Name and unit.
        y_label: Name and unit.
        series: Name of a line -> its points (x, y), above 0 where the scale is log.
        scale: Of both axes, log (a tick and a mark at every x) or linear (from 0).
    """

    title: str
    x_label: str
    y_label: str
    series: Series
    scale: str = "log"


class Figure(NamedTuple):
    """Panels, two in a row; `name` is the end of the file name."""

    name: str
    panels: Sequence[Panel]


def draw(figure: Figure, path: Path) -> None:
    """Draw a figure as a PNG file.

    Args:
        figure: What to draw; a line keeps its colour in all panels, and LISA's are thicker.
        path: The file; its folder is made.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    names = list(dict.fromkeys(name for panel in figure.panels for name in panel.series))
    n_rows, n_columns = -(-len(figure.panels) // COLUMNS), min(COLUMNS, len(figure.panels))
    canvas = Canvas(figsize=(5.5 * n_columns + 2, 4 * n_rows), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots(n_rows, n_columns, squeeze=False).flatten()
    for ax in axes[len(figure.panels) :]:
        ax.remove()
    for panel, ax in zip(figure.panels, axes, strict=False):
        for name, points in panel.series.items():
            index = names.index(name)
            x, y = zip(*points, strict=True) if points else ((), ())
            style, width = LINE_STYLES[index // 10 % len(LINE_STYLES)], 2.5 if name.startswith(EMPHASISED) else 1.2
            marker = "o" if panel.scale == "log" else ""
            ax.plot(x, y, style, color=f"C{index % 10}", linewidth=width, marker=marker, markersize=3, label=name)
        scales = {"xscale": panel.scale, "yscale": panel.scale}
        ax.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label, **scales)
        ax.grid(True, which="major", alpha=0.3)
        if panel.scale == "linear":
            ax.set_ylim(0, 1.1 * max(y for points in panel.series.values() for _, y in points))
            continue
        ticks = sorted({x for points in panel.series.values() for x, _ in points})
        ax.set_xticks(ticks, labels=[f"{x:,.0f}" for x in ticks], rotation=30)
        ax.minorticks_off()
    handles = {label: line for ax in axes for line, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    canvas.legend(handles.values(), handles.keys(), loc="outside right center", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, dpi=110, metadata={"Software": None})
