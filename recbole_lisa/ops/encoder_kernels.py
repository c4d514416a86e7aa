"""The Numba kernels of encoder_block; rows are (M, width) and one row stays in the first cache for all its passes.

Dropout masks are not kept: 16 bits an element are hashed from a seed and the element's number, so the backward pass
makes the same mask again. Constants such as `zero` take the type of the arrays: a plain 0.0 would turn float32 sums
into float64.
"""

from typing import Any, NamedTuple

import numpy as np

from recbole_lisa.ops.numba_threads import compiled, over_range


class AddAndNorm(NamedTuple):
    """total = x + dropout(branch), out = LayerNorm(total), for the rows of a block.

    Reads x, branch, gain, shift and eps; writes total, moments (2, rows) = mean and 1 / deviation, and out. The mask:
    seed (2,) uint32 of draw_seeds, threshold (0 = no dropout), scale of what is kept, and the number of the block's
    first row in the mask.
    """

    x: Any
    branch: Any
    gain: Any
    shift: Any
    total: Any
    moments: Any
    out: Any
    eps: Any
    seed: Any
    threshold: int
    scale: Any
    first_row: int


class Norm(NamedTuple):
    """out = LayerNorm(total), from the moments; writes out."""

    total: Any
    moments: Any
    gain: Any
    shift: Any
    out: Any


class UndoAddAndNorm(NamedTuple):
    """The gradients of AddAndNorm, with its mask.

    Reads grad (of out), gain, total and moments; writes d_x and d_branch, and adds to d_norm (parts, 2, width), the
    gradients of gain and shift for each part_rows rows.
    """

    grad: Any
    gain: Any
    total: Any
    moments: Any
    d_x: Any
    d_branch: Any
    d_norm: Any
    part_rows: int
    seed: Any
    threshold: int
    scale: Any
    first_row: int


class Activate(NamedTuple):
    """out = dropout(relu(x)), with a mask as AddAndNorm; reads x, writes out."""

    x: Any
    out: Any
    seed: Any
    threshold: int
    scale: Any
    first_row: int


class UndoActivate(NamedTuple):
    """Turns grad, the gradient of out, into that of x, in place."""

    out: Any
    grad: Any
    scale: Any


@compiled
def mixed(number: Any, seed: Any) -> Any:
    """32 bits from a number and a pair of seeds; every step is cut to 32 bits, because Numba widens sums."""
    x = number ^ seed[0]
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D))
    x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32((x ^ (x >> np.uint32(16))) + seed[1])


@compiled
def fill_mask(seed: Any, row: int, threshold: int, scale: Any, mask: Any) -> None:
    """The mask of a row (width,): scale where 16 hashed bits of an element reach the threshold, else 0.

    The two halves of a hash serve element i and the element half a row further. dropout_bits.mask_of is the reference.
    """
    half = (mask.shape[0] + 1) // 2
    low, high = mask[:half], mask[half:]
    offset = np.uint32(row * half)
    smallest, zero = np.uint32(threshold), mask.dtype.type(0)
    for i in range(high.shape[0]):
        bits = mixed(np.uint32(offset + np.uint32(i)), seed)
        low[i] = scale if np.uint32(bits & np.uint32(0xFFFF)) >= smallest else zero
        high[i] = scale if np.uint32(bits >> np.uint32(16)) >= smallest else zero
    for i in range(high.shape[0], half):  # an odd width leaves one element without a partner
        bits = mixed(np.uint32(offset + np.uint32(i)), seed)
        low[i] = scale if np.uint32(bits & np.uint32(0xFFFF)) >= smallest else zero


@over_range
def add_and_norm(first: int, end: int, op: AddAndNorm) -> None:
    """AddAndNorm for rows first..end-1."""
    zero, one = op.out.dtype.type(0), op.out.dtype.type(1)
    width = op.out.shape[1]
    portion = one / op.out.dtype.type(width)
    mask = np.ones(width, op.out.dtype)
    for row in range(first, end):
        x, b, t, o = op.x[row], op.branch[row], op.total[row], op.out[row]
        if op.threshold > 0:
            fill_mask(op.seed, op.first_row + row, op.threshold, op.scale, mask)
        # First pass: the sum and its mean.
        mean = zero
        for i in range(width):
            t[i] = x[i] + b[i] * mask[i]
            mean += t[i]
        mean *= portion
        # Second pass: the variance around that mean.
        variance = zero
        for i in range(width):
            variance += (t[i] - mean) * (t[i] - mean)
        slope = one / np.sqrt(variance * portion + op.eps)
        op.moments[0, row], op.moments[1, row] = mean, slope
        # Third pass: the norm.
        for i in range(width):
            o[i] = (t[i] - mean) * slope * op.gain[i] + op.shift[i]


@over_range
def norm_again(first: int, end: int, op: Norm) -> None:
    """Norm for rows first..end-1, so that the backward pass keeps no copy of h."""
    for row in range(first, end):
        t, o = op.total[row], op.out[row]
        mean, slope = op.moments[0, row], op.moments[1, row]
        for i in range(op.total.shape[1]):
            o[i] = (t[i] - mean) * slope * op.gain[i] + op.shift[i]


@over_range
def undo_add_and_norm(first_part: int, end_part: int, op: UndoAddAndNorm) -> None:
    """UndoAddAndNorm for parts of part_rows rows; each part has its own sums, so threads share no sum."""
    zero, one = op.grad.dtype.type(0), op.grad.dtype.type(1)
    n_rows, width = op.grad.shape
    portion = one / op.grad.dtype.type(width)
    mask = np.ones(width, op.grad.dtype)
    for row in range(first_part * op.part_rows, min(end_part * op.part_rows, n_rows)):
        g, t, d_t, d_b = op.grad[row], op.total[row], op.d_x[row], op.d_branch[row]
        d_gain, d_shift = op.d_norm[row // op.part_rows, 0], op.d_norm[row // op.part_rows, 1]
        if op.threshold > 0:
            fill_mask(op.seed, op.first_row + row, op.threshold, op.scale, mask)
        mean, slope = op.moments[0, row], op.moments[1, row]
        # First pass: the gradients of gain and shift, and the two means that LayerNorm takes out of the gradient.
        plain, along = zero, zero
        for i in range(width):
            normed = (t[i] - mean) * slope
            plain += g[i] * op.gain[i]
            along += g[i] * op.gain[i] * normed
            d_gain[i] += g[i] * normed
            d_shift[i] += g[i]
        plain *= portion
        along *= portion
        # Second pass: the gradient of the sum; the branch receives it where its mask kept the element.
        for i in range(width):
            d_t[i] = (g[i] * op.gain[i] - plain - (t[i] - mean) * slope * along) * slope
            d_b[i] = d_t[i] * mask[i]


@over_range
def activate(first: int, end: int, op: Activate) -> None:
    """Activate for rows first..end-1; NaN stays NaN."""
    zero = op.x.dtype.type(0)
    width = op.x.shape[1]
    mask = np.ones(width, op.x.dtype)
    for row in range(first, end):
        x, o = op.x[row], op.out[row]
        if op.threshold > 0:
            fill_mask(op.seed, op.first_row + row, op.threshold, op.scale, mask)
        for i in range(width):
            o[i] = (zero if x[i] <= zero else x[i]) * mask[i]


@over_range
def undo_activate(first: int, end: int, op: UndoActivate) -> None:
    """UndoActivate: out is 0 where relu or the mask dropped the element, so the mask is not made again."""
    zero = op.out.dtype.type(0)
    for row in range(first, end):
        o, g = op.out[row], op.grad[row]
        for i in range(op.grad.shape[1]):
            g[i] = zero if o[i] == zero else g[i] * op.scale
