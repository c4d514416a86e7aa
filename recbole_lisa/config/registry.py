"""The models by name. The module of a model is imported when the model is used."""

from importlib import import_module
from typing import Any

from recbole_lisa.errors import UsageError, did_you_mean, shown

_OF_RECBOLE = "recbole.model.sequential_recommender"
_PACKAGE = "recbole_lisa.model.sequential_recommender"

MODELS: dict[str, str] = {
    name: f"{_PACKAGE}.{name.lower()}:{name}"
    for name in (
        *("LISABase", "LISASoft", "LISAMini", "Transformer", "LinearTransformer", "Linformer", "Reformer"),
        *("RoutingTransformer", "SinkhornTransformer", "ClusteredTransformer"),
        *("HSTU", "LRURec", "Mamba2Rec", "RecGRELA"),
    )
}
"""Model name -> `module:Class`. A new model is one entry here, one module and one yaml file."""

OPTIONAL_MODELS: dict[str, str] = {"GLATransformer": f"{_PACKAGE}.glatransformer:GLATransformer"}
"""Models that need an extra and a CUDA device; elsewhere they refuse to run before data is read."""


def has_loss_of_recbole(model: type[Any]) -> bool:
    """Whether a model class takes RecBole's batches: its `calculate_loss` is RecBole's."""
    return str(getattr(getattr(model, "calculate_loss", None), "__module__", "")).startswith("recbole.")


def class_by_name(name: str) -> type[Any] | None:
    """The class of a model of this package, or of RecBole's sequential models; None without one."""
    known = {**MODELS, **OPTIONAL_MODELS}
    module, _, attribute = known.get(name, f"{_OF_RECBOLE}:{name}").partition(":")
    model = getattr(import_module(module), attribute, None)
    return model if isinstance(model, type) and hasattr(model, "full_sort_predict") else None


def model_class(model: Any) -> type[Any]:
    """The class of a model, by its name, see `class_by_name`, or a model class itself; else a UsageError."""
    if isinstance(model, type) and hasattr(model, "full_sort_predict"):
        return model
    if isinstance(model, type):
        raise UsageError(f"{model.__name__} is not a recommender: derive the class from AttentiveRecommender")
    if not isinstance(model, str):
        raise UsageError(f"model must be a name or a class, got {shown(model)}")
    named = class_by_name(model)
    if named is None:
        known = [*MODELS, *OPTIONAL_MODELS]
        near = [*known, *(name for name in dir(import_module(_OF_RECBOLE)) if name[0].isupper())]
        names = f"{', '.join(known)} and RecBole's sequential models, such as SASRec"
        raise UsageError(f"unknown model '{model}': known are {names}.{did_you_mean(model, near)}")
    return named
