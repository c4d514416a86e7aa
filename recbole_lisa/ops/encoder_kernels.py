"""The Numba kernels of encoder_block and of dropout, for rows (rows, width); a row stays in the cache for all passes.

Constants such as `zero` take the type of the arrays: a plain 0.0 would turn float32 sums into float64.
A loop that sums does not write to an array: numba_threads says why.
"""

from collections import namedtuple
from typing import Any

import numpy as np

from recbole_lisa.ops.numba_threads import compiled, over_range

AddAndNorm = namedtuple("AddAndNorm", "x branch gain shift eps seed threshold scale first_row total moments out")
"""total = x + dropout(branch), out = LayerNorm(total), for the rows of a block.

Reads x, branch, gain, shift, eps and a mask. Writes total, out and moments (rows, 2) = mean and 1 / deviation.
"""

UndoAddAndNorm = namedtuple(
    "UndoAddAndNorm", "grad gain total moments part_rows seed threshold scale first_row d_x d_branch d_norm"
)
"""The gradients of AddAndNorm.

Reads grad (of out), gain, total, moments and the mask. Writes d_x and d_branch, and adds to d_norm (parts, 2, width),
the gradients of gain and shift for each part_rows rows.
"""

Drop = namedtuple("Drop", "x out floor seed threshold scale first_row")
"""out = dropout(max(x, floor)); the floor 0 makes a relu, and -infinity plain dropout. Writes out."""


@compiled
def mixed(number: Any, seed: Any) -> Any:
    """32 bits from a number and a pair of seeds; every step is cut to 32 bits, because Numba widens sums."""
    x = number ^ seed[0]
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D))
    x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32((x ^ (x >> np.uint32(16))) + seed[1])


@compiled
def fill_mask(op: Any, row: int, factors: Any) -> None:
    """The factors of a row (width,): the scale where 16 hashed bits of an element reach the threshold, else 0.

    The two halves of a hash serve element i and the element half a row further. The reference: benchmarks.references.
    """
    if op.threshold == 0:
        return  # the factors are ones
    half = (factors.shape[0] + 1) // 2
    low, high = factors[:half], factors[half:]
    offset, smallest = np.uint32((op.first_row + row) * half), np.uint32(op.threshold)
    scale, zero = factors.dtype.type(op.scale), factors.dtype.type(0)
    for i in range(high.shape[0]):
        bits = mixed(np.uint32(offset + np.uint32(i)), op.seed)
        low[i] = scale if np.uint32(bits & np.uint32(0xFFFF)) >= smallest else zero
        high[i] = scale if np.uint32(bits >> np.uint32(16)) >= smallest else zero
    for i in range(high.shape[0], half):  # an odd width leaves one element without a partner
        bits = mixed(np.uint32(offset + np.uint32(i)), op.seed)
        low[i] = scale if np.uint32(bits & np.uint32(0xFFFF)) >= smallest else zero


@over_range
def drop(first: int, end: int, op: Drop) -> None:
    """Drop for rows first..end-1; NaN stays NaN."""
    floor, width = op.x.dtype.type(op.floor), op.x.shape[1]
    factors = np.ones(width, op.x.dtype)
    for row in range(first, end):
        x, o = op.x[row], op.out[row]
        fill_mask(op, row, factors)
        for i in range(width):
            o[i] = (floor if x[i] <= floor else x[i]) * factors[i]


@over_range
def add_and_norm(first: int, end: int, op: AddAndNorm) -> None:
    """AddAndNorm for rows first..end-1."""
    zero, one = op.out.dtype.type(0), op.out.dtype.type(1)
    width = op.out.shape[1]
    portion, eps = one / op.out.dtype.type(width), op.out.dtype.type(op.eps)
    factors = np.ones(width, op.out.dtype)
    for row in range(first, end):
        x, b, t, o = op.x[row], op.branch[row], op.total[row], op.out[row]
        fill_mask(op, row, factors)
        # First pass: the sum, then its mean.
        for i in range(width):
            t[i] = x[i] + b[i] * factors[i]
        mean = zero
        for i in range(width):
            mean += t[i]
        mean *= portion
        # Second pass: the variance around that mean.
        variance = zero
        for i in range(width):
            variance += (t[i] - mean) * (t[i] - mean)
        slope = one / np.sqrt(variance * portion + eps)
        op.moments[row, 0], op.moments[row, 1] = mean, slope
        # Third pass: the norm.
        for i in range(width):
            o[i] = (t[i] - mean) * slope * op.gain[i] + op.shift[i]


@over_range
def undo_add_and_norm(first_part: int, end_part: int, op: UndoAddAndNorm) -> None:
    """UndoAddAndNorm for parts of part_rows rows; each part has its own sums, so threads share no sum."""
    zero, one = op.grad.dtype.type(0), op.grad.dtype.type(1)
    n_rows, width = op.grad.shape
    portion = one / op.grad.dtype.type(width)
    factors = np.ones(width, op.grad.dtype)
    for row in range(first_part * op.part_rows, min(end_part * op.part_rows, n_rows)):
        g, t, d_t, d_b = op.grad[row], op.total[row], op.d_x[row], op.d_branch[row]
        d_gain, d_shift = op.d_norm[row // op.part_rows, 0], op.d_norm[row // op.part_rows, 1]
        fill_mask(op, row, factors)
        mean, slope = op.moments[row, 0], op.moments[row, 1]
        # First pass: the two means that LayerNorm takes out of the gradient, then the gradients of gain and shift.
        plain, along = zero, zero
        for i in range(width):
            plain += g[i] * op.gain[i]
            along += g[i] * op.gain[i] * ((t[i] - mean) * slope)
        for i in range(width):
            d_gain[i] += g[i] * ((t[i] - mean) * slope)
            d_shift[i] += g[i]
        plain *= portion
        along *= portion
        # Second pass: the gradient of the sum; the branch receives it where its mask kept the element.
        for i in range(width):
            d_t[i] = (g[i] * op.gain[i] - plain - (t[i] - mean) * slope * along) * slope
            d_b[i] = d_t[i] * factors[i]
