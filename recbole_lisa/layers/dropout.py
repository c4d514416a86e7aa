"""Dropout whose mask costs little on CPU.

torch draws one number an element there, which takes longer than LISA's whole attention; here one draw serves four
elements, 16 bits each. Elsewhere torch's own kernel serves.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LEVELS = 2**16


def _kept(draws: Tensor, like: Tensor, threshold: int) -> Tensor:
    """1 where the element's 16 bits reach the threshold, else 0, in the dtype of like."""
    bits = draws.view(torch.int16)[: like.numel()].view(like.shape)
    # Written as a float at once: a bool mask costs four times as much to write and to multiply by.
    return torch.ge(bits, threshold - LEVELS // 2, out=torch.empty_like(like))


class _Mask(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: int) -> Tensor:
        draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
        ctx.save_for_backward(draws)
        ctx.threshold, ctx.scale = threshold, LEVELS / (LEVELS - threshold)
        return _kept(draws, x, threshold).mul_(x).mul_(ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (draws,) = ctx.saved_tensors
        return _kept(draws, grad, ctx.threshold).mul_(grad).mul_(ctx.scale), None


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

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of x (...) in training mode."""
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu":
            return nn.functional.dropout(x, self.p)
        dropped: Tensor = _Mask.apply(x, min(round(self.p * LEVELS), LEVELS - 1))  # type: ignore[no-untyped-call]  # torch's Function
        return dropped

    def extra_repr(self) -> str:
        """The probability, for print(model)."""
        return f"p={self.p}"
