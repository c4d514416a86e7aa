"""Negative items: new ones for every training position, and fixed candidate lists for evaluation."""

import numpy as np

from recbole_lisa.data.histories import Histories, Ids, Index, Items, runs
from recbole_lisa.errors import UsageError

_SCALE = 2.0**40
_CHUNK_CELLS, _CHUNK_OF_MANY, _MANY_ITEMS = 2**25, 2**12, 2**22
_ROUNDS = 24


def item_weights(counts: Index, distribution: str, alpha: float = 1.0) -> Index:
    """Sampling weights (V,) of the items as integers, so that draws are exact.

    The distribution is `uniform`, or `popularity`: counts (V,) to the power alpha. Weights are 0 for padding, entry 0,
    and for items that are never drawn, and at least 1 for all others.
    """
    if distribution == "uniform":
        weights = np.ones(len(counts), dtype=np.int64)
    else:
        seen = counts > 0
        share = np.where(seen, counts, 1).astype(np.float64) ** alpha * seen
        weights = np.ceil(share / max(share.max(initial=0.0), 1e-300) * _SCALE).astype(np.int64)
    weights[0] = 0
    return weights


class TrainingNegatives:
    """Draws R negatives for each training position from all items but that position's own target.

    Other items of the user's history may be drawn, as in RecBole's sequential sampler and in the paper's code. weights
    (V,) are those of `item_weights`, sample_num is R.

    Raises:
        UsageError: Fewer than two items can be drawn.
    """

    def __init__(self, weights: Index, sample_num: int) -> None:
        drawable = int(np.count_nonzero(weights))
        if drawable < 2:
            raise UsageError(f"negative sampling needs at least 2 items to draw from, the data has {drawable}")
        self._sample_num = sample_num
        self._weights = weights
        self._cumulative = np.cumsum(weights)
        self._uniform = bool((weights[1:] == weights[1]).all())

    def draw(self, targets: Index, rng: np.random.Generator) -> Index:
        """Negatives (..., R) of targets (...), item ids; 0 where the target is 0, as at padding.

        Drawing from the items without the target is one draw from a shorter range, moved past the target where it
        lands on or after it: exact, and without retries.
        """
        shape, target = (*targets.shape, self._sample_num), targets[..., None]
        if self._uniform:
            drawn = rng.integers(1, len(self._weights) - 1, size=shape)
            drawn += drawn >= target
        else:
            own = self._weights[target]
            drawn = rng.integers(0, self._cumulative[-1] - own, size=shape)
            drawn += own * (drawn >= self._cumulative[target] - own)
            drawn = np.searchsorted(self._cumulative, drawn, side="right")
        drawn *= target > 0
        return drawn

    def draw_shared(self, n: int, rng: np.random.Generator) -> Index:
        """Items (n,) for all positions of a batch, drawn one by one: an item may be there twice, or be a target."""
        drawn = rng.integers(0, self._cumulative[-1], size=n)
        return np.searchsorted(self._cumulative, drawn, side="right")


def evaluation_negatives(
    histories: Histories, owners: Ids, weights: Index, sample_num: int, rng: np.random.Generator
) -> Items:
    """Negatives that their user never interacted with, before or after, without repeats.

    The histories are whole, held-out items included; owners (targets,) is the history of each target, weights (V,) is
    that of `item_weights`, and sample_num is K. Returns item ids (targets, K).

    Raises:
        UsageError: A user has fewer than K such items.
    """
    negatives = np.empty((len(owners), sample_num), dtype=np.int32)
    chunk = _CHUNK_CELLS // len(weights) if len(weights) < _MANY_ITEMS else _CHUNK_OF_MANY
    for start in range(0, len(owners), chunk):
        part = owners[start : start + chunk]
        negatives[start : start + chunk] = _draw_unseen(histories, part, weights, sample_num, rng)
    return negatives


def _draw_unseen(histories: Histories, owners: Ids, weights: Index, sample_num: int, rng: np.random.Generator) -> Items:
    """(n, K) negatives of one chunk of targets."""
    n_items, drawable = len(weights), np.count_nonzero(weights)
    target, at = runs(histories.offsets[owners], histories.lengths[owners])
    blocked: Index = np.unique(target.astype(np.int64) * n_items + histories.items[at])  # ascending
    row, item = np.divmod(blocked, n_items)
    free = drawable - int(np.bincount(row[weights[item] > 0]).max(initial=0))
    if free < sample_num:
        fewer = f", or rank at most {free} negatives" if free else ""
        raise UsageError(
            f"eval_args.mode needs {sample_num} evaluation negatives per user, but a user has only {free} items of "
            f"{drawable} that can be drawn and are not in its history: set eval_args to {{mode: full}}{fewer}"
        )
    negatives = np.zeros((len(owners), sample_num), dtype=np.int32)
    cumulative = np.cumsum(weights)
    for _ in range(_ROUNDS):
        row, column = np.nonzero(negatives == 0)
        if not len(row):
            return negatives
        drawn = rng.integers(0, cumulative[-1], size=len(row))
        item, order = np.empty_like(drawn), np.argsort(drawn)
        item[order] = np.searchsorted(cumulative, drawn[order], side="right")  # in order: ten times as fast
        pairs, first = np.unique(row * n_items + item, return_index=True)
        is_new = np.append(blocked, -1)[np.searchsorted(blocked, pairs)] != pairs
        fresh = first[is_new]
        negatives[row[fresh], column[fresh]] = item[fresh]
        blocked = np.insert(blocked, np.searchsorted(blocked, pairs[is_new]), pairs[is_new])
    _complete(negatives, blocked, weights, rng)
    return negatives


def _complete(negatives: Items, blocked: Index, weights: Index, rng: np.random.Generator) -> None:
    """Fill the empty places by ranking ALL items by exponential keys / weight: distributed as drawn one by one."""
    for row in np.flatnonzero((negatives == 0).any(axis=1)):
        empty = np.flatnonzero(negatives[row] == 0)
        first, end = np.searchsorted(blocked, [row * len(weights), (row + 1) * len(weights)])
        items = np.setdiff1d(np.flatnonzero(weights), blocked[first:end] % len(weights), assume_unique=True)
        keys = rng.standard_exponential(len(items)) / weights[items]
        negatives[row, empty] = items[np.argsort(keys)[: len(empty)]]
