"""Read a batch of the loaders: histories, targets and negatives as rows of the batch's distinct items."""

from typing import NamedTuple

import torch
from recbole.data.interaction import Interaction
from torch import Tensor

from recbole_lisa.config.fields import FieldNames
from recbole_lisa.layers.query_time import Query
from recbole_lisa.layers.sequence_encoder import Sequences
from recbole_lisa.model.losses import SAMPLED_LOSSES


class TrainingBatch(NamedTuple):
    """A batch as rows of its U distinct items, with M supervised positions."""

    items: Tensor  # (U,) ids, those of the history first
    n_history: int  # how many they are
    history: Sequences
    target: Tensor  # (M,) ids
    pairs: Tensor | None  # (M, 1 + R) rows of targets and negatives, (M, 1) with shared; None for CE
    shared: Tensor | None  # (K,) rows of the negatives of all positions
    supervised: Tensor | None  # (M,) numbers among the non-padding positions, None for all
    group: Tensor | None  # (M,) the window of each position, None where seen items are negatives


def read_history(interaction: Interaction, fields: FieldNames, *, time_unit: Tensor, query_time: bool) -> Sequences:
    """The input items of a batch, by id; the gaps between them in units of `time_unit` seconds.

    Raises:
        ValueError: query_time, and the batch has no times of the targets.
    """
    items, length = interaction[fields.item_list], interaction[fields.item_length]
    valid = torch.arange(items.shape[1], device=items.device) < length.unsqueeze(1)  # (N, L)
    gaps = interaction[fields.time_gap_list] / time_unit if fields.time_gap_list in interaction else None
    if not query_time:
        return Sequences(items, valid, gaps)
    if fields.query_gap_list not in interaction:
        raise ValueError(
            "query_time needs the times of the targets: use the loaders of this package, or set it to none"
        )
    query = Query(interaction[fields.query_gap_list], interaction[fields.query_time_list])
    return Sequences(items, valid, gaps, query)


def read_batch(
    interaction: Interaction,
    fields: FieldNames,
    history: Sequences,
    *,
    loss_type: str,
    shared_negatives: bool,
    seen_negatives: bool,
) -> TrainingBatch:
    """Read the supervised positions of a batch and number its distinct items; `history` is read_history of it.

    Raises:
        ValueError: the loss needs negatives that the batch does not have.
    """
    at, supervised = history.valid, None
    everywhere = fields.target_list in interaction
    if everywhere:
        has_target = interaction[fields.target_list] > 0  # (N, L)
        if not (of_valid := has_target[at]).all():
            at, supervised = at & has_target, of_valid.nonzero().squeeze(1)  # (N, L), (M,)
    target = interaction[fields.target_list][at] if everywhere else interaction[fields.item]  # (M,)
    negative = None
    if loss_type in SAMPLED_LOSSES:
        name = fields.negative_list if everywhere and not shared_negatives else fields.negative
        if name not in interaction:
            raise ValueError(f"loss_type {loss_type} needs negatives: set train_neg_sample_args, or loss_type to CE")
        negative = interaction[name]
        if shared_negatives:
            if negative.dim() != 2:
                raise ValueError("shared_negatives needs the loaders of this package: set it to 0 in RecBole's own run")
            negative = negative[0]  # (K,)
        else:
            negative = negative[at] if everywhere else negative.view(len(target), -1)  # (M, R)
    ids = [history.rows] if negative is None else [history.rows, target.unsqueeze(1), negative]
    items, inverse, n_history = _distinct(torch.cat([x.flatten() for x in ids]), history.rows.numel())
    rows = [part.view_as(x) for part, x in zip(torch.split(inverse, [x.numel() for x in ids]), ids, strict=True)]
    shared = rows.pop() if shared_negatives and negative is not None else None
    pairs = None if negative is None else torch.cat(rows[1:], dim=1)
    group = None
    if negative is None and not seen_negatives:
        group = at.nonzero()[:, 0] if everywhere else torch.arange(len(at), device=at.device)  # (M,)
    return TrainingBatch(items, n_history, history._replace(rows=rows[0]), target, pairs, shared, supervised, group)


def _distinct(ids: Tensor, n_first: int) -> tuple[Tensor, Tensor, int]:
    """The U distinct ones of ids (M,), those among the first n_first first; their rows (M,), and how many those are."""
    items, inverse = torch.unique(ids, return_inverse=True)
    if n_first == len(ids):
        return items, inverse, len(items)
    is_later = torch.ones_like(items, dtype=torch.bool)
    is_later[inverse[:n_first]] = False
    order = is_later.sort(stable=True).indices  # (U,)
    row = torch.empty_like(order)
    row[order] = torch.arange(len(order), device=order.device)
    return items[order], row[inverse], len(items) - int(is_later.sum())
