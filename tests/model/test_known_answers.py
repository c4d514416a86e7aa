"""Data sets with a provable answer, learnt by every model.

cycle: item i is always followed by i + 1, so the last item decides. recall: the first item is a key among fillers and
the answer is the key's own, so only a model whose attention works can know it. previous: the item before the last one
decides, which a convolution sees.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from recbole_lisa.model.attentive_recommender import AttentiveRecommender
from tests.model.build import MODEL_NAMES, build_model, loss_value

N, LENGTH, N_KEYS, N_FILLERS = 64, 8, 4, 10
Batch = dict[str, torch.Tensor]


def cycle_batch() -> Batch:
    items = (torch.randint(12, (N, 1)) + torch.arange(LENGTH)) % 12
    following = (items + 1) % 12
    return {"item_id_list": items + 1, "target_id_list": following + 1, "item_length": torch.full((N,), LENGTH)}


def recall_batch() -> Batch:
    """Ids: 1..K keys, K+1..2K answers, then fillers."""
    key = torch.randint(N_KEYS, (N, 1))
    fillers = torch.randint(N_FILLERS, (N, LENGTH - 1)) + 2 * N_KEYS + 1
    items = torch.cat([key + 1, fillers], dim=1)
    return {"item_id_list": items, "item_id": key[:, 0] + N_KEYS + 1, "item_length": torch.full((N,), LENGTH)}


def previous_batch() -> Batch:
    items = torch.randint(1, 13, (N, LENGTH))
    return {"item_id_list": items, "item_id": items[:, -2] % 12 + 1, "item_length": torch.full((N,), LENGTH)}


def train(model: AttentiveRecommender, make_batch: Callable[[], Batch], steps: int) -> None:
    """Adam with a learning rate that falls from 0.01 to 0."""
    optimizer = torch.optim.Adam(model.train().parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_value(model.calculate_loss(make_batch())).backward()
        optimizer.step()
        schedule.step()


def accuracy(model: AttentiveRecommender, batch: Batch) -> float:
    """Share of rows whose best item is the answer."""
    answer = batch["item_id"] if "item_id" in batch else batch["target_id_list"][:, -1]
    scores = model.eval().full_sort_predict(batch)
    scores[:, 0] = -torch.inf
    return (scores.argmax(dim=1) == answer).float().mean().item()


def build(name: str, **settings: Any) -> AttentiveRecommender:
    """LISA without decay, so that the key does not fade; hashing in several rounds, so that the key is met."""
    own: dict[str, object] = {}
    if name.startswith("LISA"):
        own = {"n_codebooks": 8, "n_codewords": 16, "histogram_decay": 0}
    elif name == "Reformer":
        own = {"n_hashes": 4}
    size = {"n_items": 2 * N_KEYS + N_FILLERS + 1, "max_length": LENGTH}
    return build_model(name, loss_type="CE", hidden_size=32, inner_size=32, **size, **own, **settings)


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_cycle_is_learnt(name: str) -> None:
    model = build(name)
    train(model, cycle_batch, steps=120)
    assert accuracy(model, cycle_batch()) > 0.95


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_recall_is_learnt_and_needs_the_attention(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(name)
    train(model, recall_batch, steps=200)
    assert accuracy(model, recall_batch()) > 0.95
    blind = blinded(build(name), monkeypatch)
    train(blind, recall_batch, steps=200)
    assert accuracy(blind, recall_batch()) < 0.6


def blinded(model: AttentiveRecommender, monkeypatch: pytest.MonkeyPatch) -> AttentiveRecommender:
    """The model with an attention that returns zeros."""
    for method in ("non_padding", "last"):
        attention = model.encoder.attentions[0]
        original = getattr(attention, method)
        monkeypatch.setattr(attention, method, lambda *args, original=original: torch.zeros_like(original(*args)))
    return model


@pytest.mark.parametrize("block", ["pre_norm", "gated"])
@pytest.mark.parametrize("name", ["LISASoft", "Transformer"])
def test_recall_is_learnt_in_every_block(name: str, block: str) -> None:
    model = build(name, block=block, hidden_act="swiglu", positions="from_end", attention_gate=True)
    train(model, recall_batch, steps=200)
    assert accuracy(model, recall_batch()) > 0.95


@pytest.mark.parametrize(("name", "block"), [("LISASoft", "post_norm"), ("LISABase", "gated")])
def test_a_convolution_sees_the_previous_item(name: str, block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for conv_width in (0, 3):
        model = blinded(build(name, block=block, conv_width=conv_width), monkeypatch)
        train(model, previous_batch, steps=200)
        result = accuracy(model, previous_batch())
        assert result > 0.95 if conv_width else result < 0.4
