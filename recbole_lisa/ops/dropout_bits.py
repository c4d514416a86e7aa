"""Random bits for dropout on the CPU, 16 an element: p is rounded to 1 / 65,536.

torch draws one number an element there, which takes longer than LISA's whole attention. Tensor code draws 64 bits for
four elements (draw_bits). Compiled loops hash a seed and the element's number instead, so that the backward pass makes
the same mask again and nothing is kept (mask_of says which).
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

LEVELS = 2**16


def threshold_of(p: float) -> int:
    """How many of the LEVELS values drop an element; p is rounded to 1 / LEVELS, below 1."""
    return min(round(p * LEVELS), LEVELS - 1)


def scale_of(threshold: int) -> float:
    """What the kept elements are multiplied by."""
    return LEVELS / (LEVELS - threshold)


def draw_bits(shape: torch.Size, device: torch.device) -> Tensor:
    """16 random bits an element, int16 of that shape, from torch's default generator."""
    size = shape.numel()
    draws = torch.empty(-(-size // 4), dtype=torch.int64, device=device).random_(-(2**63), None)
    return draws.view(torch.int16)[:size].view(shape)


def kept(bits: Tensor, threshold: int, out: Tensor) -> Tensor:
    """1 where the element's bits reach the threshold, else 0, written to out (...) in its dtype.

    Args:
        bits: (...) int16 from draw_bits.
        threshold: from threshold_of.
        out: of the shape of bits, overwritten.
    """
    # Written as a float at once: a bool mask costs four times as much to write and to multiply by.
    return torch.ge(bits, threshold - LEVELS // 2, out=out)


def draw_seeds(n: int, threshold: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """n pairs of 32 random bits, (n, 2) uint32, from torch's default generator: one pair for each mask.

    Where nothing is dropped (threshold 0) they are zeros and the generator stays where it is: evaluating a model must
    not change how it trains on.
    """
    if not threshold:
        return np.zeros((n, 2), np.uint32)
    return torch.empty(n, 2, dtype=torch.int64).random_(0, 2**32).numpy().astype(np.uint32)


def mask_of(
    seed: np.ndarray[Any, np.dtype[np.uint32]], n_rows: int, width: int, threshold: int
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """What the compiled loops keep, (n_rows, width): the reference of encoder_kernels.fill_mask."""
    half = -(-width // 2)
    row, column = np.arange(n_rows, dtype=np.uint64)[:, None], np.arange(half, dtype=np.uint64)
    x = (row * np.uint64(half) + column).astype(np.uint32) ^ seed[0]
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    x = (x ^ (x >> np.uint32(16))) + seed[1]
    halves = np.concatenate([x & np.uint32(0xFFFF), x >> np.uint32(16)], axis=1)
    kept_ones: np.ndarray[Any, np.dtype[np.bool_]] = halves[:, :width] >= threshold
    return kept_ones
