"""The one contract of all attention mechanisms."""

from typing import Any

import torch
from torch import Tensor, nn


def final_positions(valid: Tensor) -> Tensor:
    """Index of each row's last real item.

    Args:
        valid: (N, L) bool, padding on the right.

    Returns:
        (N,) int64; 0 for a row of padding only.
    """
    return (valid.sum(dim=1) - 1).clamp_min(0)


def take_positions(x: Tensor, positions: Tensor) -> Tensor:
    """x[n, positions[n]].

    Args:
        x: (N, L, D).
        positions: (N,).

    Returns:
        (N, D).
    """
    return x.gather(1, positions.view(-1, 1, 1).expand(-1, 1, x.shape[-1])).squeeze(1)


def take_valid(x: Tensor, valid: Tensor) -> Tensor:
    """x at the real positions, without a copy where there are no others.

    Args:
        x: (N, L, D).
        valid: (N, L) bool.

    Returns:
        (M, D).
    """
    return x.flatten(0, 1) if bool(valid.all()) else x[valid]


def project_exactly(layer: nn.Linear, x: Tensor) -> Tensor:
    """layer(x) in the type of its parameters, also under autocast: what is chosen by argmax must not hang on rounding.

    Args:
        layer: a linear layer.
        x: (..., D).

    Returns:
        (..., D).
    """
    with torch.autocast(x.device.type, enabled=False):
        out: Tensor = layer(x.to(layer.weight.dtype))
    return out


def check_causality(causality: str, known: tuple[str, ...]) -> str:
    """Refuse a form of causality that a mechanism does not have.

    Args:
        causality: the form asked for.
        known: the forms there are.

    Returns:
        causality.

    Raises:
        ValueError: it is not one of them.
    """
    if causality not in known:
        raise ValueError(f"causality must be {' or '.join(map(repr, known))}, got {causality!r}")
    return causality


class Attention(nn.Module):
    """Self attention over right-padded sequences.

    A mechanism is a module whose constructor takes plain keywords and whose forward obeys:

    - x (N, L, D) and valid (N, L) bool in, (N, L, D) out, any L from 1 up; the output at padding is 0;
    - x has the dtype of the parameters, or autocast is on;
    - padding, whatever finite numbers it holds, never changes a real position, nor does another row of the batch;
    - when is_causal, position i attends to positions up to i only, and unless sees_future, depends on them only;
    - in eval mode the same input gives the same output.

    sees_future marks a published form whose choice among the earlier positions depends on later ones.
    """

    is_causal: bool = True
    sees_future: bool = False
    _keywords: dict[str, Any]

    def __new__(cls, *_: Any, **keywords: Any) -> "Attention":
        """Note the constructor's keywords, so that every mechanism can say how to build it again."""
        module = super().__new__(cls)
        object.__setattr__(module, "_keywords", keywords)
        return module

    def settings(self) -> dict[str, Any]:
        """The keywords that build a module of the same shape, as plain values."""
        return dict(self._keywords)

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend at every position: x (N, L, D), valid (N, L) -> (N, L, D)."""
        raise NotImplementedError

    def last(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend at each row's final real position only: x (N, L, D), valid (N, L) -> (N, D)."""
        return take_positions(self(x, valid), final_positions(valid))
