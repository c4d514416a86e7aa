"""Windows of training histories: which targets they train, with how much context."""

from collections import Counter

import numpy as np
import pytest
import torch

from recbole_lisa.data.dataloader import WINDOWS, create_loaders
from recbole_lisa.data.dataset import WindowDataset
from recbole_lisa.data.windows import Windows, batch_starts, cut_windows, shifted_windows, width_groups
from tests.data.conftest import MakeConfig, many_users
from tests.data.test_dataloader import expected_samples, samples_of, train_loader
from tests.model.build import build_model, loss_value, random_batch

LENGTHS = np.array([0, 1, 2, 3, 7, 8, 9, 10, 16, 17, 18, 19, 40, 41, 5])
STARTS = np.cumsum(LENGTHS) - LENGTHS
EXPECTED = Counter(row for start, n in zip(STARTS, LENGTHS, strict=True) for row in range(start + 1, start + n))
"""Rows of the flat store that are targets."""


def trained(windows: Windows) -> Counter[int]:
    context = np.zeros_like(windows.length) if windows.context is None else windows.context
    parts = zip(windows.end.tolist(), windows.length.tolist(), context.tolist(), strict=True)
    return Counter(row for end, length, first in parts for row in range(end - length + first + 1, end + 1))


@pytest.mark.parametrize("longest", [1, 2, 3, 8, 9, 50])
@pytest.mark.parametrize("kind", WINDOWS)
def test_every_target_is_trained_exactly_once(kind: str, longest: int) -> None:
    windows = WINDOWS[kind](STARTS, LENGTHS, longest, np.random.default_rng(1))
    assert trained(windows) == EXPECTED
    assert (windows.length >= 1).all() and (windows.length <= (40 if kind == "whole" else longest)).all()
    assert (windows.end - windows.length >= STARTS[windows.history]).all()
    assert (np.diff(windows.history) >= 0).all()


def test_disjoint_windows_are_cut_from_the_end() -> None:
    windows = cut_windows(np.array([0]), np.array([20]), 8)
    assert (windows.end.tolist(), windows.length.tolist()) == ([3, 11, 19], [3, 8, 8])


def test_overlapping_windows_have_half_a_window_of_context() -> None:
    windows = WINDOWS["overlapping"](np.array([0]), np.array([20]), 8, np.random.default_rng(1))
    assert windows.context is not None
    assert windows.end.tolist() == [7, 11, 15, 19]
    assert (windows.length.tolist(), windows.context.tolist()) == ([7, 8, 8, 8], [0, 4, 4, 4])


def test_shifted_windows_cut_long_histories_anywhere_and_short_ones_nowhere() -> None:
    cuts = set()
    for seed in range(60):
        windows = shifted_windows(np.array([0, 20]), np.array([20, 9]), 8, np.random.default_rng(seed))
        cuts.add(int(windows.length[windows.history == 0][-1]))
        assert windows.length[windows.history == 1].tolist() == [8]
    assert cuts == set(range(1, 9))


@pytest.mark.parametrize("most", [1, 50, 900])
def test_batches_of_whole_histories_hold_a_number_of_items(most: int) -> None:
    lengths = np.sort(np.random.default_rng(1).geometric(0.03, 500)).astype(np.int32)
    groups = width_groups(lengths)
    shuffled = np.random.default_rng(2).permutation(500)
    shuffled = shuffled[np.argsort(groups[shuffled], kind="stable")]
    starts = batch_starts(lengths, most)
    assert np.array_equal(batch_starts(lengths[shuffled], most), starts)
    batches = np.split(lengths[shuffled], starts[1:])
    assert sorted(np.concatenate(batches)) == lengths.tolist()
    assert all(len(batch) == 1 or len(batch) * batch.max() <= most for batch in batches)
    assert all(batch.max() <= 2**0.25 * batch.min() for batch in np.split(lengths, np.flatnonzero(np.diff(groups)) + 1))
    if most == 900:
        assert len(starts) < 1.7 * lengths.sum() / most


@pytest.mark.parametrize("shuffle", [True, False])
def test_whole_histories_are_one_window_in_training_and_evaluation(make_config: MakeConfig, shuffle: bool) -> None:
    config = make_config(many_users(), MAX_ITEM_LIST_LENGTH=2, shuffle=shuffle, train_batch_size=5)
    config["eval_batch_size"], config["windows"] = 3, "whole"  # SASRec, the model of this test, may not have it
    train, valid, _ = create_loaders(config, WindowDataset(config))
    batches = list(train)
    assert len(batches) == len(train) > 1
    assert Counter(sample for batch in batches for sample in samples_of(batch)) == expected_samples(train, 10**6)
    assert valid is not None
    ranked = list(valid)
    assert len(ranked) == len(valid) > 1
    users = torch.cat([batch.interaction["user_id"] for batch in ranked])
    lengths = torch.cat([batch.interaction["item_length"] for batch in ranked])
    store = train.dataset.histories
    items = dict(zip(store.users.tolist(), np.diff(store.offsets).tolist(), strict=True))
    assert sorted(users.tolist()) == sorted(user for user, count in items.items() if count > 3)
    assert all(length == items[user] - 2 for user, length in zip(users.tolist(), lengths.tolist(), strict=True))


def test_random_offsets_depend_on_seed_and_epoch_only(make_config: MakeConfig) -> None:
    loader, same = (train_loader(make_config(many_users(), windows="random_offset")) for _ in range(2))
    epochs = []
    for epoch in (0, 1, 2, 0):
        loader.set_epoch(epoch)
        epochs.append(Counter(sample for batch in loader for sample in samples_of(batch)))
    same.set_epoch(2)
    assert epochs[0] == epochs[3] != epochs[1]
    assert Counter(sample for batch in same for sample in samples_of(batch)) == epochs[2]
    other = train_loader(make_config(many_users(), windows="random_offset", seed=1))
    assert Counter(sample for batch in other for sample in samples_of(batch)) != epochs[0]
    disjoint = train_loader(make_config(many_users()))
    assert Counter(sample for batch in disjoint for sample in samples_of(batch)) == expected_samples(disjoint, 4)


def test_overlapping_batches_train_each_target_once(make_config: MakeConfig) -> None:
    targets = []
    for kind in ("overlapping", "disjoint"):
        batches = list(train_loader(make_config(many_users(), windows=kind)))
        for batch in batches:
            has_target = batch["target_id_list"] > 0
            assert has_target.any(dim=1).all()
            assert torch.equal((batch["neg_target_id_list"] > 0).all(dim=-1), has_target)
        is_context = [((batch["item_id_list"] > 0) & (batch["target_id_list"] == 0)).any() for batch in batches]
        assert any(is_context) is (kind == "overlapping")
        targets.append(Counter(torch.cat([batch["target_id_list"].flatten() for batch in batches]).tolist()))
        del targets[-1][0]
    assert targets[0] == targets[1]


@pytest.mark.parametrize("settings", [{}, {"loss_type": "CE"}, {"shared_negatives": 2}], ids=str)
@pytest.mark.parametrize("name", ["Transformer", "LISASoft", "LISABase"])
def test_positions_without_a_target_give_context_and_no_loss(name: str, settings: dict[str, object]) -> None:
    batch = random_batch(4, 8, 30, n_negatives=2)
    n = batch["item_length"].sum().item()
    first = {key: value[:1, :4] if key.endswith("_list") else value[:1] for key, value in batch.items()}
    first["item_length"] = torch.tensor([4])
    cut = {**batch, "target_id_list": batch["target_id_list"].clone()}
    cut["target_id_list"][0, :4] = 0
    whole, rest, part = (mean_loss(name, each, settings) for each in (batch, cut, first))
    assert whole * n == pytest.approx(rest * (n - 4) + part * 4, rel=1e-5)


def mean_loss(name: str, batch: dict[str, torch.Tensor], settings: dict[str, object]) -> float:
    """The mean loss of the targets of a batch, without the regulariser."""
    torch.manual_seed(4)
    loss = build_model(name, hidden_dropout_prob=0.0, **settings).calculate_loss(batch)
    return loss_value(loss[:1] if isinstance(loss, tuple) else loss).item()
