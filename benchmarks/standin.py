"""Models without data: their yaml settings, and a stand-in for a data set that has only sizes."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from recbole_lisa.config.model_defaults import model_defaults
from recbole_lisa.config.registry import model_class

FIELDS: dict[str, Any] = {  # RecBole's settings that a model reads, with RecBole's defaults
    "USER_ID_FIELD": "user_id",
    "ITEM_ID_FIELD": "item_id",
    "TIME_FIELD": "timestamp",
    "LIST_SUFFIX": "_list",
    "ITEM_LIST_LENGTH_FIELD": "item_length",
    "NEG_PREFIX": "neg_",
    "windows": "disjoint",
    "device": torch.device("cpu"),
    "train_neg_sample_args": {"distribution": "uniform", "sample_num": 1, "alpha": 1.0},
}


class Catalogue:
    """Stands for a data set of n items, padding included; item i occurs i times, and time_unit is in seconds."""

    def __init__(self, n_items: int, time_unit: float = 1.0) -> None:
        self.n_items = n_items
        self.item_counts: npt.NDArray[np.int64] = np.arange(n_items)
        self.time_unit = time_unit

    def num(self, field: str) -> int:
        """V for any field."""
        return self.n_items


def default_settings(name: str) -> dict[str, Any]:
    """The settings of the model's yaml files."""
    return model_defaults(model_class(name))


def build_model(name: str, *, catalogue: Catalogue, max_length: int, **settings: Any) -> Any:
    """A model with random parameters; `settings` replace those of its yaml file."""
    config = FIELDS | default_settings(name) | settings | {"MAX_ITEM_LIST_LENGTH": max_length}
    return model_class(name)(config, catalogue)
