"""Exports of small models with random weights."""

from typing import Any

import torch

from recbole_lisa.model.attentive_recommender import AttentiveRecommender
from recbole_lisa.saved import bundle_of
from recbole_lisa.serving import Bundle, Recommendation, Recommender, Session
from tests.helpers import assert_close
from tests.model.build import build_model

N_ITEMS = 30
"""Items of the small models, padding included."""
IDS = [f"item {i}" for i in range(N_ITEMS)]
"""Raw id of each item of the model; 0 is padding."""


def small_bundle(name: str, **settings: Any) -> tuple[AttentiveRecommender, Bundle]:
    """A model in float64 in evaluation mode, and its bundle."""
    model = build_model(name, n_items=N_ITEMS, **settings).double().eval()
    return model, bundle_of(model, IDS[1:], "small")


def small_recommender(name: str = "LISABase", **settings: Any) -> Recommender:
    return Recommender(small_bundle(name, **settings)[1])


def scores_of_model(model: AttentiveRecommender, histories: list[list[int]]) -> torch.Tensor:
    """The model's own scores of all items, (N, V), from histories of any length cut to its window, if it has one."""
    window = [history if model.encoder.any_length else history[-model.max_seq_length :] for history in histories]
    longest = max(map(len, window))
    items = torch.tensor([history + [0] * (longest - len(history)) for history in window])
    batch = {"item_id_list": items, "item_length": torch.tensor([len(history) for history in window])}
    with torch.no_grad():
        return model.full_sort_predict(batch)


def scores_of(answer: Recommendation) -> torch.Tensor:
    return torch.tensor(answer.scores, dtype=torch.float64)


def assert_equal(answer: Recommendation, expected: Recommendation) -> None:
    """The same items in the same order, with close scores."""
    assert answer.items == expected.items
    assert_close(scores_of(answer), scores_of(expected))


def raw(items: list[int]) -> list[str]:
    return [IDS[i] for i in items]


def updated(session: Session, items: list[str]) -> Session:
    """The session after more items, one by one."""
    for item in items:
        session.update(item)
    return session
