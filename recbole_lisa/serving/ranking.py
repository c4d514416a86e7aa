"""The best items for hidden states, over the whole catalogue or some candidates, in blocks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recbole_lisa.layers.item_store import Targets
from recbole_lisa.ops.top_k import Best, best_of_row, merge
from recbole_lisa.serving.inputs import Numbers

MAX_QUERIES = 64
"""Hidden states scored together: with more, the look-up tables of LISA's codebooks leave the cache."""
BLOCK_SCORES = 2**19
"""Scores that exist at once."""


def rank(targets: Targets, hidden: Tensor, k: int, left_out: Sequence[Numbers] | None = None) -> Best:
    """Find the k best of V items for every hidden state (N, D), without those that are left_out for it.

    Scores and ids are (N, min(k, V)); a score of -inf stands for no item.
    """
    k = min(k, len(targets))
    parts = [Best(hidden.new_empty(0, k), torch.empty(0, k, dtype=torch.int64))]
    for start in range(0, len(hidden), MAX_QUERIES):
        queries = slice(start, start + MAX_QUERIES)
        parts.append(_rank_together(targets, hidden[queries], k, left_out and left_out[queries]))
    return Best(torch.cat([part.scores for part in parts]), torch.cat([part.ids for part in parts]))


def positions_of(items: Numbers, catalogue: Numbers) -> Numbers:
    """Positions of items in a sorted catalogue; items that it lacks are left out."""
    at = np.searchsorted(catalogue, items).clip(max=len(catalogue) - 1)
    positions: Numbers = at[catalogue[at] == items]
    return positions


def _pairs(left_out: Sequence[Numbers]) -> tuple[Tensor, Tensor]:
    """Rows (E,) and items (E,) to leave out, by item."""
    rows = np.repeat(np.arange(len(left_out)), [len(items) for items in left_out])
    items = np.concatenate([*left_out, np.empty(0, dtype=np.int64)]).astype(np.int64)
    order = np.argsort(items, kind="stable")
    return torch.from_numpy(rows[order]), torch.from_numpy(items[order])


def _rank_together(targets: Targets, hidden: Tensor, k: int, left_out: Sequence[Numbers] | None) -> Best:
    query, size = targets.query(hidden), BLOCK_SCORES // len(hidden)
    ids = targets.shortlist(query, k, left_out)
    if ids is None:
        return _in_blocks(targets, query, k, left_out, size)
    left_out = left_out and [positions_of(items, ids.numpy()) for items in left_out]
    best = _in_blocks(targets.take(ids), query, k, left_out, size)
    return Best(best.scores, ids[best.ids])


def _in_blocks(targets: Targets, query: Any, k: int, left_out: Sequence[Numbers] | None, size: int) -> Best:
    """Rank all targets, size at once."""
    blocks, pairs = [], _pairs(left_out) if left_out else None
    for start in range(0, len(targets), size):
        stop = min(start + size, len(targets))
        scores = targets.scores(query, start, stop)  # (N, m)
        if pairs is not None:
            rows, items = pairs
            low, high = torch.searchsorted(items, torch.tensor([start, stop])).tolist()
            scores[rows[low:high], items[low:high] - start] = float("-inf")
        best = best_of_row(scores, min(k, stop - start))
        blocks.append(Best(best.scores, best.ids + start))
    return blocks[0] if len(blocks) == 1 else merge(blocks, k)
