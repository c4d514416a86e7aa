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
    n, k = best.scores.shape
    better = (scores.amax(dim=1) > best.scores[:, -1]).nonzero().squeeze(1)  # (n,) rows that change
    if not len(better):
        return best
    old_scores, old_ids = (best.scores, best.ids) if len(better) == n else (best.scores[better], best.ids[better])
    new_scores, columns = best_of_row(scores if len(better) == n else scores[better], min(k, scores.shape[1]))
    new_ids = (columns + first_id).where(new_scores > float("-inf"), columns.new_tensor(-1))
    merged = torch.cat([old_scores, new_scores], dim=1)
    order = merged.argsort(dim=1, descending=True, stable=True)[:, :k]
    merged, ids = merged.gather(1, order), torch.cat([old_ids, new_ids], dim=1).gather(1, order)
    if len(better) == n:
        return Best(merged, ids)
    return Best(best.scores.index_copy(0, better, merged), best.ids.index_copy(0, better, ids))


def best_of_row(scores: Tensor, k: int) -> Best:
    """The k largest of each row, best first; of equal scores the smaller columns, in their order.

    Args:
        scores: (N, m).
        k: at most m.

    Returns:
        Scores (N, k) and columns (N, k).
    """
    least = scores.topk(k, dim=1).values[:, -1:]  # (N, 1)
    reached = scores >= least
    if int(reached.sum()) != k * len(scores):  # equal scores on the border: keep the first of them
        above = scores > least
        room = k - above.sum(dim=1, keepdim=True)
        level = reached & ~above
        reached = above | (level & (level.cumsum(dim=1) <= room))
    columns = reached.nonzero()[:, 1].view(len(scores), k)
    values, order = scores.gather(1, columns).sort(dim=1, descending=True, stable=True)
    return Best(values, columns.gather(1, order))
