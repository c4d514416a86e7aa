"""The settings in the yaml files of a model, which RecBole's own configuration does not read."""

import re
from pathlib import Path
from typing import Any

from recbole_lisa.config.properties import properties_path
from recbole_lisa.config.registry import MODELS, OPTIONAL_MODELS
from recbole_lisa.config.schema import read_yaml
from recbole_lisa.errors import UsageError


def lineage(model: type[Any]) -> list[str]:
    """Names of a model class and its bases, the class itself last."""
    return [base.__name__ for base in reversed(model.__mro__)]


def settings_files(model: type[Any]) -> list[Path]:
    """The yaml files of a model, weakest first: those of its bases, its own, and its optional `settings_file`."""
    packaged = [properties_path() / "model" / f"{name}.yaml" for name in lineage(model)]
    class_files = [Path(model.settings_file)] if hasattr(model, "settings_file") else []
    return [*(file for file in packaged if file.is_file()), *class_files]


def model_defaults(model: type[Any]) -> dict[str, Any]:
    """The merged settings of `settings_files`."""
    settings: dict[str, Any] = {}
    for file in settings_files(model):
        settings.update(read_yaml(file))
    return settings


def models_with(key: str) -> list[str]:
    """Names of the models whose own yaml file has a key, or a text for all of this package."""
    folder = properties_path() / "model"
    if key in read_yaml(folder / "AttentiveRecommender.yaml"):
        return ["the models of this package"]
    return [name for name in (*MODELS, *OPTIONAL_MODELS) if key in read_yaml(folder / f"{name}.yaml")]


def inner_width(inner_size: int | str, hidden_size: int) -> int:
    """Width of the feed-forward network: a number, or a factor of hidden_size such as 4x, else a UsageError."""
    if not isinstance(inner_size, str):
        return inner_size
    factor = re.fullmatch(r"(\d+(?:\.\d+)?)x", inner_size)
    width = round(float(factor[1]) * hidden_size) if factor else 0
    if width < 1:
        raise UsageError(f"inner_size is {inner_size!r}, it must be a number, or a factor of hidden_size such as 4x")
    return width


def fill_defaults(config: Any, model: type[Any]) -> None:
    """Add in place the settings of the model that a configuration of RecBole lacks.

    Without sampled negatives and without a loss_type, the loss is CE, which ranks all items.
    """
    defaults = model_defaults(model)
    sampling = config["train_neg_sample_args"]
    if sampling is None or sampling.get("distribution") == "none":
        defaults["loss_type"] = "CE"
    for key, value in defaults.items():
        if key not in config:
            config[key] = value
