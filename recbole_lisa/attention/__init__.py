"""Attention mechanisms: nn.Modules with one interface, usable without RecBole."""

import inspect
import math
from typing import Any

import torch

from recbole_lisa.attention.base import Attention, plain_keywords
from recbole_lisa.attention.clustered import ClusteredAttention
from recbole_lisa.attention.full import FullAttention
from recbole_lisa.attention.gla import GatedLinearAttention
from recbole_lisa.attention.grela import GatedRotaryAttention
from recbole_lisa.attention.hstu import HSTUAttention
from recbole_lisa.attention.linear import LinearAttention
from recbole_lisa.attention.linformer import Linformer
from recbole_lisa.attention.lisa import LISAAttention
from recbole_lisa.attention.lru import LinearRecurrentUnit
from recbole_lisa.attention.mamba2 import SelectiveSSM
from recbole_lisa.attention.reformer import ReformerAttention
from recbole_lisa.attention.routing import RoutingAttention
from recbole_lisa.attention.sinkhorn import SinkhornAttention
from recbole_lisa.environment import free_memory
from recbole_lisa.errors import did_you_mean
from recbole_lisa.ops.checks import check_sizes

MECHANISMS: dict[str, type[Attention]] = {
    "clustered": ClusteredAttention,
    "full": FullAttention,
    "grela": GatedRotaryAttention,
    "hstu": HSTUAttention,
    "linear": LinearAttention,
    "linformer": Linformer,
    "lisa": LISAAttention,
    "lru": LinearRecurrentUnit,
    "mamba2": SelectiveSSM,
    "reformer": ReformerAttention,
    "routing": RoutingAttention,
    "sinkhorn": SinkhornAttention,
}
"""Mechanisms by name, for `build_attention`."""

OPTIONAL_MECHANISMS: dict[str, type[Attention]] = {"gla": GatedLinearAttention}
"""Mechanisms that need an extra and a CUDA device; elsewhere their constructors raise ValueError."""

_ALL = {**MECHANISMS, **OPTIONAL_MECHANISMS}

__all__ = ["MECHANISMS", "OPTIONAL_MECHANISMS", "Attention", "ClusteredAttention", "FullAttention"]
__all__ += ["GatedLinearAttention", "GatedRotaryAttention", "HSTUAttention", "LISAAttention", "LinearAttention"]
__all__ += ["LinearRecurrentUnit", "Linformer", "ReformerAttention", "RoutingAttention", "SelectiveSSM"]
__all__ += ["SinkhornAttention", "build_attention", "describe_attention"]


def build_attention(name: str, *, hidden_size: int, max_length: int, **settings: Any) -> Attention:
    """Build any mechanism by its name in MECHANISMS or OPTIONAL_MECHANISMS.

    The module has forward(x (N, L, D), valid (N, L) bool) -> (N, L, D); settings are keywords of its constructor.
    max_length is the longest sequence, for mechanisms whose parameters depend on it.

    Raises:
        ValueError: the name or a setting is unknown, the constructor refuses a value, or memory is short.
    """
    check_sizes(hidden_size=hidden_size, max_length=max_length)
    if not isinstance(name, str) or name not in _ALL:
        raise ValueError(f"unknown attention {name!r}: known are {', '.join(_ALL)}.{did_you_mean(str(name), _ALL)}")
    parameters = inspect.signature(_ALL[name]).parameters
    for setting in settings.keys() - parameters.keys():
        near = did_you_mean(setting, parameters)
        raise ValueError(f"attention {name!r} has no setting {setting!r}: known are {', '.join(parameters)}.{near}")
    settings = plain_keywords(_ALL[name], settings)
    if "max_length" in parameters:
        settings["max_length"] = max_length
    settings["hidden_size"] = hidden_size
    if torch.get_default_device().type != "meta":  # there a module takes no memory
        _check_memory(name, settings)
    return _ALL[name](**settings)


def _check_memory(name: str, settings: dict[str, Any]) -> None:
    """Raise a ValueError where parameters and buffers exceed the free memory; the module is built without any."""
    n_bytes = math.inf
    try:
        with torch.device("meta"):
            n_bytes = sum(x.nbytes for x in _ALL[name](**settings).state_dict().values())
    except (RuntimeError, OverflowError, TypeError) as error:
        if "overflow" not in str(error).lower():  # of a size above 2^63
            return  # the module itself raises the error
    if n_bytes > free_memory():
        sizes = {key: value for key, value in settings.items() if type(value) is int}
        largest = max(sizes, key=lambda key: sizes[key])
        size = f"{n_bytes / 2**30:,.0f} GiB"
        raise ValueError(f"attention {name!r} needs {size}: lower {largest}, which is {sizes[largest]}")


def describe_attention(attention: Attention) -> tuple[str, dict[str, Any]]:
    """The inverse of build_attention: the name and the constructor's keywords, hidden_size included, as plain values.

    Raises:
        ValueError: the class is not one of them.
    """
    for name, mechanism in _ALL.items():
        if type(attention) is mechanism:
            return name, attention.settings()
    known = ", ".join(mechanism.__name__ for mechanism in _ALL.values())
    raise ValueError(f"{type(attention).__name__} is not in MECHANISMS: register it there; known are {known}")
