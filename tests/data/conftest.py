"""A small data set on disk, loaded through the real configuration."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recbole.model.sequential_recommender import SASRec

from recbole_lisa.config.config import LISAConfig
from tests.helpers import write_interactions

Row = tuple[object, object, object]
MakeConfig = Callable[..., LISAConfig]


@pytest.fixture
def make_config(tmp_path: Path) -> MakeConfig:
    """`make_config(rows, protocol=..., **settings)` writes the rows and returns their configuration."""

    def make(rows: Iterable[Row], protocol: str = "full_ranking", **settings: Any) -> LISAConfig:
        write_interactions(tmp_path, "tiny", rows)
        defaults = {"data_path": str(tmp_path), "loss_type": "BPR", "MAX_ITEM_LIST_LENGTH": 4}
        return LISAConfig(SASRec, "tiny", protocol=protocol, config_dict={**defaults, **settings})

    return make


def many_users() -> list[Row]:
    """60 users with 1 to 29 of 50 items."""
    lengths = np.random.default_rng(0).integers(1, 30, 60)
    return [(f"u{n}", f"i{(n * 7 + t * 3) % 50}", t) for n in range(60) for t in range(lengths[n])]


def rows_of(dataset: Any, batches: Iterable[Any]) -> list[tuple[str, str, str]]:
    """User, inputs and target of every row."""
    users, items = (dataset.field2id_token[name] for name in ("user_id", "item_id"))
    rows = []
    for batch in batches:
        columns = getattr(batch, "interaction", batch)
        for user, inputs, target in zip(*(columns[n] for n in ("user_id", "item_id_list", "item_id")), strict=True):
            rows.append((str(users[user]), " ".join(items[inputs[inputs > 0].tolist()]), str(items[target])))
    return rows
