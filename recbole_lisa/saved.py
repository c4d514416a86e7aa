"""From a saved model back to a model and its data, whichever trainer wrote the file."""

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from recbole.data import create_dataset as create_stock_dataset
from recbole.data import data_preparation
from recbole.utils import init_seed

from recbole_lisa.config.config import LISAConfig
from recbole_lisa.data.dataloader import create_loaders
from recbole_lisa.data.dataset import create_dataset
from recbole_lisa.errors import UsageError
from recbole_lisa.training.checkpoint import load_checkpoint
from recbole_lisa.training.resume import RUN_KEYS, check_data

Loaded = tuple[Any, torch.nn.Module, Any, Any, Any, Any]
"""Configuration, model, data set, training, validation and test loader."""

_OUR_CODE = b"recbole_lisa.model"


def load_data_and_model(
    path: str | os.PathLike[str],
    *,
    model: type[Any] | None = None,
    config_dict: Mapping[str, Any] | None = None,
    trusted: bool = False,
) -> Loaded:
    """Load the model of a checkpoint and the data that it was trained on.

    Args:
        path: A checkpoint of this package, or one that RecBole's own trainer wrote of one of these models.
        model: The class, where it is not one of the registry.
        config_dict: Settings that replace saved ones, such as `data_path` or `use_gpu`; for checkpoints of this
            package only.
        trusted: Read a file of RecBole, which can run any code that somebody wrote into it.

    Returns:
        As RecBole's function of this name: configuration, model, data set, and the three loaders (None for a phase
        without targets in a checkpoint of this package).

    Raises:
        UsageError: The file is missing or damaged, of RecBole but not `trusted`, or its data is missing or another.
    """
    if is_stock_file(path):
        if not trusted:
            raise UsageError(
                f"'{path}' was written by RecBole's own trainer and can run code when it is read: if it is yours, load "
                "it with trusted=True"
            )
        return _load_stock(path)
    state = load_checkpoint(path, needed=RUN_KEYS)
    config = LISAConfig.from_plain(state["config"], model=model, config_dict=config_dict)
    init_seed(config["seed"], config["reproducibility"])
    dataset = create_dataset(config)
    train, valid, test = create_loaders(config, dataset)
    check_data(state, path, train.dataset.data_fingerprint)
    network = config.model_class(config, train.dataset).to(config["device"])
    return config, _with_weights(network, state), dataset, train, valid, test


def is_stock_file(path: str | os.PathLike[str]) -> bool:
    """Whether RecBole's own trainer wrote this file, of a model of this package; no code in it is run."""
    if not Path(path).is_file() or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        return any(_OUR_CODE in archive.read(name) for name in pickles)


def read_stock_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a file of RecBole's trainer, which holds its configuration as an object; tensors land on the CPU."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
    leave_absent_gpu(state)
    return state


def leave_absent_gpu(state: Any) -> None:
    """Where there is no GPU, move the configuration in a file of RecBole to the CPU: it names the device of then."""
    if isinstance(state, dict) and "config" in state and not torch.cuda.is_available():
        state["config"]["device"] = torch.device("cpu")


def _load_stock(path: str | os.PathLike[str]) -> Loaded:
    state = read_stock_file(path)
    config = state["config"]
    init_seed(config["seed"], config["reproducibility"])
    dataset = create_stock_dataset(config)
    train, valid, test = data_preparation(config, dataset)
    network = config.model_class(config, train.dataset).to(config["device"])
    return config, _with_weights(network, state), dataset, train, valid, test


def _with_weights(network: torch.nn.Module, state: Mapping[str, Any]) -> torch.nn.Module:
    network.load_state_dict(state["state_dict"])
    network.load_other_parameter(state["other_parameter"])
    return network.eval()
