r"""Items whose score can reach the k-th best of all, by upper bounds of scores in one byte a codeword.

An item with codes c_b and the score s = sum_b t_b[c_b], t_b = C_b h, lacks d to the best codewords of all codebooks:

    d = sum_b d_b[c_b]        d_b[c] = max_w t_b[w] - t_b[c] >= 0

Let G be the k-th smallest d of a sample of the items. The k best of all have d <= G, and so

    sum_b q_b[c_b] <= 254     q_b[c] = min(255, floor(254 d_b[c] / G))

The sums of q are in bytes that stop at 255, 64 items at once: the time is the same for all queries and codes.

Rounding. Let S = sum_b max_w |t_b[w]| and eps = 2^-23. A score that codeword_scores computes, in float32 or float64 and
in any order, is off s by less than B eps S: at most B additions, each wrong by eps / 2 of a partial sum below
S (1 + B eps). So items that it scores among the k best have d < G + 2 B eps S. Here d_b and d are float64, wrong by far
less than B eps S. G is enlarged by 4 B eps S, and by a factor of 1 + 1e-9 for the quotients. No item of a list is lost.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recbole_lisa.ops.checks import check_operands, check_sizes
from recbole_lisa.ops.numba_threads import arrays, check_rows, writable

BLOCK, CODES = 64, 256  # items whose sums are computed together, and values of a code


def code_blocks(codes: Tensor) -> Tensor:
    """Lay out codes (V, B) uint8 as blocks (ceil(V / 64), B, 64), B bytes an item; the codes after the last are 0."""
    check_operands("codes: integer V+ B+", codes)
    padded = torch.nn.functional.pad(codes, (0, 0, 0, -len(codes) % BLOCK))
    return padded.view(-1, BLOCK, codes.shape[1]).transpose(1, 2).contiguous()


def shortlist(blocks: Tensor, n_items: int, tables: Tensor, k: int, left_out: Sequence[Any] | None) -> Tensor | None:
    """Find items that hold the k best of every query: ascending item numbers, those of all lists and some more.

    None for more than V / 4, for a k too large for the sample, and for numbers that are not finite or may overflow.
    blocks are code_blocks of n_items = V items; tables (B, W, N) are look-up tables with W at most 256; left_out has
    the item numbers (int64 arrays) that each query must not get, None where there are none.

    Raises:
        ValueError: the shapes or types do not fit; IndexError: a code of the sample is not below W.
    """
    check_operands("blocks: integer M B J; tables: floating-point B W N+", blocks, tables)
    check_sizes(n_items=n_items, k=k)
    (n_books, n_codewords, n), n_blocks = tables.shape, -(-n_items // BLOCK)
    if blocks.dtype != torch.uint8 or blocks.shape[::2] != (n_blocks, BLOCK) or n_codewords > CODES:
        right = f"blocks ({n_blocks}, B, {BLOCK}) uint8 and tables (B, W <= {CODES}, N)"
        raise ValueError(f"needs {right}, got {tuple(blocks.shape)} {blocks.dtype} and {tuple(tables.shape)}")
    if left_out is not None and len(left_out) != n:
        raise ValueError(f"left_out must have one array for each of {n} queries, got {len(left_out)}")
    t = tables.permute(2, 0, 1).double()
    sizes = t.abs().amax(dim=2).sum(dim=1)
    step = max(math.isqrt(n_items // k) // 3, 1)
    sample = blocks[: n_items // BLOCK : step]  # 3 sqrt(k V) items: about sqrt(k V) / 3 of all have d <= G
    check_rows(sample, n_codewords, "codes")
    # Without an item of the sample, the k-th best of a query stands one place lower in it.
    ranks = [k - 1 + np.count_nonzero(items // BLOCK % step == 0) for items in left_out or [np.empty(0)] * n]
    if 4 * max(ranks) >= BLOCK * len(sample) or not bool((sizes < 1e37).all()):  # NaN is not below
        return None
    from recbole_lisa.ops import score_bound_kernels as kernels

    small, masks = torch.zeros(n, n_books, CODES, dtype=torch.uint8), torch.zeros(n_blocks, dtype=torch.int64)
    slack = (4 * n_books * 2**-23 * sizes).clamp_min(1e-300)
    read = arrays(sample=sample, deficits=t.amax(dim=2, keepdim=True) - t, slack=slack, ranks=torch.tensor(ranks))
    bounds = kernels.Bounds(**arrays(blocks=blocks), **read, **writable(small=small, masks=masks))
    kernels.set_small_tables(n, bounds)
    kernels.MASKS[kernels.SHUFFLES](n_blocks, bounds)
    some = np.flatnonzero(masks.numpy() != 0)
    bits = np.unpackbits(masks.numpy()[some].astype("<i8").view(np.uint8), bitorder="little").view(np.bool_)
    if np.count_nonzero(bits) > n_items // 4:
        return None
    at = np.flatnonzero(bits)
    ids = some[at // BLOCK] * BLOCK + at % BLOCK
    return torch.from_numpy(ids[: np.searchsorted(ids, n_items)])
