"""Dropout with a cheap mask on the CPU; elsewhere it is torch's."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from recbole_lisa.ops.checks import check_number, differentiable_once
from recbole_lisa.ops.dropout_bits import Mask, draw_mask
from recbole_lisa.ops.numba_threads import arrays, numba_serves, writable


def _drop(x: Tensor, mask: Mask) -> Tensor:
    from recbole_lisa.ops.encoder_kernels import Drop, drop

    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    rows = {"x": x.reshape(-1, x.shape[-1]), "out": out.view(-1, x.shape[-1])}
    drop(len(rows["x"]), Drop(**arrays(x=rows["x"]), **writable(out=rows["out"]), floor=-math.inf, **mask._asdict()))
    return out


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Mask) -> Tensor:
        ctx.mask = mask
        return _drop(x, mask)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _drop(grad, ctx.mask), None


class Dropout(nn.Module):
    """Zero each element with probability p and scale the others by 1 / (1 - p); Numba rounds p to 1 / 65,536.

    Raises:
        ValueError: p is outside [0, 1).
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        check_number("dropout", p, 0, 1)
        self.p = p

    @property
    def active(self) -> float:
        """The probability now: p in training, else 0."""
        return self.p if self.training else 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of x (...) in training mode."""
        if not self.active:
            return x
        if not (x.dim() and x.numel() and numba_serves(x)) or torch.compiler.is_compiling():
            return nn.functional.dropout(x, self.p)
        dropped: Tensor = _Drop.apply(x, draw_mask(self.p))  # type: ignore[no-untyped-call]  # torch's Function
        return dropped
