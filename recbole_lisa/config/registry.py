"""The models by name. A model's module is imported only when the model is asked for."""

from importlib import import_module
from typing import Any

from recbole_lisa.errors import UsageError, did_you_mean

_PACKAGE = "recbole_lisa.model.sequential_recommender"

MODELS: dict[str, str] = {
    name: f"{_PACKAGE}.{name.lower()}:{name}"
    for name in (
        "LISABase",
        "LISASoft",
        "LISAMini",
        "Transformer",
        "LinearTransformer",
        "Linformer",
        "Reformer",
        "RoutingTransformer",
        "SinkhornTransformer",
        "ClusteredTransformer",
    )
}
"""Model name -> `module:Class`. A new model is one entry here, one module and one yaml file."""

OPTIONAL_MODELS: dict[str, str] = {"GLATransformer": f"{_PACKAGE}.glatransformer:GLATransformer"}
"""Models that need an extra and a CUDA device; elsewhere they refuse to run before data is read."""


def model_class(name: str) -> type[Any]:
    """Import the class of a model.

    Args:
        name: A key of `MODELS` or `OPTIONAL_MODELS`.

    Returns:
        The class, a subclass of RecBole's `SequentialRecommender`.

    Raises:
        UsageError: There is no model of this name.
    """
    known = {**MODELS, **OPTIONAL_MODELS}
    if name not in known:
        raise UsageError(f"unknown model '{name}': known are {', '.join(known)}.{did_you_mean(name, known)}")
    module, _, attribute = known[name].partition(":")
    found: type[Any] = getattr(import_module(module), attribute)
    return found
