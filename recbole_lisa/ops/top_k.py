"""The k best of many scores, computed block by block, so that the whole row of scores never exists.

Equal scores are common where items share their codes. They are ordered by item id and the smaller ids are kept, so a
result depends neither on the blocks nor on the other rows.
"""

from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

from recbole_lisa.ops.checks import check_operands, check_sizes

CHUNK = 32
"""Columns whose largest score is computed first."""


class Best(NamedTuple):
    """The best items, best first: scores (N, k) and ids (N, k) int64. A score of -inf stands for no item."""

    scores: Tensor
    ids: Tensor


def best_of_row(scores: Tensor, k: int) -> Best:
    """The k largest scores of each row of scores (N, m), best first, and their columns; equal scores by column.

    -inf leaves an item out; a k that is not in 1..m is a ValueError.
    """
    check_operands("scores: N m", scores)
    if not isinstance(k, Integral) or isinstance(k, bool) or not 1 <= k <= scores.shape[1]:
        raise ValueError(f"k must lie in 1..{scores.shape[1]} (m), got {k}")
    columns, outside = _candidates(scores, k)
    values, places = scores.gather(1, columns).topk(min(k + 1, columns.shape[1]), dim=1)
    # topk keeps any of several equal scores: look at the whole row where one was left over.
    left_over = torch.cat([values[:, k:], outside], dim=1)
    tied = ((left_over == values[:, k - 1 : k]) & (left_over > float("-inf"))).any(dim=1)
    columns, order = columns.gather(1, places[:, :k]).sort(dim=1)
    values, order = values[:, :k].gather(1, order).sort(dim=1, descending=True, stable=True)
    columns = columns.gather(1, order)
    for row in tied.nonzero().flatten().tolist():
        candidates = (scores[row] >= values[row, -1]).nonzero().squeeze(1)
        columns[row] = candidates[scores[row, candidates].argsort(descending=True, stable=True)[:k]]
    return Best(values, columns)


def _candidates(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Columns (N, c) that hold the k largest scores, and the largest score outside them (N, 0 or 1)."""
    n, m = scores.shape
    chunks = m // CHUNK
    if chunks < 4 * k:
        return torch.arange(m, device=scores.device).expand(n, m), scores[:, :0]
    whole = scores[:, : chunks * CHUNK]
    if scores.stride(0) == 1:  # for this layout torch reduces the transposed view forty times as fast
        maxima = whole.t().view(chunks, CHUNK, n).amax(dim=1).t()
    else:
        maxima = whole.reshape(n, chunks, CHUNK).amax(dim=2)
    # The k largest scores lie in the k chunks with the largest maxima. Finding maxima costs far less than sorting.
    largest, places = maxima.topk(k + 1, dim=1)
    steps = torch.arange(CHUNK, device=scores.device)
    in_chunks = (places[:, :k, None] * CHUNK + steps).flatten(1)  # (N, k * CHUNK)
    rest = torch.arange(chunks * CHUNK, m, device=scores.device).expand(n, -1)
    return torch.cat([in_chunks, rest], dim=1), largest[:, k:]


def merge(blocks: list[Best], k: int) -> Best:
    """Join the best of consecutive blocks of items; equal scores stay in the order of the blocks."""
    check_sizes(k=k, number_of_blocks=len(blocks))
    for scores, ids in blocks:
        check_operands("first: N m; scores: N n; ids: integer N n", blocks[0][0], scores, ids)
    scores, ids = (torch.cat(parts, dim=1) for parts in zip(*blocks, strict=True))
    order = scores.argsort(dim=1, descending=True, stable=True)[:, :k]
    return Best(scores.gather(1, order), ids.gather(1, order))
