"""All mechanisms with the recipe `modern` in full ranking: metrics beside seconds an epoch and memory of a layer."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.paper.runs import ROWS, Results, Row, results_of
from benchmarks.paper.study import Study, cells, write_csv
from benchmarks.report import Panel, draw, markdown
from benchmarks.rows import SDPA
from recbole_lisa.errors import UsageError

SETTINGS = {"recipe": "modern", "eval_seen": "both", "valid_metric": "NDCG@10_masked", "eval_step": 2}
METRICS = {
    "hit@10": "HR@10 ranked",
    "ndcg@10": "NDCG@10 ranked",
    "hit@10_masked": "HR@10 masked",
    "ndcg@10_masked": "NDCG@10 masked",
}
"""Name in a result -> column."""
MODERN_ROWS = {
    name: Row(row.model, {**row.settings, **SETTINGS})
    for name, row in {**ROWS, **{name: Row(name, {}) for name in ("HSTU", "LRURec", "Mamba2Rec", "RecGRELA")}}.items()
}
LAYERS = {
    "Transformer": SDPA,
    "LSH-1": "Reformer LSH-1",
    "LSH-4": "Reformer LSH-4",
    "LISA-Base": "LISA-1024",
    "LISA-Soft": "LISA-128 soft",
    "LISA-Mini": "LISA-256",
    "Linear": "LinearTransformer",
    "LRURec": "LRU",
    "Mamba2Rec": "Mamba-2",
    "RecGRELA": "GRELA",
}
"""Row -> its row in the file of `python -m benchmarks memory`, where the names differ."""
_LENGTH = 4096
_ABOUT = (
    "The last item of each user is the test target, the one before it the validation target; all items are ranked. "
    "*Ranked*: seen items take part. *Masked*: the items of the user's history are left out. Every row has the "
    "settings of `properties/recipe/modern.yaml`, and is tested at the epoch with the best NDCG@10 masked of the "
    "validation set. `local_window` of the recipe is a setting of LISA alone."
)


def main(arguments: Sequence[str]) -> int:
    """`python -m benchmarks paper modern --dataset=D [--rows ...] [--memory FILE]`."""
    study = Study("modern", "All mechanisms with the recipe `modern`.", *SETTINGS, protocol="full_ranking")
    study.parser.add_argument("--rows", nargs="+", default=list(MODERN_ROWS), choices=MODERN_ROWS, help="default all")
    memory = "results of `python -m benchmarks memory`"
    study.parser.add_argument("--memory", default="results/memory-cpu.json", metavar="FILE", help=memory)
    runs = study.runs_of({name: MODERN_ROWS[name] for name in study.parse(arguments).rows})
    peaks = read_peaks(study.options.memory)
    n_failed = study.run(runs)
    write_page(study, results_of(runs), peaks)
    return 1 if n_failed else 0


def read_peaks(path: str) -> dict[str, float]:
    """Row of the memory benchmark -> peak MB of a layer and a sequence at L = 4,096; raises UsageError."""
    try:
        rows = json.loads(Path(path).read_bytes())["rows"]
        return {r["row"]: r["peak_mb"] / r["n"] for r in rows if r["length"] == _LENGTH and r["status"] == "ok"}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"'{path}' is no result of `python -m benchmarks memory`: name one by --memory") from error


def write_page(study: Study, results: Results, peaks: Mapping[str, float]) -> None:
    """Write modern-<dataset>.md, .csv with each run, and .png."""
    table, plot = study.page.with_suffix(".csv"), study.page.with_suffix(".png")
    finished = {row: runs for row, runs in results.items() if runs}
    figures = [
        [row, *(run[name] for name in ("seed", "best_epoch", "epochs_run")), *(run["test"][name] for name in METRICS)]
        for row, runs in finished.items()
        for run in runs
    ]
    write_csv(table, ["row", "seed", "best_epoch", "epochs_run", *METRICS], figures)
    seconds = {row: _mean(runs, lambda run: run["seconds_per_epoch"]) for row, runs in finished.items()}
    layers = {row: peaks[LAYERS.get(row, row)] for row in finished if LAYERS.get(row, row) in peaks}
    costs = {"seconds an epoch": seconds, f"MB of one layer and one sequence, L = {_LENGTH:,}": layers}
    draw([_panel(study.options.dataset, finished, x, label) for label, x in costs.items()], plot)
    lines = []
    for row, runs in results.items():
        epochs = ", ".join(f"{run['epochs_run']} ({run['best_epoch']})" for run in runs) or "-"
        seeds = ", ".join(str(run["seed"]) for run in runs) or "-"
        cost = [f"{x[row]:.{digits}f}" if row in x else "-" for x, digits in ((seconds, 1), (layers, 2))]
        lines.append([row, *cells([run["test"] for run in runs], METRICS), seeds, epochs, *cost])
    columns = ["row", *METRICS.values(), "seeds", "epochs (best)", "s an epoch", f"MB, L = {_LENGTH:,}"]
    shared = [f"--dataset={study.options.dataset}", "--protocol=full_ranking", *study.shared(), "--seed=SEED"]
    alone = [" ".join(["python run_recbole_lisa.py", *MODERN_ROWS[row].arguments(), *shared]) for row in results]
    body = [_ABOUT, "", markdown(columns, lines), "", "The whole table, and each row alone (for every SEED):", ""]
    body += [
        "```bash",
        study.command(results, MODERN_ROWS),
        *alone,
        "```",
        "",
        f"Each run is in [{table.name}]({table.name}).",
    ]
    body += ["", f"![NDCG@10 masked over seconds and memory]({plot.name})"]
    study.write("the recipe modern", body)


def _panel(dataset: str, finished: Results, x: Mapping[str, float], label: str) -> Panel:
    """A point for each row: its cost, and NDCG@10 of the masked ranking."""
    points = {row: [(x[row], _mean(finished[row], lambda run: run["test"]["ndcg@10_masked"]))] for row in x}
    return Panel(f"NDCG@10 masked on {dataset}", label, "NDCG@10 masked", points, log=False)


def _mean(runs: Sequence[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> float:
    return statistics.mean(map(value, runs))
