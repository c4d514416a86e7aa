"""The paper's study of the number of codewords W: rows, table, figure."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.paper.page import MARK, TITLES, Results, cell, head, kept_notes, write_text
from benchmarks.paper.paper import METRICS, Row

MODELS = {"LISASoft": "LISA-Soft", "LISAMini": "LISA-Mini"}
"""Model -> its name in the paper."""

_FINDINGS = (
    "The paper shows this study on Alibaba and Video Games, as a figure without numbers. In words: LISA-Mini improves "
    "with W on Alibaba and drops a bit at large W on Video Games; LISA-Soft is relatively stable on both."
)


def sensitivity_rows(models: Sequence[str], codewords: Sequence[int], n_codebooks: int) -> dict[str, Row]:
    """Row name -> what to run, for every model and W; LISA-Mini's set of target codewords stays as it is."""
    return {
        f"{MODELS[model]}-{w}": Row(model, {"n_codebooks": n_codebooks, "n_codewords": w})
        for model in models
        for w in codewords
    }


def sensitivity_page(
    dataset: str, rows: Mapping[str, Row], found: Results, settings: Sequence[str], folder: Path
) -> list[Path]:
    """Write sensitivity-<dataset>.md, .csv and .png.

    Args:
        dataset: data set name.
        rows: see `sensitivity_rows`.
        found: row -> results of its seeds; a row without any is shown as not run.
        settings: words of the command line that all runs share.
        folder: where to.

    Returns:
        The files.
    """
    page, table, plot = (folder / f"sensitivity-{dataset}.{ending}" for ending in ("md", "csv", "png"))
    notes = kept_notes(page)
    write_text(table, _csv(rows, found))
    _draw(dataset, rows, found, plot)
    lines = [
        *head(f"{dataset}, the number of codewords", found),
        *_table(rows, found),
        *_command(dataset, found, settings),
    ]
    lines += [
        _FINDINGS,
        "",
        f"Each run is in [{table.name}]({table.name}). Mean over the seeds, bars from the smallest to the largest:",
        "",
        f"![HR@10 and NDCG@10 over W]({plot.name})",
        "",
    ]
    write_text(page, "\n".join(lines) + f"\n{MARK}{notes or chr(10)}")
    return [page, table, plot]


def _table(rows: Mapping[str, Row], found: Results) -> list[str]:
    lines = [f"| model | W | {' | '.join(TITLES.values())} | seeds |", "|" + "---|" * (len(TITLES) + 3)]
    for name, row in rows.items():
        runs = found[name]
        cells = [MODELS[row.model], str(row.settings["n_codewords"])]
        cells += [cell([run["test"][metric] for run in runs]) for metric in METRICS]
        lines.append(f"| {' | '.join([*cells, ', '.join(str(run['seed']) for run in runs) or '-'])} |")
    return [*lines, ""]


def _command(dataset: str, found: Results, settings: Sequence[str]) -> list[str]:
    seeds = " ".join(map(str, sorted({run["seed"] for runs in found.values() for run in runs})))
    words = f"python -m benchmarks paper sensitivity --dataset={dataset} --seeds {seeds} {' '.join(settings)}".rstrip()
    return ["```bash", words, "```", ""]


def _csv(rows: Mapping[str, Row], found: Results) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "n_codewords", "seed", *METRICS])
    for name, row in rows.items():
        for run in found[name]:
            figures = (run["test"][metric] for metric in METRICS)
            writer.writerow([row.model, row.settings["n_codewords"], run["seed"], *figures])
    return text.getvalue()


def points(rows: Mapping[str, Row], found: Results, model: str, metric: str) -> list[tuple[int, float, float, float]]:
    """W, mean, smallest and largest figure of a model over the seeds, for every W that was run."""
    shown = []
    for name, row in rows.items():
        values = [run["test"][metric] for run in found[name]]
        if row.model == model and values:
            shown.append((row.settings["n_codewords"], statistics.mean(values), min(values), max(values)))
    return sorted(shown)


def _draw(dataset: str, rows: Mapping[str, Row], found: Results, path: Path) -> None:
    """HR@10 and NDCG@10 over W, a line a model, as in the paper's figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(canvas)
    axes: Any = canvas.subplots(1, 2)
    for ax, metric in zip(axes, METRICS[2:], strict=True):
        for index, (model, title) in enumerate(MODELS.items()):
            shown = points(rows, found, model, metric)
            if shown:
                x, mean, low, high = (list(column) for column in zip(*shown, strict=True))
                spread = [
                    [m - s for m, s in zip(mean, low, strict=True)],
                    [b - m for m, b in zip(mean, high, strict=True)],
                ]
                ax.errorbar(x, mean, yerr=spread, marker="os"[index], capsize=3, label=title, color=f"C{index}")
                ax.set_xticks(x)
        ax.set(title=f"{TITLES[metric]} on {dataset}", xlabel="codewords per codebook, W")
        ax.grid(True, alpha=0.3)
        if ax.lines:
            ax.legend()
    canvas.savefig(path, dpi=110, metadata={"Software": None})
