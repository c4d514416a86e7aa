"""The k best of many scores, found block by block: the whole row of scores never exists.

Equal scores are common where items share their codes. They come in the order of the item ids, and it is the smaller ids
that are kept, so that a result depends neither on the blocks nor on the rows beside it.
"""

from typing import NamedTuple

import torch
from torch import Tensor


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
    least = best.scores[:, -1]
    better = (scores.amax(dim=1) > least).nonzero().squeeze(1)  # (n,) rows that change
    if not len(better):
        return best
    own, old = scores[better], Best(best.scores[better], best.ids[better])
    if bool((old.scores[:, -1] == float("-inf")).any()):
        new = best_of_row(own, min(best.scores.shape[1], scores.shape[1]))
        ids = (new.ids + first_id).where(new.scores > float("-inf"), new.ids.new_tensor(-1))
        merged = _merge_columns(old, Best(new.scores, ids))
    else:
        merged = _merge_few(old, own, first_id)
    return Best(best.scores.index_copy(0, better, merged.scores), best.ids.index_copy(0, better, merged.ids))


def _merge_columns(old: Best, new: Best) -> Best:
    """The best of both; of equal scores those of `old` come first."""
    scores = torch.cat([old.scores, new.scores], dim=1)
    order = scores.argsort(dim=1, descending=True, stable=True)[:, : old.scores.shape[1]]
    return Best(scores.gather(1, order), torch.cat([old.ids, new.ids], dim=1).gather(1, order))


def _merge_few(old: Best, scores: Tensor, first_id: int) -> Best:
    """The best of full lists (n, k) and a block (n, m), of which few exceed the end of their list."""
    n, k = old.scores.shape
    rows, columns = (scores > old.scores[:, -1:]).nonzero(as_tuple=True)
    all_rows = torch.cat([torch.arange(n, device=rows.device).repeat_interleave(k), rows])
    all_scores = torch.cat([old.scores.flatten(), scores[rows, columns]])
    all_ids = torch.cat([old.ids.flatten(), columns + first_id])
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
