"""Dropout with a cheap mask on the CPU; elsewhere it is torch's."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from recbole_lisa.ops.dropout_bits import Mask, draw_mask


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Mask) -> Tensor:
        ctx.mask = mask
        return mask.drop(x, torch.empty_like(x))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.mask.drop(grad, torch.empty_like(grad)), None


class Dropout(nn.Module):
    """Zero each element with probability p and scale the others by 1 / (1 - p); p is rounded to 1 / 65,536 on CPU.

    Args:
        p: probability in [0, 1).

    Raises:
        ValueError: when p is outside [0, 1).
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout probability must be in [0, 1), got {p}")
        self.p = p

    @property
    def active(self) -> float:
        """The probability now: p in training, else 0."""
        return self.p if self.training else 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of x (...) in training mode."""
        if not self.active:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():  # compiled code draws in the same pass
            return nn.functional.dropout(x, self.p)
        dropped: Tensor = _Drop.apply(x, draw_mask(self.p))  # type: ignore[no-untyped-call]  # torch's Function
        return dropped
