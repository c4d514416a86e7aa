"""The paper's table of migrated codebooks: LISA-Base on those of a vanilla Transformer, beside both."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.paper.page import MARK, TITLES, Results, cell, head, kept_notes, write_text
from benchmarks.paper.paper import METRICS
from benchmarks.paper.ranking import Job, results
from recbole_lisa.saved import load_data_and_model
from recbole_lisa.training.evaluation import evaluate

MIGRATED = "migrated, trained further"
PAPER = {
    "alibaba": (0.6697, 0.5492, 0.7711, 0.5821),
    "ml-1m": (0.7002, 0.5456, 0.7945, 0.5763),
    "amazon-video-games-18": (0.6188, 0.4800, 0.7333, 0.5172),
    "ml-25m": (0.9287, 0.7991, 0.9725, 0.8135),
}
"""Data set -> HR@5, NDCG@5, HR@10, NDCG@10 of the paper."""

_START = "migrated.pth"


def migration_jobs(sources: Sequence[Job], row: str, settings: Mapping[str, str]) -> list[Job]:
    """`recbole-lisa migrate` for every finished run of `row`, trained further for as many epochs as its source.

    Args:
        sources: Runs, of which those of `row` are Transformers on quantised items.
        row: Their row.
        settings: Of all runs; `epochs` is the source's where it is not among them.
    """
    made = []
    finished_runs = {run["seed"]: run for run in results(sources)[row]}
    for job in (job for job in sources if job.row == row and job.seed in finished_runs):
        run = finished_runs[job.seed]
        epochs = settings.get("epochs", str(run["config"]["epochs"]))
        options = [f"--checkpoint={run['checkpoint']}", f"--output={_START}", f"--epochs={epochs}"]
        made.append(Job(MIGRATED, job.seed, options, job.folder.with_name(f"migrated-{job.seed}"), "migrate"))
    return made


def migration_page(
    dataset: str, found: Results, moved: Sequence[Job], settings: Sequence[str], folder: Path
) -> list[Path]:
    """Write migration-<dataset>.md.

    Args:
        dataset: data set name.
        found: row -> results of its seeds.
        moved: the runs of `migration_jobs`; their LISA-Base before further training is tested here.
        settings: words of the command line that all runs share.
        folder: where to.

    Returns:
        The file.
    """
    before = [_test(job.folder / _START) for job in moved if (job.folder / _START).is_file()]
    figures = {row: [run["test"] for run in runs] for row, runs in found.items()}
    rows = {**figures, "migrated, no further training": before}
    lines = head(f"{dataset}, migrated codebooks", found)
    lines += [f"| row | {' | '.join(TITLES.values())} | runs |", "|" + "---|" * (len(TITLES) + 2)]
    for row, tests in rows.items():
        cells = [cell([test[name] for test in tests]) for name in METRICS]
        lines.append(f"| {' | '.join([row, *cells, str(len(tests))])} |")
    if dataset in PAPER:
        lines.append(f"| the paper, migrated | {' | '.join(f'{figure:.4f}' for figure in PAPER[dataset])} | - |")
    seeds = " ".join(map(str, sorted({run["seed"] for runs in found.values() for run in runs})))
    words = f"python -m benchmarks paper migration --dataset={dataset} --seeds {seeds} {' '.join(settings)}".rstrip()
    page = folder / f"migration-{dataset}.md"
    notes = kept_notes(page)
    write_text(page, "\n".join([*lines, "", "```bash", words, "```", "", f"{MARK}{notes or chr(10)}"]))
    return [page]


def _test(path: Path) -> dict[str, float]:
    config, model, _, _, _, test = load_data_and_model(path, config_dict={"use_gpu": False})
    return evaluate(model, test, config)
