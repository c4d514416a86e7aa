"""Dropout on the CPU from 16 random bits an element: p is rounded to 1 / 65,536.

torch's own dropout draws one number an element there, which takes longer than LISA's whole attention. Here NumPy's
SFC64 draws 64 bits for four elements. Its seed comes from torch's default generator; a mask keeps the seed alone, and
the backward pass draws the same bits again.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

LEVELS = 2**16
"""Values of 16 bits."""


class Mask(NamedTuple):
    """A dropout mask: the seed of its bits, and how many of the LEVELS values drop an element (0 = no dropout)."""

    seed: int
    threshold: int

    @property
    def scale(self) -> float:
        """The factor of the kept elements, 1 / (1 - p)."""
        return LEVELS / (LEVELS - self.threshold)

    def ones(self, out: Tensor, block: int = 0) -> Tensor:
        """Write 1 where an element is kept, else 0, to out (...); the same for the same shape and block."""
        draws = np.random.SFC64([self.seed, block]).random_raw(-(-out.numel() // 4))
        bits = torch.from_numpy(draws.view(np.int16)[: out.numel()]).view(out.shape)
        # Written as a float at once: a bool mask costs four times as much to write and to multiply by.
        return torch.ge(bits, self.threshold - LEVELS // 2, out=out)

    def drop(self, x: Tensor, out: Tensor, block: int = 0) -> Tensor:
        """Write dropout(x) to out (...); applied to the gradient, this is the backward pass."""
        return self.ones(out, block).mul_(x).mul_(self.scale) if self.threshold else out.copy_(x)

    def add(self, x: Tensor, branch: Tensor, out: Tensor, block: int = 0) -> Tensor:
        """Write x + dropout(branch) to out, all (...)."""
        if not self.threshold:
            return torch.add(x, branch, out=out)
        return torch.addcmul(x, self.ones(torch.empty_like(branch), block), branch, value=self.scale, out=out)


def draw_mask(p: float) -> Mask:
    """A mask that drops elements with probability p.

    For p = 0 torch's generator stays where it is: evaluating a model must not change how it trains on.
    """
    threshold = min(round(p * LEVELS), LEVELS - 1)
    return Mask(int(torch.empty((), dtype=torch.int64).random_()) if threshold else 0, threshold)
