"""Small models without files, and batches for them."""

from typing import Any

import torch

from benchmarks import standin
from benchmarks.standin import Catalogue, default_settings
from recbole_lisa.config.registry import MODELS
from recbole_lisa.model.attentive_recommender import AttentiveRecommender
from tests.helpers import ragged

MODEL_NAMES = tuple(MODELS)


def build_model(name: str, *, n_items: int = 30, max_length: int = 24, **settings: Any) -> AttentiveRecommender:
    """A small model: width 16, 3 codebooks of 4 codewords, unless settings say otherwise; random convolutions."""
    defaults = default_settings(name)
    small = {"hidden_size": 16, "inner_size": 16, "n_codebooks": 3, "n_codewords": 4, "n_target_codewords": 6}
    settings = {k: v for k, v in small.items() if k in defaults} | settings
    model: AttentiveRecommender = standin.build_model(
        name, catalogue=Catalogue(n_items, time_unit=2.0), max_length=max_length, **settings
    )
    for block in model.encoder.encoder_blocks():
        if block.convolution is not None:
            torch.nn.init.normal_(block.convolution.weight)
    return model


def random_batch(n: int, length: int, n_items: int, *, n_negatives: int = 1) -> dict[str, torch.Tensor]:
    """An all-position training batch: row 0 is full, the others are ragged, padding is 0."""
    valid = ragged(n, length)
    return {
        "item_id_list": torch.randint(1, n_items, (n, length)) * valid,
        "item_length": valid.sum(dim=1),
        "target_id_list": torch.randint(1, n_items, (n, length)) * valid,
        "neg_target_id_list": torch.randint(1, n_items, (n, length, n_negatives)) * valid.unsqueeze(-1),
        "time_gap_list": torch.rand(n, length) * 4 * valid,
        "query_gap_list": 2.0 ** torch.arange(length).expand(n, length),
        "query_time_list": 9e8 + 1e5 * torch.arange(length, dtype=torch.float64).expand(n, length),
        "item_id": torch.randint(1, n_items, (n,)),
        "neg_item_id": torch.randint(1, n_items, (n, n_negatives)),
    }


def last_position_batch(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same batch as RecBole shapes it: one target a row."""
    return {k: v for k, v in batch.items() if k not in ("target_id_list", "neg_target_id_list")}


def loss_value(loss: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The sum of the parts of a loss."""
    return sum(loss) if isinstance(loss, tuple) else loss
