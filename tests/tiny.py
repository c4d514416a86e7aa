"""A model and a data set so small that whole training runs fit into a test."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recbole.model.abstract_recommender import SequentialRecommender
from recbole.utils import InputType, init_seed

from recbole_lisa.config.config import LISAConfig
from recbole_lisa.config.fields import FieldNames
from recbole_lisa.data.dataloader import EvalLoader, TrainLoader, create_loaders
from recbole_lisa.data.dataset import create_dataset
from recbole_lisa.quick_start import run
from recbole_lisa.training.trainer import LISATrainer
from tests.helpers import write_interactions

N_USERS, N_ITEMS, LENGTH = 24, 30, 12
SMALL = {"epochs": 1, "hidden_size": 16, "inner_size": 16, "n_codebooks": 2, "n_codewords": 8, "show_progress": False}
"""Settings of a LISA model that trains in a second."""


class TinyModel(SequentialRecommender):
    """Scores an item by its product with the last item; dropout makes training depend on the generators."""

    input_type = InputType.POINTWISE

    def __init__(self, config: LISAConfig, dataset: Any) -> None:
        super().__init__(config, dataset)
        self.fields = FieldNames(config)
        self.embedding = torch.nn.Embedding(self.n_items, 8, padding_idx=0)
        self.dropout = torch.nn.Dropout(0.3)

    def calculate_loss(self, interaction: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Binary cross-entropy over all positions, and a penalty as a second part."""
        hidden = self.dropout(self.embedding(interaction[self.fields.item_list]))
        positive = (hidden * self.embedding(interaction[self.fields.target_list])).sum(-1)
        negative = (hidden * self.embedding(interaction[self.fields.negative_list][..., 0])).sum(-1)
        losses = torch.nn.functional.softplus(-positive) + torch.nn.functional.softplus(negative)
        valid = interaction[self.fields.item_list] > 0
        return (losses * valid).sum() / valid.sum(), 1e-4 * self.embedding.weight.square().sum()

    def full_sort_predict(self, interaction: Any) -> torch.Tensor:
        """Scores of all items (N, V)."""
        return self._last(interaction) @ self.embedding.weight.T

    def score_candidates(self, interaction: Any, candidates: torch.Tensor) -> torch.Tensor:
        """Scores of the candidates (N, K)."""
        return self.full_sort_predict(interaction).gather(1, candidates)

    def _last(self, interaction: Any) -> torch.Tensor:
        position = interaction[self.fields.item_length][:, None] - 1
        return self.embedding(interaction[self.fields.item_list].gather(1, position)[:, 0])


class BlockModel(TinyModel):
    """`TinyModel` that scores any items."""

    def item_scorer(self, interaction: Any) -> Any:
        hidden = self._last(interaction)
        return lambda ids: hidden @ self.embedding.weight[ids].T


class ConstantModel(TinyModel):
    """Gives every item the same score."""

    def full_sort_predict(self, interaction: Any) -> torch.Tensor:
        return torch.zeros(len(interaction), self.n_items)


class ConstantBlockModel(ConstantModel):
    """`ConstantModel` that scores any items."""

    def item_scorer(self, interaction: Any) -> Any:
        return lambda ids: torch.zeros(len(interaction), len(ids))


def write_tiny_dataset(folder: Path) -> None:
    """Write the data set `tiny` below `folder`: most steps go to the next item, the others anywhere."""
    rng = np.random.default_rng(5)
    rows = []
    for user in range(N_USERS):
        item = int(rng.integers(N_ITEMS))
        for time in range(LENGTH):
            rows.append((f"u{user}", f"i{item}", time))
            item = (item + 1 if rng.random() < 0.7 else int(rng.integers(N_ITEMS))) % N_ITEMS
    write_interactions(folder, "tiny", rows)


def histories_of(folder: Path) -> dict[str, list[str]]:
    """The items of each user of the data set `tiny` below `folder`, in the order of its file."""
    histories: dict[str, list[str]] = {}
    for line in (folder / "tiny" / "tiny.inter").read_text(encoding="utf-8").splitlines()[1:]:
        user, item, _ = line.split("\t")
        histories.setdefault(user, []).append(item)
    return histories


def tiny_config(folder: Path, protocol: str = "full_ranking", model: Any = TinyModel, **settings: Any) -> LISAConfig:
    """A configuration for `TinyModel` on the data set `tiny` below `folder`; `paper` samples 12 candidates."""
    if protocol == "paper":
        settings.setdefault("eval_args", {"mode": "uni12"})
    return LISAConfig(model, "tiny", protocol=protocol, config_dict=tiny_settings(folder, **settings))


def tiny_settings(folder: Path, **settings: Any) -> dict[str, Any]:
    """The settings of `tiny_config`, as a `config_dict`; the data set is written when it is missing."""
    if not (folder / "tiny").is_dir():
        write_tiny_dataset(folder)
    where = {"data_path": str(folder), "checkpoint_dir": str(folder / "saved"), "use_gpu": False}
    training = {"epochs": 6, "train_batch_size": 8, "learning_rate": 0.05, "MAX_ITEM_LIST_LENGTH": 8}
    return where | training | {"eval_batch_size": 7, "topk": [5, 10]} | settings


def train_tiny(folder: Path, model: str = "LISABase", **settings: Any) -> dict[str, Any]:
    """The result of a run with SMALL settings on the data set `tiny` below `folder`, which is left again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = run(model, "tiny", config_dict=tiny_settings(folder, **SMALL | settings))
        return result | {"checkpoint": folder / result["checkpoint"]}


def tiny_loaders(config: LISAConfig) -> tuple[TrainLoader, EvalLoader | None, EvalLoader]:
    """Training, validation and test loader."""
    return create_loaders(config, create_dataset(config))


def tiny_trainer(config: LISAConfig) -> tuple[LISATrainer, tuple[TrainLoader, EvalLoader | None, EvalLoader]]:
    """A trainer whose model starts from the seed, and its loaders."""
    loaders = tiny_loaders(config)
    init_seed(config["seed"], config["reproducibility"])
    model = config.model_class(config, loaders[0].dataset)
    return LISATrainer(config, model), loaders
