"""Metrics of each held-out item, a row each: the mean of a column is the metric of the evaluation, before rounding."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from recbole.config import Config
from recbole.evaluator.base_metric import TopkMetric
from recbole.evaluator.register import metrics_dict

from recbole_lisa.data.dataloader import EvalLoader
from recbole_lisa.files import atomic_writer


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
