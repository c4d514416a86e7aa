"""The Numba kernels of encoder_block; rows are (M, width), `numbers` (zero, scale, eps).

The numbers have the dtype of the rows, because plain ones would turn float32 into float64. `seed` is a pair of
draw_seeds; with threshold 0 nothing is dropped. Elements of a mask count from `before` rows before the first.
"""

from typing import Any

import numpy as np
from numba import prange

from recbole_lisa.ops.numba_threads.dropout import fill_mask
from recbole_lisa.ops.numba_threads.threads import compiled, in_parts


@compiled
def add_and_norm(
    first: int,
    end: int,
    x: Any,
    branch: Any,
    seed: Any,
    before: int,
    threshold: int,
    numbers: Any,
    gain: Any,
    shift: Any,
    total: Any,
    moments: Any,
    out: Any,
) -> None:
    """total = x + dropout(branch), out = LayerNorm(total), moments (2, M) = mean and 1 / deviation."""
    zero, scale, eps = numbers[0], numbers[1], numbers[2]
    width = x.shape[1]
    share = scale / scale / x.dtype.type(width)
    mask = np.ones(width, x.dtype)
    for row in range(first, end):
        x_row, b, t, o = x[row], branch[row], total[row], out[row]
        if threshold > 0:
            fill_mask(seed, before + row, threshold, zero, scale, mask)
        mean = zero
        for i in range(width):
            t[i] = x_row[i] + b[i] * mask[i]
            mean += t[i]
        mean *= share
        variance = zero
        for i in range(width):
            variance += (t[i] - mean) * (t[i] - mean)
        slope = share / share / np.sqrt(variance * share + eps)
        moments[0, row], moments[1, row] = mean, slope
        for i in range(width):
            o[i] = (t[i] - mean) * slope * gain[i] + shift[i]


@in_parts
def add_and_norm_in_parts(n: int, workers: int, args: Any) -> None:
    """add_and_norm over 0 .. n, cut in as many ranges as there are workers."""
    for i in prange(workers):
        add_and_norm(n * i // workers, n * (i + 1) // workers, *args)


@compiled
def norm_again(first: int, end: int, total: Any, moments: Any, gain: Any, shift: Any, out: Any) -> None:
    """out = LayerNorm(total), from its moments."""
    for row in range(first, end):
        t, o = total[row], out[row]
        mean, slope = moments[0, row], moments[1, row]
        for i in range(total.shape[1]):
            o[i] = (t[i] - mean) * slope * gain[i] + shift[i]


@in_parts
def norm_again_in_parts(n: int, workers: int, args: Any) -> None:
    """norm_again over 0 .. n, cut in as many ranges as there are workers."""
    for i in prange(workers):
        norm_again(n * i // workers, n * (i + 1) // workers, *args)


@compiled
def undo_add_and_norm(
    first: int,
    end: int,
    part_rows: int,
    grad: Any,
    seed: Any,
    before: int,
    threshold: int,
    numbers: Any,
    gain: Any,
    total: Any,
    moments: Any,
    d_x: Any,
    d_branch: Any,
    d_norm: Any,
) -> None:
    """Gradients by x and branch of add_and_norm, over parts first .. end of part_rows rows.

    Those by gain and shift are added to d_norm (parts, 2, width).
    """
    zero, scale = numbers[0], numbers[1]
    n_rows, width = grad.shape
    share = scale / scale / grad.dtype.type(width)
    mask = np.ones(width, grad.dtype)
    for row in range(first * part_rows, min(end * part_rows, n_rows)):
        g, t, d_t, d_b = grad[row], total[row], d_x[row], d_branch[row]
        d_gain, d_shift = d_norm[row // part_rows, 0], d_norm[row // part_rows, 1]
        if threshold > 0:
            fill_mask(seed, before + row, threshold, zero, scale, mask)
        mean, slope = moments[0, row], moments[1, row]
        plain, along = zero, zero
        for i in range(width):
            normed = (t[i] - mean) * slope
            plain += g[i] * gain[i]
            along += g[i] * gain[i] * normed
            d_gain[i] += g[i] * normed
            d_shift[i] += g[i]
        plain *= share
        along *= share
        for i in range(width):
            d_t[i] = (g[i] * gain[i] - plain - (t[i] - mean) * slope * along) * slope
            d_b[i] = d_t[i] * mask[i]


@in_parts
def undo_add_and_norm_in_parts(n: int, workers: int, args: Any) -> None:
    """undo_add_and_norm over 0 .. n, cut in as many ranges as there are workers."""
    for i in prange(workers):
        undo_add_and_norm(n * i // workers, n * (i + 1) // workers, *args)


@compiled
def activate(first: int, end: int, x: Any, seed: Any, before: int, threshold: int, numbers: Any, out: Any) -> None:
    """out = dropout(relu(x)); NaN stays NaN."""
    zero, scale = numbers[0], numbers[1]
    width = x.shape[1]
    mask = np.ones(width, x.dtype)
    for row in range(first, end):
        x_row, o = x[row], out[row]
        if threshold > 0:
            fill_mask(seed, before + row, threshold, zero, scale, mask)
        for i in range(width):
            o[i] = (zero if x_row[i] <= zero else x_row[i]) * mask[i]


@in_parts
def activate_in_parts(n: int, workers: int, args: Any) -> None:
    """activate over 0 .. n, cut in as many ranges as there are workers."""
    for i in prange(workers):
        activate(n * i // workers, n * (i + 1) // workers, *args)


@compiled
def undo_activate(first: int, end: int, out: Any, numbers: Any, grad: Any) -> None:
    """The gradient by x of activate, in place of that by its output."""
    zero, scale = numbers[0], numbers[1]
    for row in range(first, end):
        o, g = out[row], grad[row]
        for i in range(grad.shape[1]):
            g[i] = zero if o[i] == zero else g[i] * scale


@in_parts
def undo_activate_in_parts(n: int, workers: int, args: Any) -> None:
    """undo_activate over 0 .. n, cut in as many ranges as there are workers."""
    for i in prange(workers):
        undo_activate(n * i // workers, n * (i + 1) // workers, *args)
