"""The rank of one held-out item among all items, a block of items at a time: no (N, V) matrix exists.

RecBole's collector sorts all scores of all histories at once. With one held-out item a history, every metric follows
from the number of items with a higher score, with the same score, and (for metrics of lists) the items on top.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from recbole.evaluator import Collector
from torch import Tensor

from recbole_lisa.ops.top_k import Best, best_of_row, merge

BLOCK_SCORES = 2**22  # scores that exist at once: 16 MB in float32

Scorer = Callable[[Tensor], Tensor]
"""Item ids (K,) -> scores (N, K) of the N histories of a batch, a new tensor each time."""


class Ranks(NamedTuple):
    """Ranks of N held-out items."""

    higher: Tensor  # (N,) items that score higher; -1 where a score is NaN or infinite
    before: Tensor  # (N,) items of the same score that come before it in the random order
    tied: Tensor  # (N,) other items of the same score
    top: Tensor  # (N, K) ids of the K best items, best first
    n_ranked: Tensor  # (N,) ranked items, the held-out one included

    @property
    def place(self) -> Tensor:
        """(N,) from 1, among equal scores in the random order."""
        return self.higher + self.before + 1


def rank_all_items(
    score: Scorer, target: Tensor, item_order: Tensor, n_top: int, seen: tuple[Tensor, Tensor] | None = None
) -> Ranks:
    """Rank every item but padding, and but the seen items, for each history of a batch.

    target (N,) are the ids of the held-out items. item_order (V,) is a permutation of all ids, padding included, in
    which equal scores rank. n_top is K, 0 for none. seen are the items to leave out, (P,) numbers of histories and (P,)
    ids: each pair comes once, and no pair is a held-out item or padding.
    """
    n = len(target)
    places = item_order.argsort()  # (V,) of the items in the order
    place = places[target]
    row, seen_item = (target[:0], target[:0]) if seen is None else seen
    seen_place, by_place = places[seen_item].sort()
    row = row[by_place]
    own = score(target).diagonal().unsqueeze(1).clone()  # (N, 1)
    finite = own[:, 0].isfinite()
    higher, before, tied = torch.zeros(3, n, dtype=torch.long, device=target.device)
    top = Best(own.new_full((n, n_top), -torch.inf), target.new_zeros(n, n_top))
    width = max(BLOCK_SCORES // max(n, 1), 1)
    for start in range(0, len(item_order), width):
        ids = item_order[start : start + width]
        scores = score(ids)  # (N, width)
        scores[:, ids == 0] = -torch.inf
        finite &= scores.amax(dim=1) < torch.inf  # not of NaN either
        ends = torch.tensor([start, start + len(ids)], device=ids.device)
        part = slice(*torch.searchsorted(seen_place, ends).tolist())
        scores[row[part], seen_place[part] - start] = -torch.inf
        if n_top:
            block = best_of_row(scores, min(n_top, len(ids)))
            top = merge([top, Best(block.scores, ids[block.ids])], n_top)
        column = place - start
        inside = (column >= 0) & (column < len(ids))
        # Rounded in another way than `own`, the held-out item could come before itself.
        scores[inside, column[inside]] = -torch.inf
        higher += (scores > own).sum(dim=1)
        same = scores == own
        n_same = same.sum(dim=1)
        if n_same.any():
            earlier = torch.arange(len(ids), device=ids.device) < column.unsqueeze(1)
            before += (same & earlier).sum(dim=1)
            tied += n_same
    n_ranked = len(item_order) - 1 - row.bincount(minlength=n)
    return Ranks(torch.where(finite, higher, -1), before, tied, top.ids, n_ranked)


def collect(collector: Collector, ranks: Ranks, max_k: int) -> None:
    """Add the ranks of a batch to RecBole's collector, for lists of `max_k` items."""
    needs, data = collector.register, collector.data_struct
    place = ranks.place.unsqueeze(1)  # (N, 1)
    one = torch.ones_like(place)
    if needs.need("rec.topk"):
        hits = torch.arange(1, max_k + 1, device=place.device) == place
        data.update_tensor("rec.topk", torch.cat([hits.int(), one.int()], dim=1))
    if needs.need("rec.items"):
        data.update_tensor("rec.items", ranks.top)
    if needs.need("rec.meanrank"):
        mean = ranks.higher.unsqueeze(1).double() + 1 + ranks.tied.unsqueeze(1) / 2
        data.update_tensor("rec.meanrank", torch.cat([mean, ranks.n_ranked.unsqueeze(1), one], dim=1))
