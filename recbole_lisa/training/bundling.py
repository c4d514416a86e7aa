"""A trained RecBole model as a bundle that needs no RecBole, and the proof that both score the same."""

import os
from collections.abc import Sequence
from typing import Any

import torch

from recbole_lisa.errors import UsageError
from recbole_lisa.saved import load_data_and_model
from recbole_lisa.serving.bundle import Bundle, encoder_weights
from recbole_lisa.serving.id_map import IdMap
from recbole_lisa.serving.inputs import History
from recbole_lisa.serving.recommender import Recommender

CHECKED_HISTORIES, CHECKED_ITEMS = 16, 1000
TOLERANCE = 1e-5
"""Largest difference of a score, relative to the largest score where that is above 1."""


def bundle_of_checkpoint(path: str | os.PathLike[str], *, data_path: str | None = None) -> tuple[Bundle, Any]:
    """Load a checkpoint with its data, and bundle its model.

    Args:
        path: a checkpoint of this package.
        data_path: where the data lies now, if not where the run had it.

    Returns:
        The bundle, checked by `check_scores`, and the data set.

    Raises:
        UsageError: see `load_data_and_model`, `bundle_of` and `check_scores`.
    """
    settings = {"use_gpu": False} | ({} if data_path is None else {"data_path": data_path})
    config, model, dataset, *_ = load_data_and_model(path, config_dict=settings)
    bundle = bundle_of(model, [str(raw) for raw in dataset.field2id_token[dataset.iid_field][1:]], config["dataset"])
    check_scores(model, Recommender(bundle))
    return bundle, dataset


def bundle_of(model: Any, raw_ids: Sequence[str], dataset: str) -> Bundle:
    """Take out of a model what recommending needs.

    Args:
        model: an `AttentiveRecommender`.
        raw_ids: raw id of each item from item 1 on (item 0 is padding).
        dataset: name of the data set.

    Raises:
        UsageError: an attention of the model is none of MECHANISMS.
    """
    model.eval()
    try:
        encoder = model.encoder_settings()
    except ValueError as error:
        raise UsageError(f"{type(model).__name__} cannot be exported: {error}") from error
    items = model.item_store().cpu()
    return Bundle(
        model=type(model).__name__,
        dataset=dataset,
        encoder=encoder,
        weights=encoder_weights(model, items),
        items=items,
        ids=IdMap.from_ids(raw_ids),
        time_unit=float(model.time_unit),
    )


@torch.no_grad()
def check_scores(model: Any, recommender: Recommender) -> float:
    """Score random histories with the model and with what was made of it.

    Args:
        model: as in bundle_of.
        recommender: over its bundle.

    Returns:
        The largest difference of a score.

    Raises:
        UsageError: it is too large, as when a class of its own does what a bundle cannot hold.
    """
    generator = torch.Generator().manual_seed(0)
    n, length, n_items = CHECKED_HISTORIES, recommender.max_length, len(recommender.ids)
    items = torch.randint(1, n_items + 1, (n, length), generator=generator)
    lengths = torch.randint(1, length + 1, (n,), generator=generator)
    gaps = torch.rand(n, length, generator=generator) * 3 * recommender.bundle.time_unit
    candidates = torch.randint(1, n_items + 1, (n, CHECKED_ITEMS), generator=generator)
    valid = torch.arange(length) < lengths.unsqueeze(1)
    batch = {
        model.fields.item_list: items * valid,
        model.fields.item_length: lengths,
        model.fields.time_gap_list: gaps * valid,
    }
    expected = model.eval().score_candidates(batch, candidates)
    times = gaps.double().cumsum(dim=1)
    histories = [History(items[i, :m].numpy() - 1, times[i, :m].numpy()) for i, m in enumerate(lengths.tolist())]
    hidden, targets = recommender.encode(histories), recommender.network.items.targets
    found = torch.stack(
        [
            targets.take(c - 1).scores(targets.query(h[None]), 0, CHECKED_ITEMS)[0]
            for h, c in zip(hidden, candidates, strict=True)
        ]
    )
    difference = float((found - expected).abs().max())
    if not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
        raise UsageError(
            f"{type(model).__name__} cannot be exported: its export scores items differently, by {difference:.3g}; a "
            "class that changes how items or sequences are encoded must change item_store or its attention, too"
        )
    return difference
