"""The rank of one held-out item among all items, a block of items at a time: no (N, V) matrix exists.

RecBole's collector sorts all scores of all histories at once. With one held-out item a history, every metric follows
from the number of items with a higher score, with the same score, and (for metrics of lists) the items on top.

A ranking without the items that a user has seen subtracts those items from the counts.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from recbole.evaluator import Collector
from torch import Tensor

BLOCK_SCORES = 2**22
"""Scores that exist at once: 16 MB in float32."""

Scorer = Callable[[Tensor], Tensor]
"""Item ids (K,) -> scores (N, K) of the N histories of a batch, a new tensor each time."""


class Ranks(NamedTuple):
    """Ranks of N held-out items.

    Attributes:
        higher: (N,) items that score higher; -1 where a score is NaN or infinite.
        before: (N,) items of the same score that come before it in the random order.
        tied: (N,) other items of the same score.
        top: (N, K) ids of the K best items, best first.
        n_ranked: (N,) ranked items, the held-out one included.
        masked: The ranks without the seen items; None without `seen`.
    """

    higher: Tensor
    before: Tensor
    tied: Tensor
    top: Tensor
    n_ranked: Tensor
    masked: "Ranks | None" = None


def rank_all_items(
    score: Scorer, target: Tensor, item_order: Tensor, n_top: int, seen: tuple[Tensor, Tensor] | None = None
) -> Ranks:
    """Rank every item but padding for each history of a batch.

    Args:
        score: Scores any items; see `Scorer`.
        target: (N,) ids of the held-out items.
        item_order: (V,) a permutation of all ids, padding included; equal scores rank in this order.
        n_top: K, the number of best items to return; 0 for none.
        seen: Pairs to leave out of a second ranking, `masked`: (P,) numbers of histories, (P,) ids. Each pair comes
            once; no pair is a held-out item or padding.
    """
    n = len(target)
    places = item_order.argsort()  # (V,) of the items in the order
    place = places[target]
    own = score(target).diagonal().unsqueeze(1).clone()  # (N, 1)
    finite = own[:, 0].isfinite()
    higher, before, tied = torch.zeros(3, n, dtype=torch.long, device=target.device)
    top = masked_top = own.new_full((n, n_top), -torch.inf), target.new_zeros(n, n_top)
    masking = None if seen is None else _Masking(*seen, places, own[:, 0], place)
    width = max(BLOCK_SCORES // max(n, 1), 1)
    for start in range(0, len(item_order), width):
        ids = item_order[start : start + width]
        scores = score(ids)  # (N, width)
        scores[:, ids == 0] = -torch.inf
        finite &= scores.amax(dim=1) < torch.inf  # not of NaN either
        top = _merged(top, scores, ids)
        if masking is not None:
            history, seen_column = masking.count(scores, start)
            if n_top:
                unseen = scores.index_put((history, seen_column), scores.new_tensor(-torch.inf))
                masked_top = _merged(masked_top, unseen, ids)
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
    ranks = Ranks(torch.where(finite, higher, -1), before, tied, top[1], torch.full_like(target, len(item_order) - 1))
    return ranks if masking is None else ranks._replace(masked=masking.without_seen(ranks, masked_top[1]))


class _Masking:
    """Counts of the seen items of N histories: higher, same and before, same, all; (4, N)."""

    def __init__(self, history: Tensor, item: Tensor, places: Tensor, own: Tensor, target_place: Tensor) -> None:
        self.places, order = places[item].sort()
        self.history = history[order]
        self.own, self.target_place = own, target_place
        self.counts = torch.zeros(4, len(own), dtype=torch.long, device=own.device)

    def count(self, scores: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Count the seen items in a block of scores (N, width) from place `start` on: their rows and columns."""
        ends = torch.tensor([start, start + scores.shape[1]], device=scores.device)
        part = slice(*torch.searchsorted(self.places, ends).tolist())
        history, column = self.history[part], self.places[part] - start
        values, own = scores[history, column], self.own[history]
        same = values == own
        kinds = (values > own, same & (self.places[part] < self.target_place[history]), same, torch.ones_like(same))
        for counts, kind in zip(self.counts, kinds, strict=True):
            counts += history[kind].bincount(minlength=len(counts))
        return history, column

    def without_seen(self, ranks: Ranks, top: Tensor) -> Ranks:
        """The ranks of the same histories without their seen items."""
        higher, before, tied, n_seen = self.counts
        higher = torch.where(ranks.higher < 0, -1, ranks.higher - higher)
        return Ranks(higher, ranks.before - before, ranks.tied - tied, top, ranks.n_ranked - n_seen)


def _merged(top: tuple[Tensor, Tensor], scores: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The K best scores (N, K) and their ids, of those so far and of a block."""
    best, names = top
    if not best.shape[1]:
        return top
    best, at = torch.cat([best, scores], dim=1).topk(best.shape[1], dim=1)
    return best, torch.cat([names, ids.expand(len(names), -1)], dim=1).gather(1, at)


def collect(collector: Collector, ranks: Ranks, max_k: int) -> None:
    """Add the ranks of a batch to RecBole's collector, for lists of `max_k` items."""
    needs, data = collector.register, collector.data_struct
    rank = (ranks.higher + ranks.before).unsqueeze(1)  # (N, 1), from 0
    one = torch.ones_like(rank)
    if needs.need("rec.topk"):
        hits = torch.arange(max_k, device=rank.device) == rank
        data.update_tensor("rec.topk", torch.cat([hits.int(), one.int()], dim=1))
    if needs.need("rec.items"):
        data.update_tensor("rec.items", ranks.top)
    if needs.need("rec.meanrank"):
        mean = ranks.higher.unsqueeze(1).double() + 1 + ranks.tied.unsqueeze(1) / 2
        data.update_tensor("rec.meanrank", torch.cat([mean, ranks.n_ranked.unsqueeze(1), one], dim=1))
