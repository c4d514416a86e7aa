"""The page of a data set: settings, table, commands, curves; what is written by hand below the mark stays."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.paper.paper import METRICS, ROWS, paper_figures
from recbole_lisa.files import atomic_writer

TITLES = {"hit@5": "HR@5", "ndcg@5": "NDCG@5", "hit@10": "HR@10", "ndcg@10": "NDCG@10"}
MARK = "<!-- Below this line the page is written by hand; above it `python -m benchmarks paper ranking` writes. -->"
Results = Mapping[str, Sequence[Mapping[str, Any]]]


def write_page(dataset: str, found: Results, settings: Sequence[str], folder: Path) -> list[Path]:
    """Write <dataset>.md, <dataset>-curve.csv and <dataset>-curve.png.

    Args:
        dataset: data set name.
        found: row -> results of its seeds; a row without any is shown as not run.
        settings: words of the command line that all runs share.
        folder: where to.

    Returns:
        The files.
    """
    page, table, plot = folder / f"{dataset}.md", folder / f"{dataset}-curve.csv", folder / f"{dataset}-curve.png"
    notes = kept_notes(page)
    text = "\n".join(
        [
            *head(f"{dataset}, the paper's protocol", found),
            *_table(dataset, found),
            *_commands(dataset, found, settings),
        ]
    )
    write_text(table, _curves(found))
    _draw(dataset, found, plot)
    write_text(
        page,
        f"{text}\n\nTest metrics every few epochs, for the curve only (nothing is chosen by them), are in "
        f"[{table.name}]({table.name}):\n\n![HR@10 and NDCG@10 by epoch]({plot.name})\n\n{MARK}{notes or chr(10)}",
    )
    return [page, table, plot]


def kept_notes(page: Path) -> str:
    """What is written by hand in a page that is there, see MARK."""
    return page.read_text(encoding="utf-8").partition(MARK)[2] if page.exists() else ""


def write_text(path: Path, text: str) -> None:
    """Write a text file, complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_writer(path) as stream:
        stream.write(text.encode())


def head(title: str, found: Results) -> list[str]:
    """The title, and the settings that all runs share."""
    runs = [run for row in found.values() for run in row]
    lines = [f"# {title}", ""]
    if not runs:
        return [*lines, "No run has finished.", ""]
    config = runs[0]["config"]
    negatives = config["train_neg_sample_args"]
    versions = sorted({f"torch {run['versions']['torch']} on {run['device']}" for run in runs})
    return [
        *lines,
        "The last item of each user is ranked among 100 items that the user never met (drawn once a seed), everything "
        "before it trains, every position is supervised. "
        f"Windows of at most {config['MAX_ITEM_LIST_LENGTH']} items, {config['loss_type']} with "
        f"{negatives['sample_num']} {negatives['distribution']} negative, Adam {config['learning_rate']} with betas "
        f"{tuple(config['adam_betas'])}, batches of {config['train_batch_size']} windows, {config['epochs']} epochs, "
        "the last epoch is tested; everything else as in `properties/`. " + "; ".join(versions) + ".",
        "",
        "Mean over the seeds, the range (largest minus smallest) in brackets.",
        "",
    ]


def _table(dataset: str, found: Results) -> list[str]:
    paper = paper_figures(dataset)
    columns = ["row", *TITLES.values(), "seeds"]
    if paper:
        columns += ["paper: HR@10, NDCG@10", "difference"]
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for row, runs in found.items():
        cells = [row, *(cell([run["test"][name] for run in runs]) for name in METRICS)]
        cells.append(", ".join(str(run["seed"]) for run in runs) or "-")
        if row in paper:
            hit, ndcg = paper[row][2:]
            ours = [statistics.mean(run["test"][name] for run in runs) for name in METRICS[2:]] if runs else []
            cells += [f"{hit:.4f}, {ndcg:.4f}", f"{ours[0] - hit:+.4f}, {ours[1] - ndcg:+.4f}" if runs else "-"]
        elif paper:
            cells += ["not in the paper", "-"]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def cell(values: Sequence[float]) -> str:
    """Mean over the seeds, with the range where there are several."""
    if not values:
        return "not run"
    spread = f" [{max(values) - min(values):.4f}]" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"


def _commands(dataset: str, found: Results, settings: Sequence[str]) -> list[str]:
    shared = " ".join([f"--dataset={dataset}", "--protocol=paper", *settings, "--seed=SEED", "--result_file=r.json"])
    seeds = " ".join(map(str, sorted({run["seed"] for runs in found.values() for run in runs})))
    return [
        "The whole table, and each row alone (for every SEED):",
        "",
        "```bash",
        f"python -m benchmarks paper ranking --dataset={dataset} --seeds {seeds} {' '.join(settings)}".rstrip(),
        *(f"python run_recbole_lisa.py {' '.join(ROWS[row].options())} {shared}" for row in found),
        "```",
    ]


def _curves(found: Results) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "seed", "epoch", *METRICS])
    for row, runs in found.items():
        for run in runs:
            for point in run["curve"]:
                writer.writerow([row, run["seed"], point["epoch"], *(point[name] for name in METRICS)])
    return text.getvalue()


def _draw(dataset: str, found: Results, path: Path) -> None:
    """Mean over the seeds by epoch, the paper's figure as a dotted line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    paper = paper_figures(dataset)
    canvas = Figure(figsize=(13, 5), layout="constrained")
    FigureCanvasAgg(canvas)
    shown = [row for row in found if any(run["curve"] for run in found[row])]
    axes = canvas.subplots(1, 2)
    for ax, name in zip(axes, METRICS[2:], strict=True):
        for index, row in enumerate(shown):
            style = {"color": f"C{index % 10}", "linestyle": ("-", "--")[index // 10]}
            curves = [{point["epoch"]: point[name] for point in run["curve"]} for run in found[row] if run["curve"]]
            epochs = sorted(set.intersection(*(set(curve) for curve in curves)))
            ax.plot(epochs, [statistics.mean(c[e] for c in curves) for e in epochs], label=row, **style)
            if row in paper:
                ax.axhline(paper[row][METRICS.index(name)], color=style["color"], linestyle=":", linewidth=0.8)
        ax.set(title=f"{TITLES[name]} on {dataset}" + (" (dotted: the paper)" if paper else ""), xlabel="epoch")
        ax.grid(True, alpha=0.3)
    canvas.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    canvas.savefig(path, dpi=110, metadata={"Software": None})
