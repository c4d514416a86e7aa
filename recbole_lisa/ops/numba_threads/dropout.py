"""Dropout masks from a seed and the element's number: the backward pass makes them again, nothing is kept."""

from typing import Any

import numpy as np

from recbole_lisa.ops.numba_threads.threads import compiled


@compiled
def mixed(number: Any, seed: Any) -> Any:
    """32 bits from a number and a pair of seeds; every step is cut to 32 bits, because Numba widens sums."""
    x = number ^ seed[0]
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D))
    x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32((x ^ (x >> np.uint32(16))) + seed[1])


@compiled
def fill_mask(seed: Any, row: int, threshold: int, zero: Any, scale: Any, mask: Any) -> None:
    """The mask of a row (width,): scale where 16 hashed bits of an element reach the threshold, else zero.

    The two halves of a hash serve element i and the one half a row on. dropout_bits.mask_of is the twin.
    """
    half = (mask.shape[0] + 1) // 2
    low, high = mask[:half], mask[half:]
    offset = np.uint32(row * half)
    smallest = np.uint32(threshold)
    for i in range(high.shape[0]):
        bits = mixed(np.uint32(offset + np.uint32(i)), seed)
        low[i] = scale if np.uint32(bits & np.uint32(0xFFFF)) >= smallest else zero
        high[i] = scale if np.uint32(bits >> np.uint32(16)) >= smallest else zero
    for i in range(high.shape[0], half):
        bits = mixed(np.uint32(offset + np.uint32(i)), seed)
        low[i] = scale if np.uint32(bits & np.uint32(0xFFFF)) >= smallest else zero
