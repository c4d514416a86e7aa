"""Adds items to a trained model without training: only codes (or vectors) and ids grow, so old scores keep their bits.

A new item has old items near it, its neighbours j. It gets the vector

    x = mean_j y_j * (mean_j |y_j| / |mean_j y_j|)

which is as long as those of its neighbours. Coded models keep the codes whose codewords sum up to about x.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from recbole_lisa.errors import UsageError
from recbole_lisa.layers.item_store import CodedItems, CodedTargets, DenseItems
from recbole_lisa.progress import progress_bar
from recbole_lisa.serving.bundle import Bundle
from recbole_lisa.serving.inputs import Numbers

PLACES, MOST_SIMILAR = 5, 10  # neighbours of a new item: places away in a history, or those with similar vectors
ROUNDS = 5  # over the codebooks, in which the codes of a vector improve


def neighbours_in_histories(bundle: Bundle, histories: Iterable[Sequence[str]]) -> dict[str, Numbers]:
    """Numbers of the old items near each new item of histories of raw ids, as often as they occur; maybe none."""
    near: dict[str, list[Numbers]] = {}
    for items in histories:
        numbers = bundle.ids.numbers(items)
        for place in np.flatnonzero(numbers < 0).tolist():
            around = numbers[max(place - PLACES, 0) : place + PLACES + 1]
            near.setdefault(items[place], []).append(around[around >= 0])
    return {item: np.concatenate(parts) for item, parts in near.items()}


def neighbours_by_vectors(bundle: Bundle, ids: Sequence[str], vectors: Tensor) -> dict[str, Numbers]:
    """Numbers of the old items near each new one, by the cosine of vectors (M, any width) of old and new items."""
    numbers, vectors = bundle.ids.numbers(ids), normalize(vectors, dim=1)
    known = np.flatnonzero(numbers >= 0)
    near: dict[str, Numbers] = {}
    old = vectors[known]
    for row in progress_bar(np.flatnonzero(numbers < 0).tolist(), "neighbours", unit=" items"):
        best = (old @ vectors[row]).topk(min(MOST_SIMILAR, len(known))).indices
        near[ids[row]] = numbers[known[best.numpy()]]
    return near


def add_items(bundle: Bundle, near: dict[str, Numbers]) -> Bundle:
    """A model with more items, each like the old items near it: `near` are numbers of old items by new id.

    A UsageError where there is no new item, an item is not new, or it has no neighbour.
    """
    wrong = [item for item, numbers in near.items() if not len(numbers) or bundle.ids.number(item) >= 0]
    if wrong or not near:
        raise UsageError(f"new items must have neighbours in the model, and no place in it: {wrong[:3]} of {len(near)}")
    items, all_ids, rows = bundle.items, bundle.ids.with_new(near), [*map(torch.from_numpy, near.values())]
    temperature = items.targets.temperature
    if isinstance(items, DenseItems):
        vectors: Tensor = items.targets.vectors
        vectors = torch.cat([vectors, _means(vectors[row] for row in progress_bar(rows, "vectors", unit=" items"))])
        return replace(bundle, ids=all_ids, items=items.replaced(vectors))
    sets = []
    for old in items.sets():
        x = _means(map(old.rows, progress_bar(rows, "vectors", unit=" items")))
        codes, dense = torch.cat([old.codes, nearest_codes(x, old.codewords).to(old.codes.dtype)]), old.dense
        if dense is not None:
            dense = pad(dense[0], (0, len(near)), value=len(dense[1]) - 1), dense[1]
        sets.append(CodedTargets(codes, old.codewords, temperature=temperature, dense=dense))
    return replace(bundle, ids=all_ids, items=CodedItems(*sets))


def nearest_codes(x: Tensor, codebooks: Tensor) -> Tensor:
    """Find codes (M, B) whose codewords sum up to about x (M, D), for any additive codebooks (B, W, D).

    All codebooks start at their mean. Each step takes for one codebook the codeword nearest to what the others leave of
    x, so the distance never grows after the first round.
    """
    chosen = codebooks.mean(dim=1, keepdim=True).repeat(1, len(x), 1)  # (B, M, D)
    codes = torch.zeros(len(x), len(codebooks), dtype=torch.int64)
    for _ in range(ROUNDS):
        for b, book in enumerate(codebooks):
            left = x - chosen.sum(dim=0) + chosen[b]
            codes[:, b] = (left @ book.t() - book.square().sum(dim=1) / 2).argmax(dim=1)
            chosen[b] = book[codes[:, b]]
    return codes


def _means(groups: Iterable[Tensor]) -> Tensor:
    """The mean (D,) of each group of vectors (m, D), as long as these are in the mean."""
    return torch.stack([normalize(y.mean(dim=0), dim=0) * y.norm(dim=1).mean() for y in groups])
