"""The k best of many scores, found block by block: the whole row of scores never exists.

Equal scores are common where items share their codes. They come in the order of the item ids, and it is the smaller ids
that are kept, so that a result depends neither on the blocks nor on the rows beside it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

COLUMNS_TO_FILL = 2**12
"""Columns that are sorted at a time while lists are not full; then few scores are better than what a list has."""
CHUNK = 256
"""Columns of which the largest score is looked at first."""


class Best(NamedTuple):
    """The best items so far, best first: scores (N, k) and ids (N, k) int64; -inf and -1 where there are fewer."""

    scores: Tensor
    ids: Tensor


def nothing_yet(n: int, k: int, like: Tensor) -> Best:
    """No items for N rows; scores in the type and on the device of `like`."""
    return Best(like.new_full((n, k), float("-inf")), torch.full((n, k), -1, device=like.device))


def add_block(best: Best, scores: Tensor, first_id: int) -> Best:
    """Take the next block of items into account.

    Args:
        best: of the blocks before, whose ids are all smaller.
        scores: (N, m) of items first_id, first_id + 1, ...; -inf leaves an item out.
        first_id: id of the first column.

    Returns:
        Best of all blocks so far.
    """
    size = max(COLUMNS_TO_FILL, best.scores.shape[1])
    while _can_grow(best, scores):
        best = _fill(best, scores[:, :size], first_id)
        scores, first_id = scores[:, size:], first_id + size
    rows, columns = _above(scores, best.scores[:, -1])
    if not len(rows):
        return best
    better, place = torch.unique(rows, return_inverse=True)
    old = Best(best.scores[better], best.ids[better])
    return _replace(best, better, _merge_few(old, place, scores[rows, columns], columns + first_id))


def _can_grow(best: Best, scores: Tensor) -> bool:
    """Whether a list is not full and could be longer."""
    nothing = float("-inf")
    short = (best.scores[:, -1] == nothing).nonzero().squeeze(1)
    return bool(len(short) and scores.shape[1] and (scores[short].amax(dim=1) > nothing).any())


def _fill(best: Best, scores: Tensor, first_id: int) -> Best:
    """add_block for lists that are not full: all columns are sorted."""
    better = (scores.amax(dim=1) > best.scores[:, -1]).nonzero().squeeze(1)  # (n,) rows that change
    new = best_of_row(scores[better], min(best.scores.shape[1], scores.shape[1]))
    ids = (new.ids + first_id).where(new.scores > float("-inf"), new.ids.new_tensor(-1))
    old = Best(best.scores[better], best.ids[better])
    return _replace(best, better, _merge_columns(old, Best(new.scores, ids)))


def _replace(best: Best, rows: Tensor, by: Best) -> Best:
    return Best(best.scores.index_copy(0, rows, by.scores), best.ids.index_copy(0, rows, by.ids))


def _above(scores: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns of the scores (N, m) above least (N,), a row's columns in their order.

    Only chunks with a score above it are looked into: to find where scores are costs far more than to find the largest.
    """
    n, m = scores.shape
    whole = m - m % CHUNK
    chunks = scores[:, :whole].view(n, whole // CHUNK, CHUNK)
    if scores.stride(0) == 1:  # torch takes forty times as long for the other order of these columns
        largest = scores[:, :whole].t().view(whole // CHUNK, CHUNK, n).amax(dim=1).t()
    else:
        largest = chunks.amax(dim=2)
    rows, chunk = (largest > least.unsqueeze(1)).nonzero(as_tuple=True)
    at, column = (chunks[rows, chunk] > least[rows].unsqueeze(1)).nonzero(as_tuple=True)
    rest = (scores[:, whole:] > least.unsqueeze(1)).nonzero(as_tuple=True)
    return torch.cat([rows[at], rest[0]]), torch.cat([chunk[at] * CHUNK + column, rest[1] + whole])


def _merge_columns(old: Best, new: Best) -> Best:
    """The best of both; of equal scores those of `old` come first."""
    scores = torch.cat([old.scores, new.scores], dim=1)
    order = scores.argsort(dim=1, descending=True, stable=True)[:, : old.scores.shape[1]]
    return Best(scores.gather(1, order), torch.cat([old.ids, new.ids], dim=1).gather(1, order))


def _merge_few(old: Best, rows: Tensor, scores: Tensor, ids: Tensor) -> Best:
    """The best of full lists (n, k) and of scores (E,) and ids (E,) for some rows (E,), by id within a row."""
    n, k = old.scores.shape
    all_rows = torch.cat([torch.arange(n, device=rows.device).repeat_interleave(k), rows])
    all_scores = torch.cat([old.scores.flatten(), scores])
    all_ids = torch.cat([old.ids.flatten(), ids])
    order = all_scores.argsort(descending=True, stable=True)
    order = order[all_rows[order].argsort(stable=True)]  # by row, then by score, then by id
    first = torch.searchsorted(all_rows[order], torch.arange(n, device=rows.device))
    kept = order[first.unsqueeze(1) + torch.arange(k, device=rows.device)]  # (n, k)
    return Best(all_scores[kept], all_ids[kept])


def best_of_row(scores: Tensor, k: int) -> Best:
    """The k largest of each row, best first; of equal scores the smaller columns, in their order.

    Args:
        scores: (N, m).
        k: at most m.

    Returns:
        Scores (N, k) and columns (N, k).
    """
    values, columns = scores.topk(k, dim=1)
    columns, order = columns.sort(dim=1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    columns = columns.gather(1, order)
    least = values[:, -1:]
    # Where more columns reach the least score than there is room for, topk keeps any of them.
    tied = ((scores == least).sum(dim=1) > (values == least).sum(dim=1)).nonzero().squeeze(1)
    for row in tied.tolist():
        found = (scores[row] >= least[row]).nonzero().squeeze(1)
        columns[row] = found[scores[row, found].argsort(descending=True, stable=True)[:k]]
    return Best(values, columns)
