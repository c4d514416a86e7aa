"""The best items for hidden states, over the whole catalogue or some candidates, in blocks."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recbole_lisa.layers.item_store import Targets
from recbole_lisa.ops.top_k import Best, add_block, nothing_yet

MAX_QUERIES = 64
"""Hidden states scored together: with more, the look-up tables of LISA's codebooks leave the cache."""
BLOCK_SCORES = 2**19
"""Scores that exist at once."""
Numbers = npt.NDArray[np.int64]


def rank(targets: Targets, hidden: Tensor, k: int, left_out: Sequence[Numbers] | None = None) -> Best:
    """The k best of all items for every hidden state.

    Args:
        targets: the items, V.
        hidden: (N, D).
        k: at most so many; fewer come where V or what is left of it is smaller.
        left_out: for every hidden state the items that it must not get.

    Returns:
        Best with min(k, V) columns.
    """
    parts = [nothing_yet(0, min(k, len(targets)), hidden)]
    for start in range(0, len(hidden), MAX_QUERIES):
        stop = start + MAX_QUERIES
        pairs = _pairs(left_out[start:stop]) if left_out is not None else None
        parts.append(_rank_together(targets, hidden[start:stop], min(k, len(targets)), pairs))
    return Best(torch.cat([part.scores for part in parts]), torch.cat([part.ids for part in parts]))


def positions_of(items: Numbers, catalogue: Numbers) -> Numbers:
    """Where items stand in a sorted catalogue; those that it lacks stand nowhere."""
    at = np.searchsorted(catalogue, items).clip(max=len(catalogue) - 1)
    found: Numbers = at[catalogue[at] == items]
    return found


def _pairs(left_out: Sequence[Numbers]) -> tuple[Tensor, Tensor]:
    """Rows (E,) and items (E,) to leave out, by item."""
    rows = np.repeat(np.arange(len(left_out)), [len(items) for items in left_out])
    items = np.concatenate([*left_out, np.empty(0, dtype=np.int64)]).astype(np.int64)
    order = np.argsort(items, kind="stable")
    return torch.from_numpy(rows[order]), torch.from_numpy(items[order])


def _rank_together(targets: Targets, hidden: Tensor, k: int, left_out: tuple[Tensor, Tensor] | None) -> Best:
    query = targets.query(hidden)
    best = nothing_yet(len(hidden), k, hidden)
    size = BLOCK_SCORES // len(hidden)
    for start in range(0, len(targets), size):
        stop = min(start + size, len(targets))
        scores = targets.scores(query, start, stop)  # (N, m)
        if left_out is not None:
            rows, items = left_out
            low, high = torch.searchsorted(items, torch.tensor([start, stop])).tolist()
            scores[rows[low:high], items[low:high] - start] = float("-inf")
        best = add_block(best, scores, start)
    return best
