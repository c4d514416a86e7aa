"""The plots of measured figures: `python docs/figures/results.py`. All numbers are read from results/."""

import json
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
from lisa import STYLE, save
from matplotlib import pyplot as plt

RESULTS = Path(__file__).parents[2] / "results"
LINES = {
    "LISA-128 soft": ("LISA (B W = 128, soft)", "#d95f02"),
    "Transformer naive": ("Transformer, naive", "#555555"),
    "Transformer SDPA": ("Transformer, flash attention", "#1b6ca8"),
    "LinearTransformer": ("LinearTransformer", "#8e44ad"),
    "Sinkhorn-32": ("Sinkhorn-32", "#2a9d5c"),
}


def read_rows(name: str) -> list[dict[str, Any]]:
    """The measured rows of results/NAME.json."""
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    return [row for row in rows if row["status"] == "ok" and row.get("part", "sublayer") == "sublayer"]


def draw_cost() -> None:
    """Time and memory of one layer by the length of the history."""
    figure, (time, memory) = plt.subplots(1, 2, figsize=(13, 4.6))
    peak = {(row["row"], row["length"]): row["peak_mb"] for row in read_rows("memory-cpu")}
    for name, (label, colour) in LINES.items():
        style = {"label": label, "color": colour, "marker": "o", "linewidth": 3 if "LISA" in name else 1.6}
        rows = [row for row in read_rows("speed-cpu") if row["row"] == name and row["width"] == 128]
        time.plot([row["length"] for row in rows], [1000 * row["median"] for row in rows], **style)
        lengths = [length for row, length in peak if row == name]
        memory.plot(lengths, [peak[name, length] / peak["LISA-128 soft", length] for length in lengths], **style)
    time.set(title="time of one layer, 65,536 tokens, 2 CPU cores", ylabel="ms", yscale="log")
    memory.set(title="peak memory of one layer", ylabel="times LISA's", yscale="log")
    for axes, ticks in ((time, (128, 1024, 8192, 65536)), (memory, (512, 2048, 8192, 16384))):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.set_xlabel("items in the history, L")
        axes.grid(axis="y", color="#eeeeee")
        axes.minorticks_off()
    memory.set_yticks([1, 3, 10, 30, 100, 300], ["1", "3", "10", "30", "100", "300"])
    time.set_yticks([30, 100, 300, 1000, 3000, 10000], ["30", "100", "300", "1,000", "3,000", "10,000"])
    time.legend(frameon=False, loc="upper left", fontsize=10.5)
    figure.tight_layout(w_pad=3)
    save(figure, "cost")


def draw_quality() -> None:
    """HR@10 of each row of results/ml-100k.md, with the range over the seeds, and of results/ml-1m.md."""
    figure, panels = plt.subplots(1, 2, figsize=(13, 5))
    for axes, name, title in (
        (panels[0], "ml-100k", "ml-100k, 60 epochs, mean of 3 seeds"),
        (panels[1], "ml-1m", "ml-1m, 200 epochs (three rows 100), 1 seed"),
    ):
        text = (RESULTS / f"{name}.md").read_text(encoding="utf-8").partition("| seeds")[2]
        pattern = r"^\| ([\w-]+) *\|[^|]+\|[^|]+\| ([\d.]+)(?: \[([\d.]+)\])? *\|"
        rows = re.findall(pattern, text.partition("\n\n")[0], re.MULTILINE)
        rows.sort(key=lambda row: float(row[1]))
        for place, (row, value, spread) in enumerate(rows):
            colour = "#d95f02" if "LISA" in row else "#1b6ca8" if row == "Transformer" else "#999999"
            half = float(spread or 0) / 2
            axes.errorbar(float(value), place, xerr=half, color=colour, marker="o", markersize=8, capsize=3)
            axes.annotate(value, (float(value) + half, place), (8, 0), textcoords="offset points", va="center", size=10)
        axes.set_yticks(range(len(rows)), [row[0] for row in rows])
        axes.set_ylim(-0.7, len(rows) - 0.3)
        values = [float(row[1]) for row in rows]
        axes.set_xlim(min(values) - 0.025, max(values) + 0.035)
        axes.set_title(title)
        axes.set_xlabel("HR@10 among 100 sampled items")
        axes.grid(axis="x", color="#eeeeee")
    figure.tight_layout(w_pad=3)
    save(figure, "quality")


def main() -> None:
    """Draw all plots."""
    mpl.use("Agg")
    with plt.rc_context(STYLE):
        draw_cost()
        draw_quality()


if __name__ == "__main__":
    main()
