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
    """Write one row for each held-out item, user by user, oldest first: CSV, or for .json a list for each column.

    The columns are the raw ids `user_id` and `item_id` (the target), and for each ranking `rank` (of the target, from
    1) and the metrics that have a value for each user. `collected` is `Evaluation.collected` of the loader.
    Returns the path of the file, see `atomic_writer`.
    """
    number = next(iter(collected.values())).get("lisa.number").numpy()
    dataset, columns = loader.dataset, {}
    users = dataset.histories.users[loader.windows.history[number]]
    columns["user_id"] = dataset.field2id_token[dataset.uid_field][users]
    columns["item_id"] = dataset.field2id_token[dataset.iid_field][loader.targets[number]]
    for suffix, data in collected.items():
        columns[f"rank{suffix}"] = data.get("lisa.rank").numpy()

        def keep(name: str, by_length: Any, ending: str = suffix) -> dict[str, float]:  # (N, max(topk))
            columns.update({f"{name}@{k}{ending}": by_length[:, k - 1].astype(float) for k in config["topk"]})
            return {}

        for metric in (metrics_dict[name.lower()](config) for name in config["metrics"]):
            if isinstance(metric, TopkMetric):
                metric.topk_result = keep  # RecBole's takes the mean
                metric.calculate_metric(data)
    table = pd.DataFrame(columns, index=number).sort_index()
    text = json.dumps(table.to_dict("list")) if str(path).endswith(".json") else table.to_csv(index=False)
    with atomic_writer(path, overwrite=overwrite) as stream:
        stream.write(text.encode(errors="surrogatepass"))
    return stream.path
