"""The paper's study of the number of codewords W: table and figure."""

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.options import add_list
from benchmarks.paper.runs import METRICS, Results, Row, results_of
from benchmarks.paper.study import Study, cells, paper_settings, write_csv
from benchmarks.report import Panel, draw, markdown
from recbole_lisa.config.properties import properties_path
from recbole_lisa.config.schema import read_yaml

MODELS = {"LISASoft": "LISA-Soft", "LISAMini": "LISA-Mini"}
"""Model -> its name in the paper."""
_FINDINGS = (
    "The paper shows this study on Alibaba and Video Games, as a figure without numbers. In words: LISA-Mini improves "
    "with W on Alibaba and drops a bit at large W on Video Games; LISA-Soft is relatively stable on both."
)


def main(arguments: Sequence[str]) -> int:
    """`python -m benchmarks paper sensitivity --dataset=D`."""
    grid = read_yaml(properties_path() / "tuning" / "sensitivity.yaml")
    (n_codebooks,) = grid["n_codebooks"]
    study = Study("sensitivity", "Ranking metrics over the number of codewords W.", "n_codewords", "n_codebooks")
    study.parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="default both")
    add_list(study.parser, "codewords", grid["n_codewords"], "W")
    options = study.parse(arguments)
    rows = {
        f"{MODELS[model]}-{w}": Row(model, {"n_codebooks": n_codebooks, "n_codewords": w})
        for model in options.models
        for w in options.codewords
    }
    runs = study.runs_of(rows)
    n_failed = study.run(runs)
    write_page(study, rows, results_of(runs))
    return 1 if n_failed else 0


def write_page(study: Study, rows: Mapping[str, Row], results: Results) -> None:
    """Write sensitivity-<dataset>.md, .csv and .png."""
    table, plot = study.page.with_suffix(".csv"), study.page.with_suffix(".png")
    figures = [
        [row.model, row.settings["n_codewords"], run["seed"], *(run["test"][metric] for metric in METRICS)]
        for name, row in rows.items()
        for run in results[name]
    ]
    write_csv(table, ["model", "n_codewords", "seed", *METRICS], figures)
    draw([_panel(study.options.dataset, rows, results, metric) for metric in ("hit@10", "ndcg@10")], plot)
    lines = []
    for name, row in rows.items():
        runs = results[name]
        seeds = ", ".join(str(run["seed"]) for run in runs) or "-"
        sizes = [MODELS[row.model], str(row.settings["n_codewords"])]
        lines.append([*sizes, *cells([run["test"] for run in runs]), seeds])
    body = [markdown(["model", "W", *METRICS.values(), "seeds"], lines), ""]
    body += ["```bash", study.command(results), "```", "", _FINDINGS, ""]
    about = "Mean over the seeds, bars from the smallest to the largest:"
    body += [f"Each run is in [{table.name}]({table.name}). {about}", "", f"![HR@10 and NDCG@10 over W]({plot.name})"]
    study.write("the number of codewords", [*paper_settings(results), *body])


def _panel(dataset: str, rows: Mapping[str, Row], results: Results, metric: str) -> Panel:
    """Mean, smallest and largest figure over the seeds, a line a model."""
    series: dict[str, list[tuple[float, ...]]] = {}
    for name, row in rows.items():
        values = [run["test"][metric] for run in results[name]]
        if values:
            point = (row.settings["n_codewords"], statistics.mean(values), min(values), max(values))
            series.setdefault(MODELS[row.model], []).append(point)
    label = METRICS[metric]
    return Panel(f"{label} on {dataset}", "codewords per codebook, W", label, series, log=False)
