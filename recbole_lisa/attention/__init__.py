"""Attention mechanisms as plain nn.Modules behind one contract; usable without RecBole."""

import difflib
import inspect
from typing import Any

from recbole_lisa.attention.base import Attention, check_sizes
from recbole_lisa.attention.clustered import ClusteredAttention
from recbole_lisa.attention.full import FullAttention
from recbole_lisa.attention.gla import GatedLinearAttention
from recbole_lisa.attention.linear import LinearAttention
from recbole_lisa.attention.linformer import Linformer
from recbole_lisa.attention.lisa import LISAAttention
from recbole_lisa.attention.reformer import ReformerAttention
from recbole_lisa.attention.routing import RoutingAttention
from recbole_lisa.attention.sinkhorn import SinkhornAttention

MECHANISMS: dict[str, type[Attention]] = {
    "clustered": ClusteredAttention,
    "full": FullAttention,
    "linear": LinearAttention,
    "linformer": Linformer,
    "lisa": LISAAttention,
    "reformer": ReformerAttention,
    "routing": RoutingAttention,
    "sinkhorn": SinkhornAttention,
}

OPTIONAL_MECHANISMS: dict[str, type[Attention]] = {"gla": GatedLinearAttention}
"""What needs an extra and a CUDA device; elsewhere its constructor refuses."""

__all__ = [
    "MECHANISMS",
    "OPTIONAL_MECHANISMS",
    "Attention",
    "ClusteredAttention",
    "FullAttention",
    "GatedLinearAttention",
    "LISAAttention",
    "LinearAttention",
    "Linformer",
    "ReformerAttention",
    "RoutingAttention",
    "SinkhornAttention",
    "build_attention",
    "describe_attention",
]


def build_attention(name: str, *, hidden_size: int, max_length: int, **settings: Any) -> Attention:
    """Any mechanism by name.

    Args:
        name: a key of MECHANISMS or OPTIONAL_MECHANISMS.
        hidden_size: D.
        max_length: longest sequence, for mechanisms whose parameters depend on it.
        **settings: keywords of the mechanism's constructor.

    Returns:
        A module with forward(x (N, L, D), valid (N, L) bool) -> (N, L, D).

    Raises:
        ValueError: on an unknown name or setting, with the nearest known one; on a hidden_size or max_length below 1,
            for every mechanism; on what its constructor refuses.
    """
    check_sizes(hidden_size=hidden_size, max_length=max_length)
    mechanisms = {**MECHANISMS, **OPTIONAL_MECHANISMS}
    if name not in mechanisms:
        raise ValueError(f"unknown attention {name!r}: {_known(name, list(mechanisms))}")
    mechanism = mechanisms[name]
    parameters = inspect.signature(mechanism).parameters
    for setting in settings:
        if setting not in parameters:
            raise ValueError(f"attention {name!r} has no setting {setting!r}: {_known(setting, list(parameters))}")
    if "max_length" in parameters:
        settings["max_length"] = max_length
    return mechanism(hidden_size=hidden_size, **settings)


def describe_attention(attention: Attention) -> tuple[str, dict[str, Any]]:
    """The name and the settings that build a module of the same shape: the inverse of build_attention.

    Args:
        attention: any mechanism of MECHANISMS or OPTIONAL_MECHANISMS.

    Returns:
        The key there, and the keywords of its constructor as plain values, hidden_size among them.

    Raises:
        ValueError: its class is not one of them.
    """
    mechanisms = {**MECHANISMS, **OPTIONAL_MECHANISMS}
    for name, mechanism in mechanisms.items():
        if type(attention) is mechanism:
            return name, attention.settings()
    known = ", ".join(mechanism.__name__ for mechanism in mechanisms.values())
    raise ValueError(f"{type(attention).__name__} is no attention of MECHANISMS: name it there beside {known}")


def _known(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}"
