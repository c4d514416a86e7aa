"""Random bits for dropout on the CPU, 16 an element: p is rounded to 1 / 65,536.

torch's own dropout draws one number an element there, which takes longer than LISA's whole attention. draw_bits draws
64 bits for four elements, from a NumPy generator (SFC64) that is twice as fast as torch's and seeded by it.
"""

import numpy as np
import torch
from torch import Tensor

LEVELS = 2**16


def threshold_of(p: float) -> int:
    """How many of the LEVELS values drop an element; p is rounded to 1 / LEVELS, below 1."""
    return min(round(p * LEVELS), LEVELS - 1)


def scale_of(threshold: int) -> float:
    """The factor of the kept elements, 1 / (1 - p)."""
    return LEVELS / (LEVELS - threshold)


def draw_bits(shape: torch.Size) -> Tensor:
    """16 random bits an element, int16 of that shape on the CPU; torch's default generator gives the seed."""
    size = shape.numel()
    seed = int(torch.empty((), dtype=torch.int64).random_())
    draws = np.random.SFC64(seed).random_raw(-(-size // 4))
    return torch.from_numpy(draws.view(np.int16)[:size]).view(shape)


def kept(bits: Tensor, threshold: int, out: Tensor) -> Tensor:
    """1 where the element's bits reach the threshold, else 0, written to out (...) in its dtype.

    Args:
        bits: (...) int16 from draw_bits.
        threshold: from threshold_of.
        out: of the shape of bits, overwritten.
    """
    # Written as a float at once: a bool mask costs four times as much to write and to multiply by.
    return torch.ge(bits, threshold - LEVELS // 2, out=out)
