"""The files of a finished search: results.csv, results.json, best.yaml and, with matplotlib, results.png."""

import json
import shlex
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from recbole_lisa.environment import versions
from recbole_lisa.errors import UsageError
from recbole_lisa.files import atomic_writer
from recbole_lisa.saved import load_data_and_model
from recbole_lisa.training.checkpoint_file import LAST_SUFFIX
from recbole_lisa.training.evaluation import evaluate
from recbole_lisa.tuning.trial import build_config

Row = dict[str, Any]
_COLUMNS = 3
_LOG_RATIO = 20
_COLOURS = {"finished": "C0", "stopped": "C7", "failed": "C3"}


def trial_row(result: Any, number: int, keys: Sequence[str], seed: int) -> Row:
    """Row `number` of the results, from Ray's `result`; `keys` are those searched, `seed` is that of the search."""
    last, files = result.metrics or {}, []
    config = json.loads((Path(result.path) / "params.json").read_text(encoding="utf-8"))
    if result.checkpoint is not None:
        with result.checkpoint.as_directory() as folder:
            files = [str(path) for path in Path(folder).glob("*.pth") if not path.name.endswith(LAST_SUFFIX)]
    return {
        "trial": number,
        "status": "failed" if result.error else "finished" if last.get("finished") else "stopped",
        "settings": {key: config[key] for key in keys},
        "seed": config.get("seed", seed),
        "epochs": last.get("epoch", 0),
        "best_epoch": last.get("best_epoch"),
        "valid": last.get("best"),
        "score": last.get("score"),
        "seconds": last.get("time_total_s", 0.0),
        "node": last.get("hostname"),
        "best_file": files[0] if files else None,
        "problem": str(result.error).strip().splitlines()[-1] if result.error else None,
    }


def conclude(rows: Sequence[Row], fixed: Mapping[str, Any], folder: Path, valid_metric: str) -> int:
    """Test the best trial, print the table and write the files; the exit status is 1 when a trial failed."""
    scored = [row for row in rows if row["score"] is not None]
    if not scored:
        raise UsageError(f"no trial reached a validation: {'; '.join(sorted({str(row['problem']) for row in rows}))}")
    best = max(scored, key=lambda row: (row["score"], -row["trial"]))
    test, note = check_best(best["best_file"])
    command = ["recbole-lisa", "-m", fixed["model"], "-d", fixed["dataset"], "--config_files", folder / "best.yaml"]
    document = {
        "search": json.loads((folder / "search.json").read_bytes()),
        "best": {**best, "test": test, "test_note": note, "command": shlex.join(map(str, command))},
        "default": rows[0],
        "trials": list(rows),
        "seconds": sum(row["seconds"] for row in rows),
        "versions": versions(),
    }
    print(summary(document, valid_metric))
    for path in write_results(document, best_settings(fixed, best["settings"]), folder, valid_metric):
        print(path)
    return int(any(row["status"] == "failed" for row in rows))


def check_best(best_file: str | None) -> tuple[dict[str, float] | None, str | None]:
    """Test the best trial. Returns its test metrics and None, or None and the reason why there are none."""
    if best_file is None or not Path(best_file).is_file():
        return None, f"checkpoint '{best_file}' is not on this machine: let --storage be a folder that all nodes share"
    try:
        config, model, _, _, _, test = load_data_and_model(best_file)
    except UsageError as error:
        return None, str(error)
    return (evaluate(model, test, config), None) if test else (None, "no history has a test item")


def best_settings(fixed: Mapping[str, Any], searched: Mapping[str, Any]) -> dict[str, Any]:
    """All settings that differ from the defaults: those of the user's files and command line, and the searched ones."""
    config = build_config({**fixed, **searched})
    return {"protocol": config["protocol"], **config.external_config_dict}


def results_table(document: Mapping[str, Any]) -> pd.DataFrame:
    """One row per trial: settings, validation metrics of its best epoch; test metrics for the best trial only."""
    best, rows = document["best"], []
    for row in document["trials"]:
        phases = {"valid": row["valid"] or {}, "test": (row["trial"] == best["trial"] and best["test"]) or {}}
        metrics = {f"{phase} {name}": phases[phase].get(name) for phase in phases for name in best["valid"]}
        rest = {key: row[key] for key in ("seed", "epochs", "best_epoch")}
        ends = {"seconds": round(row["seconds"], 2), "node": row["node"]}
        rows.append({"trial": row["trial"], "status": row["status"], **row["settings"], **rest, **metrics, **ends})
    table: pd.DataFrame = pd.DataFrame(rows)
    table["best_epoch"] = table["best_epoch"].astype("Int64")  # a trial without a validation has none
    return table


def write_results(document: Mapping[str, Any], best: Mapping[str, Any], folder: Path, valid_metric: str) -> list[Path]:
    """Write all files of a search: `document` is results.json, `best` best.yaml. Returns the files."""
    trial = document["best"]
    head = f"# Trial {trial['trial']} with {valid_metric} {trial['score']:.4f} on the validation items"
    texts = {
        "results.csv": results_table(document).to_csv(index=False),
        "results.json": json.dumps(document, indent=2) + "\n",
        "best.yaml": f"{head}\n# {trial['command']}\n" + yaml.safe_dump(dict(best), sort_keys=False),
    }
    for name, text in texts.items():
        with atomic_writer(folder / name) as stream:
            stream.write(text.encode())
    files = [folder / name for name in texts]
    if find_spec("matplotlib") is not None:
        files.append(folder / "results.png")
        draw_search(document["trials"], valid_metric, files[-1])
    return files


def summary(document: Mapping[str, Any], valid_metric: str) -> str:
    """The last lines of a search: trials from best to worst, the best and the default, the test metrics."""
    best, default = document["best"], document["default"]["score"]
    keys = ["trial", "status", "epochs", f"valid {valid_metric.lower()}", "seconds", *best["settings"]]
    ranked = results_table(document)[keys].sort_values([keys[3], "trial"], ascending=[False, True])
    lines = [ranked.to_string(index=False, na_rep="-", float_format=lambda value: f"{value:.4g}")]
    lines += [f"trial {row['trial']} failed: {row['problem']}" for row in document["trials"] if row["problem"]]
    trial0 = "" if default is None else f", the default (trial 0) {default:.4f}"
    lines.append(f"best: trial {best['trial']} with {valid_metric} {best['score']:.4f} on the validation items{trial0}")
    test = ", ".join(f"{name} {value:.4f}" for name, value in (best["test"] or {}).items())
    lines.append(f"its test metrics: {test}" if test else f"no test metrics: {best['test_note']}")
    return "\n".join([*lines, f"train it again: {best['command']}"])


def draw_search(trials: Sequence[Mapping[str, Any]], valid_metric: str, path: Path) -> None:
    """Draw a PNG file: the metric of each `trial_row` against each setting, and the best value so far."""
    from matplotlib.figure import Figure

    scored = [trial for trial in trials if trial["score"] is not None]
    numbers, scores = [trial["trial"] for trial in scored], [trial["score"] for trial in scored]
    settings = {key: [trial["settings"][key] for trial in scored] for key in scored[0]["settings"]}
    n_rows = -(-(1 + len(settings)) // _COLUMNS)
    figure = Figure(figsize=(4.2 * _COLUMNS, 3.4 * n_rows), layout="constrained")
    axes = figure.subplots(n_rows, _COLUMNS, squeeze=False).flatten()
    axes[0].step(numbers, [max(scores[: count + 1]) for count in range(len(scores))], where="post", color="C2")
    for (key, values), ax in zip({"trial": numbers, **settings}.items(), axes, strict=False):
        is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        positions = values if is_number else [str(value) for value in values]
        ax.scatter(positions, scores, c=[_COLOURS[trial["status"]] for trial in scored])
        if is_number and min(values) > 0 and max(values) >= _LOG_RATIO * min(values):
            ax.set_xscale("log")
        ax.set(xlabel=key, ylabel=f"{valid_metric}, validation")
        ax.grid(True, alpha=0.3)
    for ax in axes[1 + len(settings) :]:
        ax.remove()
    figure.suptitle("blue: finished, grey: stopped early, red: failed; line: best so far", fontsize=9)
    figure.savefig(path, dpi=110, metadata={"Software": None})
