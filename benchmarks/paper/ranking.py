"""The ranking table: settings, table, the command of each row, and curves over the epochs."""

import statistics
from collections.abc import Sequence

from scipy.stats import spearmanr

from benchmarks.paper.runs import METRICS, ROWS, Results, paper_figures, results_of
from benchmarks.paper.study import Study, cells, paper_settings, write_csv
from benchmarks.report import Panel, draw, markdown


def main(arguments: Sequence[str]) -> int:
    """`python -m benchmarks paper ranking --dataset=D [--rows ...] [--seeds ...] [--key=value ...]`."""
    study = Study("ranking", "The paper's ranking table.")
    study.parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS, help="default all")
    runs = study.runs_of({name: ROWS[name] for name in study.parse(arguments).rows})
    n_failed = study.run(runs)
    write_page(study, results_of(runs))
    return 1 if n_failed else 0


def write_page(study: Study, results: Results) -> None:
    """Write <dataset>.md, <dataset>-curve.csv and <dataset>-curve.png."""
    dataset = study.options.dataset
    curve, plot = (study.page.with_name(f"{dataset}-curve{ending}") for ending in (".csv", ".png"))
    points = [
        [row, run["seed"], point["epoch"], *(point[name] for name in METRICS)]
        for row, runs in results.items()
        for run in runs
        for point in run["curve"]
    ]
    write_csv(curve, ["row", "seed", "epoch", *METRICS], points)
    draw([_panel(results, dataset, metric) for metric in ("hit@10", "ndcg@10")], plot)
    shared = [f"--dataset={dataset}", "--protocol=paper", *study.shared(), "--seed=SEED", "--result_file=r.json"]
    alone = [" ".join(["python run_recbole_lisa.py", *ROWS[row].arguments(), *shared]) for row in results]
    body = [_table(results, dataset), "", *_correlation(results, dataset)]
    body += ["The whole table, and each row alone (for every SEED):", ""]
    body += ["```bash", study.command(results, ROWS), *alone, "```", ""]
    about = "Test metrics every few epochs, for the curve only (nothing is chosen by them), are in"
    body += [f"{about} [{curve.name}]({curve.name}):", "", f"![HR@10 and NDCG@10 by epoch]({plot.name})"]
    study.write("the paper's protocol", [*paper_settings(results), *body])


def _table(results: Results, dataset: str) -> str:
    paper = paper_figures(dataset)
    lines = []
    for row, runs in results.items():
        each = [", ".join(str(run[key]) for run in runs) or "-" for key in ("seed", "epochs_run")]
        line = [row, *cells([run["test"] for run in runs]), *each]
        if row in paper:
            pairs = [(paper[row][name], [run["test"][name] for run in runs]) for name in ("hit@10", "ndcg@10")]
            differences = ", ".join(f"{statistics.mean(ours) - figure:+.4f}" for figure, ours in pairs if ours)
            line += [", ".join(f"{figure:.4f}" for figure, _ in pairs), differences or "-"]
        elif paper:
            line += ["not in the paper", "-"]
        lines.append(line)
    more = ["paper: HR@10, NDCG@10", "difference"] if paper else []
    return markdown(["row", *METRICS.values(), "seeds", "epochs", *more], lines)


def _correlation(results: Results, dataset: str) -> list[str]:
    """A paragraph about the order of the finished rows beside the paper's, from three rows on."""
    paper = paper_figures(dataset)
    rows = [row for row, runs in results.items() if runs and row in paper]
    if len(rows) < 3:
        return []
    texts = []
    for metric in ("hit@10", "ndcg@10"):
        ours = [statistics.mean(run["test"][metric] for run in results[row]) for row in rows]
        correlation = spearmanr(ours, [paper[row][metric] for row in rows])
        texts.append(f"{correlation.statistic:.2f} by {METRICS[metric]} (p = {correlation.pvalue:.2g})")
    return [f"Rank correlation (Spearman) of these {len(rows)} rows with the paper's: {', '.join(texts)}.", ""]


def _panel(results: Results, dataset: str, metric: str) -> Panel:
    """Mean over the seeds by epoch; the paper's figure as a dotted line."""
    series = {}
    for row, runs in results.items():
        curves = [{point["epoch"]: point[metric] for point in run["curve"]} for run in runs if run["curve"]]
        epochs = sorted(set.intersection(*map(set, curves))) if curves else []
        if epochs:
            series[row] = [(epoch, statistics.mean(curve[epoch] for curve in curves)) for epoch in epochs]
    levels = {row: figures[metric] for row, figures in paper_figures(dataset).items()}
    title = f"{METRICS[metric]} on {dataset}" + (" (dotted: the paper)" if levels else "")
    return Panel(title, "epoch", METRICS[metric], series, log=False, levels=levels)
