"""The one contract of all attention mechanisms."""

from collections.abc import Callable
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


def keep_real(x: Tensor, valid: Tensor) -> Tensor:
    """x with 0 at padding, whatever stood there: 0 times NaN would be NaN.

    Args:
        x: (N, L, D).
        valid: (N, L) bool.

    Returns:
        (N, L, D).
    """
    return x.masked_fill(~valid.unsqueeze(-1), 0.0)


def check_sizes(**sizes: int) -> None:
    """Refuse numbers below 1.

    Args:
        **sizes: by the names that the user knows them by.

    Raises:
        ValueError: one of them is below 1.
    """
    for name, size in sizes.items():
        if not size >= 1:
            raise ValueError(f"{name} must be at least 1, got {size}")


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


def identity(x: Tensor) -> Tensor:
    """x itself: the sum over one process."""
    return x


class Attention(nn.Module):
    """Self attention over right-padded sequences.

    A mechanism is a module whose constructor takes plain keywords and that attends in everywhere() and, if there is a
    shorter way to it, at_last(). Both are called with at least one position and with 0 at padding; forward() and last()
    see to that and to a result of 0 at padding. Then:

    - x (N, L, D) and valid (N, L) bool in, (N, L, D) out, any L from 0 up; the output at padding is 0;
    - x has the dtype of the parameters, or autocast is on;
    - padding, whatever it holds, NaN too, never changes a real position, a gradient or the state of the module, nor
      does another row of the batch change a position;
    - when is_causal, position i attends to positions up to i only, and unless sees_future, depends on them only;
    - in eval mode the same input gives the same output.

    sees_future marks a published form whose choice among the earlier positions depends on later ones; remedy names the
    alternative. compiles is False where loops depend on the data: torch.compile would compile them again and again.
    sum_over_processes replaces a tensor by its sum over all training processes; the training code sets it, the default
    is the identity. A mechanism that averages over a training batch sums through it, and every process calls it the
    same number of times in each batch.
    """

    is_causal: bool = True
    sees_future: bool = False
    remedy: str = "causality 'strict' chooses from the past only"
    compiles: bool = True
    sum_over_processes: Callable[[Tensor], Tensor] = staticmethod(identity)
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
        if not x.shape[1]:
            return x
        return keep_real(self.everywhere(keep_real(x, valid), valid), valid)

    def last(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend at each row's final real position only: x (N, L, D), valid (N, L) -> (N, D)."""
        if not x.shape[1]:
            return x.new_zeros(x.shape[0], x.shape[2])
        return self.at_last(keep_real(x, valid), valid).masked_fill(~valid.any(dim=1, keepdim=True), 0.0)

    def everywhere(self, x: Tensor, valid: Tensor) -> Tensor:
        """As forward: x is 0 at padding, L is at least 1, and what is returned at padding does not matter."""
        raise NotImplementedError

    def at_last(self, x: Tensor, valid: Tensor) -> Tensor:
        """As last: x is 0 at padding, L is at least 1, and what a row of padding gets does not matter."""
        return take_positions(self.everywhere(x, valid), final_positions(valid))
