"""What a search leaves behind: results.csv, results.json, best.yaml and, with matplotlib, results.png."""

import csv
import io
import json
import shlex
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from recbole_lisa.environment import versions
from recbole_lisa.errors import UsageError
from recbole_lisa.files import atomic_writer
from recbole_lisa.saved import load_data_and_model
from recbole_lisa.training.evaluation import evaluate
from recbole_lisa.tuning.live import settings_text
from recbole_lisa.tuning.plots import draw_search
from recbole_lisa.tuning.record import Record, Trial

Metrics = Mapping[str, float]


def check_best(trial: Trial, surroundings: Mapping[str, Any]) -> tuple[dict[str, float] | None, str | None]:
    """Test the best epoch of the best trial: the only look at the test items that a search takes.

    Args:
        trial: With reports.
        surroundings: Settings for the evaluation, see `trial.surroundings`.

    Returns:
        The test metrics, and why there are none.
    """
    path = trial.reports[-1]["best_file"]
    if not Path(path).is_file():
        return None, f"'{path}' cannot be seen from here: let --storage be a folder of all nodes"
    try:
        config, model, _, _, _, test = load_data_and_model(path, config_dict=surroundings)
    except UsageError as error:
        return None, str(error)
    return (evaluate(model, test, config), None) if test else (None, "no history has a test item")


def describe(
    record: Record, test: Metrics | None, *, epochs: int, seed: int, note: str | None = None
) -> dict[str, Any]:
    """All that is known of a search, as JSON can hold it.

    Args:
        record: Of the search; one trial at least has a report.
        test: Test metrics of the best trial.
        epochs: The most epochs of a trial.
        seed: Of every trial, and of the draws.
        note: Why there are no test metrics.

    Returns:
        `search` (the request), `best` with its `test` and the command that trains it, `default` (trial 0), `trials`,
        and `seconds`, the sum over the trials.
    """
    best = record.best()
    assert best is not None
    trials = [_row(trial, seed) for trial in record.trials.values()]
    return {
        "search": record.request,
        "best": {**trials[best.number], "test": test, "test_note": note, "command": command(record, best, epochs)},
        "default": trials[0],
        "trials": trials,
        "seconds": sum(trial.seconds for trial in record.trials.values()),
        "versions": versions(),
    }


def _row(trial: Trial, seed: int) -> dict[str, Any]:
    last = trial.reports[-1] if trial.reports else {}
    return {
        "trial": trial.number,
        "status": trial.status,
        "settings": trial.settings,
        "seed": trial.settings.get("seed", seed),
        "epochs": last.get("epoch", 0),
        "best_epoch": last.get("best_epoch"),
        "valid": last.get("valid"),
        "score": trial.score,
        "seconds": trial.seconds,
        "nodes": sorted({report["node"] for report in trial.reports}),
        "best_file": last.get("best_file"),
        "problem": trial.problem,
    }


def command(record: Record, trial: Trial, epochs: int) -> str:
    """The words that train one trial again."""
    request = record.request
    words = ["recbole-lisa", "-m", request["model"], "-d", request["dataset"]]
    if request["protocol"] is not None:
        words.append(f"--protocol={request['protocol']}")
    if request["config_files"]:
        words += ["--config_files", *request["config_files"]]
    settings = {"epochs": epochs, **request["settings"], **trial.settings}
    return shlex.join([*words, *(f"--{key}={_as_word(value)}" for key, value in settings.items())])


def _as_word(value: Any) -> str:
    return value if isinstance(value, str) else "~" if value is None else json.dumps(value)


def results_csv(document: Mapping[str, Any]) -> str:
    """One row a trial: settings, validation metrics of its best epoch, test metrics of the best trial alone."""
    trials, best = document["trials"], document["best"]
    keys = list(trials[0]["settings"])
    metrics = list(best["valid"])
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    valid, tested = [f"valid {name}" for name in metrics], [f"test {name}" for name in metrics]
    head = ["trial", "status", *keys, "seed", "epochs", "best_epoch", *valid, *tested, "seconds", "nodes"]
    writer.writerow(head)
    for row in trials:
        test = (best["test"] or {}) if row["trial"] == best["trial"] else {}
        writer.writerow(
            [
                *(row["trial"], row["status"]),
                *(row["settings"][key] for key in keys),
                *(row["seed"], row["epochs"], row["best_epoch"]),
                *((row["valid"] or {}).get(name, "") for name in metrics),
                *(test.get(name, "") for name in metrics),
                *(round(row["seconds"], 2), " ".join(row["nodes"])),
            ]
        )
    return text.getvalue()


def write_results(document: Mapping[str, Any], folder: Path, valid_metric: str) -> list[Path]:
    """Write all files of a search.

    Args:
        document: See `describe`.
        folder: Where to.
        valid_metric: What the trials are compared by.

    Returns:
        The files; without matplotlib there is no plot.
    """
    texts = {
        "results.csv": results_csv(document),
        "results.json": json.dumps(document, indent=2) + "\n",
        "best.yaml": f"# Trial {document['best']['trial']}: --config_files {folder / 'best.yaml'}\n"
        + yaml.safe_dump(document["best"]["settings"], sort_keys=False),
    }
    for name, text in texts.items():
        with atomic_writer(folder / name) as stream:
            stream.write(text.encode())
    files = [folder / name for name in texts]
    if find_spec("matplotlib") is not None:
        files.append(folder / "results.png")
        draw_search(document["trials"], valid_metric, files[-1])
    return files


def summary(record: Record, document: Mapping[str, Any], valid_metric: str) -> list[str]:
    """The lines that end a search: trials from best to worst, the best one beside the default, its test metrics."""
    order = sorted(record.trials.values(), key=lambda trial: (-(trial.score or -1.0), trial.number))
    lines = [f"{'trial':>5}  {'status':<8}  {'epochs':>6}  {valid_metric + ' (valid)':>17}  {'seconds':>7}  settings"]
    for trial in order:
        score = "-" if trial.score is None else f"{trial.score:.4f}"
        epochs = trial.reports[-1]["epoch"] if trial.reports else 0
        lines.append(
            f"{trial.number:>5}  {trial.status:<8}  {epochs:>6}  {score:>17}  {trial.seconds:>7.1f}  "
            f"{settings_text(trial)}{' (default)' if trial.number == 0 else ''}"
        )
        if trial.problem:
            lines.append(f"       {trial.problem}")
    best, default = document["best"], document["default"]["score"]
    beside = "" if default is None else f", the default {default:.4f}"
    lines.append(f"best: trial {best['trial']} with {valid_metric} {best['score']:.4f} on the validation items{beside}")
    if best["test"] is None:
        lines.append(f"no test metrics: {best['test_note']}")
    else:
        lines.append("its test metrics: " + ", ".join(f"{name} {value:.4f}" for name, value in best["test"].items()))
    return [*lines, f"train it again: {best['command']}"]
