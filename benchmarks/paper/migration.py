"""The paper's table of migrated codebooks: LISA-Base on those of a vanilla Transformer, beside both."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.paper.runs import METRICS, ROWS, Results, Row, Run, results_of
from benchmarks.paper.study import Study, cells, paper_settings
from benchmarks.report import markdown
from recbole_lisa.saved import load_data_and_model
from recbole_lisa.training.evaluation import evaluate

SOURCE, MIGRATED = "Transformer, quantised", "migrated, trained further"
PAPER = {
    "alibaba": ("0.6697", "0.5492", "0.7711", "0.5821"),
    "ml-1m": ("0.7002", "0.5456", "0.7945", "0.5763"),
    "amazon-video-games-18": ("0.6188", "0.4800", "0.7333", "0.5172"),
    "ml-25m": ("0.9287", "0.7991", "0.9725", "0.8135"),
}
"""Data set -> HR@5, NDCG@5, HR@10, NDCG@10 of the paper."""
_START = "migrated.pth"


def main(arguments: Sequence[str]) -> int:
    """`python -m benchmarks paper migration --dataset=D`."""
    study = Study("migration", "LISA-Base on the frozen codebooks of a vanilla Transformer.", "quantize_items")
    study.parse(arguments)
    sources = study.runs_of({"LISA-Base": ROWS["LISA-Base"], SOURCE: Row("Transformer", {"quantize_items": True})})
    n_failed = study.run(sources)
    results = results_of(sources)
    folders = {run.seed: run.folder.with_name(f"migrated-{run.seed}") for run in sources}
    migrated = []
    for source in results[SOURCE]:  # trained further for as many epochs as the source by default
        epochs = study.settings.get("epochs", source["config"]["epochs"])
        more = [f"--checkpoint={source['checkpoint']}", f"--output={_START}", f"--epochs={epochs}"]
        migrated.append(Run(MIGRATED, source["seed"], more, folders[source["seed"]], "migrate"))
    n_failed += study.run(migrated)
    write_page(study, results | {MIGRATED: results_of(migrated).get(MIGRATED, [])}, migrated)
    return 1 if n_failed else 0


def write_page(study: Study, results: Results, migrated: Sequence[Run]) -> None:
    """Write migration-<dataset>.md; the migrated models before further training are tested here."""
    tests = {row: [run["test"] for run in runs] for row, runs in results.items()}
    starts = [run.folder / _START for run in migrated]
    tests["migrated, no further training"] = [_test(path) for path in starts if path.is_file()]
    lines = [[row, *cells(metrics), str(len(metrics))] for row, metrics in tests.items()]
    if study.options.dataset in PAPER:
        lines.append(["the paper, migrated", *PAPER[study.options.dataset], "-"])
    table = markdown(["row", *METRICS.values(), "runs"], lines)
    body = [*paper_settings(results), table, "", "```bash", study.command(results), "```"]
    study.write("migrated codebooks", body)


def _test(checkpoint: Path) -> dict[str, float]:
    config, model, _, _, _, test = load_data_and_model(checkpoint, config_dict={"use_gpu": False})
    return evaluate(model, test, config)
