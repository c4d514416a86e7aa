"""The rows of the paper's ranking tables, and the paper's figures."""

import csv
from pathlib import Path
from typing import Any, NamedTuple

METRICS = {"hit@5": "HR@5", "ndcg@5": "NDCG@5", "hit@10": "HR@10", "ndcg@10": "NDCG@10"}
"""Name in a result -> name in the paper."""


class Row(NamedTuple):
    """A model and the settings that differ from its yaml file."""

    model: str
    settings: dict[str, Any]

    def arguments(self) -> list[str]:
        """The row as command-line arguments."""
        return [f"--model={self.model}", *(f"--{key}={value}" for key, value in self.settings.items())]


ROWS: dict[str, Row] = {
    "Transformer": Row("Transformer", {}),
    "Linformer": Row("Linformer", {"n_projected": 128}),
    "LSH-1": Row("Reformer", {"n_hashes": 1}),
    "LSH-4": Row("Reformer", {"n_hashes": 4}),
    "Sinkhorn-32": Row("SinkhornTransformer", {"bucket_size": 32}),
    "Sinkhorn-64": Row("SinkhornTransformer", {"bucket_size": 64}),
    "Routing-32": Row("RoutingTransformer", {"window_size": 32}),
    "Routing-64": Row("RoutingTransformer", {"window_size": 64}),
    "Clustered-100": Row("ClusteredTransformer", {"n_clusters": 100}),
    "Clustered-200": Row("ClusteredTransformer", {"n_clusters": 200}),
    "LISA-Base": Row("LISABase", {}),
    "LISA-Soft": Row("LISASoft", {}),
    "LISA-Mini": Row("LISAMini", {}),
    "Linear": Row("LinearTransformer", {}),
}
"""Row name -> what to run; `Linear` is not in the paper."""


def paper_figures(dataset: str) -> dict[str, dict[str, float]]:
    """Row name -> metric -> the paper's figure; empty for a data set that the paper does not have."""
    with Path(__file__).with_name("paper.csv").open(encoding="utf-8", newline="") as stream:
        lines = [line for line in csv.DictReader(stream) if line["dataset"] == dataset]
    return {line["row"]: {name: float(line[name]) for name in METRICS} for line in lines}
