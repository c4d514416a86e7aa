"""The result of a run: one dictionary, the same in the program, in the result file and in the table.

The file by users has the metrics of each held-out item, a row each: the mean of a column is the metric of the
evaluation, before rounding.
"""

import json
import math
from collections.abc import Mapping
from logging import getLogger
from pathlib import Path
from typing import Any

import pandas as pd
from recbole.config import Config
from recbole.evaluator.base_metric import TopkMetric
from recbole.evaluator.register import metrics_dict

from recbole_lisa.config.query_time import protocol_name
from recbole_lisa.data.dataloader import EvalLoader
from recbole_lisa.distributed.processes import n_processes
from recbole_lisa.environment import peak_gpu_memory_mb, peak_memory_mb, versions
from recbole_lisa.files import atomic_writer
from recbole_lisa.training.logging import metric_text
from recbole_lisa.training.trainer import LISATrainer


def collect_result(
    trainer: LISATrainer, test_metrics: dict[str, float] | None, *, seconds: float, log_file: Path
) -> dict[str, Any]:
    """Describe a finished run by plain values.

    `valid` holds the metrics of the best epoch (None without validation), `test` those of the test phase (None without
    test targets, null in the file), `tied_targets` the fraction of test targets that have the score of another item;
    `best_epoch` counts from 1 and is the last one without validation; `seconds` is the wall time, data and evaluation
    included; `loss` holds the mean training loss of each epoch; `seconds_per_epoch` is the mean over all epochs,
    training alone, `sequences_per_second` the windows (prefixes under `last_position`) trained in that time; `nproc` is
    the number of processes, and memory that of the first of them; `codebooks` holds used codewords and perplexity of
    every codebook by epoch; `valid_curve` the validation metrics by epoch; `curve` the test metrics every `test_step`
    epochs. A resumed run counts the epochs before the interruption, too.
    """
    config, history, users_file = trainer.config, trainer.history, trainer.config["per_user_file"]
    trained = sum(epoch["seconds"] for epoch in history)
    return {
        **{key: config[key] for key in ("model", "dataset", "protocol", "eval_seen", "seed")},
        "protocol": protocol_name(config),
        "valid": trainer.best_valid_result,
        "test": test_metrics,
        "tied_targets": None if test_metrics is None else trainer.tied_targets,
        "best_epoch": len(history) if trainer.best_epoch is None else trainer.best_epoch + 1,
        "epochs_run": len(history),
        "seconds": seconds,
        "seconds_per_epoch": trained / len(history) if history else None,
        "nproc": n_processes(),
        "sequences_per_second": sum(epoch["sequences"] for epoch in history) / trained if trained else None,
        "peak_memory_mb": peak_memory_mb(),
        "peak_gpu_memory_mb": peak_gpu_memory_mb(trainer.device),
        "device": str(trainer.device),
        "checkpoint": None if trainer.saver.best else trainer.saved_model_file,
        "log": str(log_file),
        "per_user_file": str(Path(users_file).absolute()) if users_file and test_metrics is not None else None,
        "versions": versions(),
        "loss": [epoch["loss"] for epoch in history],
        "codebooks": [{"epoch": e["epoch"], **e["codebooks"]} for e in history if e.get("codebooks")],
        "valid_curve": [{"epoch": e["epoch"], **e["valid"]} for e in history if e.get("valid")],
        "curve": trainer.curve,
        "config": config.plain(),
    }


def log_tied_targets(result: Mapping[str, Any]) -> None:
    """Log how often a test target has the score of another item; the order of equal scores is random."""
    if result["tied_targets"]:
        getLogger().info(f"{result['tied_targets']:.2%} of the test targets have the same score as another item")


def write_result(result: Mapping[str, Any], path: str | Path, *, overwrite: bool = True) -> None:
    """Write `result` as JSON, see `atomic_writer`; NaN and infinities, which JSON lacks, become text."""
    text = json.dumps(_json_ready(result), indent=2, allow_nan=False)
    with atomic_writer(path, overwrite=overwrite) as stream:
        stream.write(text.encode() + b"\n")


def result_table(result: Mapping[str, Any]) -> str:
    """The metrics of a run as a table: a row for each metric, validation beside test, `-` without targets."""
    valid, test = result["valid"] or {}, result["test"] or {}
    names = list(test or valid) or ["-"]
    width = max(len(name) for name in ["metric", *names])
    head = f"{'metric':<{width}}  {'valid':>8}  {'test':>8}"
    lines = [
        f"{result['model']} on {result['dataset']}, protocol {result['protocol']}, seed {result['seed']}: "
        f"best epoch {result['best_epoch']} of {result['epochs_run']}, {result['seconds']:.1f} s",
        head,
        "-" * len(head),
    ]
    for name in names:
        shown = [metric_text(phase[name], result["config"]) if name in phase else "-" for phase in (valid, test)]
        lines.append(f"{name:<{width}}  {shown[0]:>8}  {shown[1]:>8}")
    return "\n".join([*lines, f"checkpoint: {result['checkpoint']}"])


def _json_ready(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _json_ready(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_json_ready(entry) for entry in value]
    return value


def write_per_user(
    loader: EvalLoader, config: Config, collected: Mapping[str, Any], path: str | Path, *, overwrite: bool = True
) -> Path:
    """Write `per_user_table` as CSV, or for .json as a list for each column; the path, see `atomic_writer`."""
    table = per_user_table(loader, config, collected)
    text = json.dumps(table.to_dict("list")) if str(path).endswith(".json") else table.to_csv(index=False)
    with atomic_writer(path, overwrite=overwrite) as stream:
        stream.write(text.encode(errors="surrogatepass"))
    return stream.path


def per_user_table(loader: EvalLoader, config: Config, collected: Mapping[str, Any]) -> pd.DataFrame:
    """One row for each held-out item, user by user, oldest first.

    The columns are the raw ids `user_id` and `item_id` (the target), `history_length` (items before the target),
    `popularity` (of the target, interactions in training), and for each ranking `rank` (of the target, from 1) and the
    metrics that have a value for each user. `collected` is `Evaluation.collected` of the loader.
    """
    number = next(iter(collected.values())).get("lisa.number").numpy()
    dataset, columns = loader.dataset, {}
    history = loader.windows.history[number]
    users = dataset.histories.users[history]
    columns["user_id"] = dataset.field2id_token[dataset.uid_field][users]
    columns["item_id"] = dataset.field2id_token[dataset.iid_field][loader.targets[number]]
    columns["history_length"] = loader.windows.end[number] - dataset.histories.offsets[history]
    columns["popularity"] = dataset.item_counts[loader.targets[number]]
    for suffix, data in collected.items():
        columns[f"rank{suffix}"] = data.get("lisa.rank").numpy()

        def keep(name: str, by_length: Any, ending: str = suffix) -> dict[str, float]:  # (N, max(topk))
            columns.update({f"{name}@{k}{ending}": by_length[:, k - 1].astype(float) for k in config["topk"]})
            return {}

        for metric in (metrics_dict[name.lower()](config) for name in config["metrics"]):
            if isinstance(metric, TopkMetric):
                metric.topk_result = keep  # RecBole's takes the mean
                metric.calculate_metric(data)
    table: pd.DataFrame = pd.DataFrame(columns, index=number).sort_index()
    return table
