r"""Items whose score can reach a threshold, by upper bounds of scores in one byte a codeword.

With t_b = C_b h, M_b = max_c t_b[c] and a threshold theta, a score s_v = sum_b t_b[code_v^b] is at least theta only if

    sum_b (M_b - t_b[code_v^b]) <= G        G = sum_b M_b - theta
    sum_b q_b[code_v^b] <= 254              q_b[c] = min(255, floor(254 (M_b - t_b[c]) / G))

The sums of q are in bytes that stop at 255, 64 items at once: the time is the same for all queries and codes.

Rounding. Let S = sum_b max_c |t_b[c]|, and eps the distance of 1 to the next number of the tables' type. A score that
codeword_scores computes, in any order, is off s_v by less than B eps S: at most B additions, each wrong by eps / 2
of a partial sum below S (1 + B eps). M_b - t_b[c], G and the quotients are float64, wrong by less than 3 B 2^-52 S.
So G is enlarged by 4 B eps S and a factor of 1 + 1e-9, and no item with a computed score of theta or above is lost.
"""

import numpy as np
import torch
from torch import Tensor

from recbole_lisa.ops.checks import check_operands
from recbole_lisa.ops.numba_threads import arrays, writable

BLOCK, CODES = 64, 256
"""Items whose sums are computed together, as many as a vector register has bytes, and values of a code."""


def code_blocks(codes: Tensor) -> Tensor:
    """Lay out codes (V, B) uint8 as blocks (ceil(V / 64), B, 64), B bytes an item; the codes after the last are 0."""
    check_operands("codes: integer V+ B+", codes)
    n_items, n_books = codes.shape
    padded = torch.nn.functional.pad(codes, (0, 0, 0, -n_items % BLOCK))
    return padded.view(-1, BLOCK, n_books).transpose(1, 2).contiguous()


def items_above(blocks: Tensor, n_items: int, tables: Tensor, thresholds: Tensor) -> Tensor | None:
    """Find the items whose score can reach the threshold of any query.

    Args:
        blocks: (ceil(V / 64), B, 64) uint8, see code_blocks.
        n_items: V.
        tables: Look-up tables (B, W, N), W at most 256.
        thresholds: (N,), scores of items by codeword_scores.

    Returns:
        Ascending item numbers: all that codeword_scores scores at thresholds[n] or above for a query n, and some more.
        None for more than V / 4, and where a number is not finite or sums could overflow.

    Raises:
        ValueError: the shapes or types do not fit.
    """
    forms = "blocks: integer M B J; tables: floating-point B W N; thresholds: floating-point N"
    check_operands(forms, blocks, tables, thresholds)
    padding = BLOCK * len(blocks) - n_items
    if blocks.dtype != torch.uint8 or blocks.shape[2] != BLOCK or tables.shape[1] > CODES or not 0 <= padding < BLOCK:
        right = f"blocks ({-(-n_items // BLOCK)}, B, {BLOCK}) uint8 and tables (B, W <= {CODES}, N)"
        raise ValueError(f"needs {right}, got {tuple(blocks.shape)} {blocks.dtype} and {tuple(tables.shape)}")
    small = _small_tables(tables, thresholds)
    if small is None:
        return None
    from recbole_lisa.ops import score_bound_kernels as kernels

    masks = torch.zeros(len(blocks), dtype=torch.int64)
    fill = kernels.masks_by_shuffles if kernels.has_byte_shuffles() else kernels.masks_by_look_ups
    fill(len(blocks), kernels.SmallSums(**arrays(blocks=blocks, tables=small), **writable(masks=masks)))
    some = np.flatnonzero(masks.numpy() != 0)
    bits = np.unpackbits(masks.numpy()[some].astype("<i8").view(np.uint8), bitorder="little").view(np.bool_)
    if np.count_nonzero(bits) > n_items // 4:
        return None
    places = np.flatnonzero(bits)
    ids = some[places // BLOCK] * BLOCK + places % BLOCK
    return torch.from_numpy(ids[: np.searchsorted(ids, n_items)])


def _small_tables(tables: Tensor, thresholds: Tensor) -> Tensor | None:
    """q (N, B, 256) uint8 of the queries; None where a number is not finite or sums could overflow."""
    (n_books, n_codewords, n), limits = tables.shape, torch.finfo(tables.dtype)
    t, theta = tables.permute(2, 0, 1).double().numpy(), thresholds.double().numpy()
    low, high = t.min(axis=2), t.max(axis=2)
    size = np.maximum(-low, high).sum(axis=1)
    if not (np.all(size < limits.max / 4) and np.isfinite(theta).all()):  # False for NaN
        return None
    gap = (high.sum(axis=1) - theta + 4 * n_books * limits.eps * size) * (1 + 1e-9)
    steps = np.maximum(gap / 254, np.finfo(np.float64).tiny)[:, None, None]
    small = np.zeros((n, n_books, CODES), dtype=np.uint8)
    small[:, :, :n_codewords] = np.minimum((high[:, :, None] - t) / steps, 255)
    return torch.from_numpy(small)
