from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from recbole.data.interaction import Interaction

from recbole_lisa.data.dataloader import TrainLoader
from recbole_lisa.errors import UsageError
from tests.data.conftest import MakeConfig, Row, many_users
from tests.tiny import tiny_loaders

# User "long" has items a..k at times 0, 10, 30, 60, ..., user "short" has a, c, b, e.
LONG: list[Row] = [("long", item, 5 * n * (n + 1)) for n, item in enumerate("abcdefghijk")]
SHORT: list[Row] = [("short", item, n) for n, item in enumerate("acbe")]


def train_loader(config: Any) -> TrainLoader:
    return tiny_loaders(config)[0]


def letters(loader: TrainLoader, ids: torch.Tensor) -> str:
    """Items of one row, as their one-letter names; '.' is padding."""
    return "".join(loader.dataset.id2token("item_id", ids.numpy())).replace("[PAD]", ".")


def windows_of(loader: TrainLoader, batch: Interaction) -> set[tuple[str, str, str]]:
    users = loader.dataset.id2token("user_id", batch["user_id"].numpy())
    rows = zip(users, batch["item_id_list"], batch["target_id_list"], strict=True)
    return {(str(user), letters(loader, inputs), letters(loader, targets)) for user, inputs, targets in rows}


def samples_of(batch: Interaction) -> list[tuple[int, ...]]:
    """User, inputs and targets of each row, without padding."""
    targets = batch["target_id_list"] if "target_id_list" in batch else batch["item_id"][:, None]
    rows = zip(batch["user_id"].tolist(), batch["item_id_list"].tolist(), targets.tolist(), strict=True)
    return [(user, *filter(None, inputs), -1, *filter(None, kept)) for user, inputs, kept in rows]


def expected_samples(loader: TrainLoader, longest: int) -> Counter[tuple[int, ...]]:
    """The same from whole histories, one user and one target after the other."""
    store, samples = loader.dataset.histories, []
    for user, items in zip(store.users.tolist(), np.split(store.items, store.offsets[1:-1]), strict=True):
        trained = items.tolist()[: max(len(items) - 2, min(len(items), 2))]
        if loader.every_position:
            while len(trained) > 1:
                samples.append((user, *trained[-longest - 1 : -1], -1, *trained[-longest - 1 :][1:]))
                trained = trained[:-longest]
        else:
            samples += [(user, *trained[max(0, t - longest) : t], -1, trained[t]) for t in range(1, len(trained))]
    return Counter(samples)


def equal(one: Interaction, other: Interaction) -> bool:
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def test_windows_and_time_gaps_equal_the_example_item_by_item(make_config: MakeConfig) -> None:
    # full_ranking holds out the last two items: "long" trains on a..i, "short" on a, c.
    loader = train_loader(make_config(LONG + SHORT, MAX_ITEM_LIST_LENGTH=3))
    (batch,) = loader
    windows = {("long", "ab.", "bc."), ("long", "cde", "def"), ("long", "fgh", "ghi"), ("short", "a..", "c..")}
    assert windows_of(loader, batch) == windows
    assert sorted(batch["item_length"].tolist()) == [1, 2, 3, 3]
    rows = zip(batch["item_id_list"], batch["time_gap_list"], strict=True)
    gaps = {letters(loader, inputs): row.tolist() for inputs, row in rows}
    assert gaps == {"ab.": [0, 10, 0], "cde": [20, 30, 40], "fgh": [50, 60, 70], "a..": [0, 0, 0]}
    # paper holds out the last item only.
    full = {"mode": {"valid": "full", "test": "full"}}
    loader = train_loader(make_config(LONG + SHORT, "paper", MAX_ITEM_LIST_LENGTH=5, eval_args=full))
    (batch,) = loader
    windows = {("long", "abcd.", "bcde."), ("long", "efghi", "fghij"), ("short", "ac...", "cb...")}
    assert windows_of(loader, batch) == windows


@pytest.mark.parametrize(("most", "expected"), [(9, ["ab.", "cde", "fgh", "a.."]), (3, ["ab.", "fgh"]), (1, ["ab."])])
def test_a_sample_is_spread_evenly_over_the_windows(make_config: MakeConfig, most: int, expected: list[str]) -> None:
    loader = train_loader(make_config(LONG + SHORT, MAX_ITEM_LIST_LENGTH=3))
    sample = loader.sample(most)
    longest = int(sample["item_length"].max())
    assert [letters(loader, row) for row in sample["item_id_list"]] == [inputs[:longest] for inputs in expected]
    assert equal(loader.sample(most), sample)


@pytest.mark.parametrize(
    ("supervision", "target", "negative"),
    [("all_positions", "target_id_list", "neg_target_id_list"), ("last_position", "item_id", "neg_item_id")],
)
def test_batches_have_documented_columns(make_config: MakeConfig, supervision: str, target: str, negative: str) -> None:
    settings = {"supervision": supervision, "train_batch_size": 8}
    batch = next(iter(train_loader(make_config(many_users(), train_neg_sample_args={"sample_num": 3}, **settings))))
    n, longest = batch["item_id_list"].shape
    targets = (n, longest) if supervision == "all_positions" else (n,)
    assert {name: tuple(batch[name].shape) for name in batch} == {
        **{"user_id": (n,), "item_length": (n,), "item_id_list": (n, longest), "time_gap_list": (n, longest)},
        **{target: targets, negative: (*targets, 3)},
    }
    assert {batch[name].dtype for name in batch if name != "time_gap_list"} == {torch.int64}
    assert batch["time_gap_list"].dtype == torch.float32
    drawn, padded = batch[negative], batch[target][..., None]
    assert ((drawn != padded) | (padded == 0)).all()
    without = next(iter(train_loader(make_config(many_users(), loss_type="CE", **settings))))
    assert set(without) == {*batch} - {negative}


def test_column_names_follow_the_configuration(make_config: MakeConfig) -> None:
    names = {"LIST_SUFFIX": "_seq", "NEG_PREFIX": "no_", "ITEM_LIST_LENGTH_FIELD": "n"}
    batch = next(iter(train_loader(make_config(many_users(), **names))))
    assert {"item_id_seq", "n", "target_id_seq", "no_target_id_seq", "time_gap_seq"} < set(batch)


def test_padding_is_zero_in_every_column_and_nothing_else_is(make_config: MakeConfig) -> None:
    for batch in train_loader(make_config(many_users(), MAX_ITEM_LIST_LENGTH=16, train_batch_size=32)):
        padded = torch.arange(batch["item_id_list"].shape[1]) >= batch["item_length"][:, None]
        assert batch["item_length"].max() == batch["item_id_list"].shape[1]
        for column in (batch["item_id_list"], batch["target_id_list"], batch["neg_target_id_list"][..., 0]):
            assert torch.equal(column == 0, padded)
        assert not batch["time_gap_list"][padded].any()


@pytest.mark.parametrize("supervision", ["all_positions", "last_position"])
@pytest.mark.parametrize(("longest", "shuffle"), [(1, True), (4, False), (4, True), (7, True), (100, True)])
def test_an_epoch_has_every_window_once(make_config: MakeConfig, supervision: str, longest: int, shuffle: bool) -> None:
    settings = {"MAX_ITEM_LIST_LENGTH": longest, "shuffle": shuffle, "train_batch_size": 7}
    loader = train_loader(make_config(many_users(), supervision=supervision, **settings))
    loader.set_epoch(3)
    batches = list(loader)
    assert len(batches) == len(loader)
    assert Counter(sample for batch in batches for sample in samples_of(batch)) == expected_samples(loader, longest)


def test_batches_depend_on_epoch_and_seed_and_on_no_global_state(make_config: MakeConfig) -> None:
    loaders = (train_loader(make_config(many_users(), seed=seed, train_batch_size=16)) for seed in (1, 1, 2))
    first, again, other = loaders
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    for loader in (first, again, other):
        loader.set_epoch(2)
    list(first)
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])
    expected = list(first)
    np.random.seed(99)
    torch.manual_seed(99)
    assert all(equal(one, two) for one, two in zip(expected, again, strict=True))
    assert not all(equal(one, two) for one, two in zip(expected, other, strict=True))
    again.set_epoch(3)
    assert not all(equal(one, two) for one, two in zip(expected, again, strict=True))


def test_batches_group_similar_lengths_and_come_in_random_order(make_config: MakeConfig) -> None:
    rows = [(f"u{n}", f"i{t % 50}", t) for n in range(300) for t in range(3 + n % 160)]
    loader = train_loader(make_config(rows, MAX_ITEM_LIST_LENGTH=160, train_batch_size=10))
    batches = list(loader)
    assert max(int(batch["item_length"].max() - batch["item_length"].min()) for batch in batches) <= 2 * 160 // 16
    longest = np.array([batch["item_id_list"].shape[1] for batch in batches])
    padded = sum(batch["item_id_list"].numel() for batch in batches) / int(loader.windows.length.sum())
    assert padded < 1.12
    assert 0.25 < (np.diff(longest) > 0).mean() < 0.75


@pytest.mark.parametrize("supervision", ["all_positions", "last_position"])
def test_shared_negatives_are_one_row_for_a_batch(make_config: MakeConfig, supervision: str) -> None:
    config = make_config(many_users(), supervision=supervision, train_batch_size=16)
    config["shared_negatives"] = 7  # a setting of models of this package, which the SASRec of this test is not
    loader, drawn = train_loader(config), []
    for batch in loader:
        assert "neg_target_id_list" not in batch
        assert batch["neg_item_id"].shape == (len(batch), 7)
        assert (batch["neg_item_id"] == batch["neg_item_id"][0]).all()
        drawn.append(batch["neg_item_id"][0].tolist())
    assert len(set(map(tuple, drawn))) == len(loader)
    assert set(sum(drawn, [])) <= set(range(1, loader.dataset.item_num))
    assert [batch["neg_item_id"][0].tolist() for batch in loader] == drawn


def test_popularity_negatives_use_training_counts(make_config: MakeConfig) -> None:
    rows = [(f"u{n}", item, t) for n in range(40) for t, item in enumerate("aaabz" if n else "abcdz")]
    config = make_config(rows, train_neg_sample_args={"distribution": "popularity", "sample_num": 50, "alpha": 1.0})
    loader = train_loader(config)
    (batch,) = loader
    negatives, targets = batch["neg_target_id_list"].numpy(), batch["target_id_list"].numpy()
    names = loader.dataset.id2token("item_id", np.arange(loader.dataset.item_num))
    counts = dict(zip(names, loader.dataset.item_counts, strict=True))
    assert {name: int(counts[name]) for name in "abcdz"} == {"a": 118, "b": 1, "c": 1, "d": 0, "z": 0}
    assert set(names[negatives[targets > 0].ravel()]) == {"a", "b", "c"}


def test_mistakes_are_refused(make_config: MakeConfig) -> None:
    config = make_config(LONG)
    config["supervision"] = "last_positions"
    with pytest.raises(UsageError, match="got 'last_positions'. Did you mean 'last_position'"):
        train_loader(config)
    with pytest.raises(UsageError, match="the training part of a history has at most 1 interactions, and 2 are needed"):
        train_loader(make_config([(f"u{n}", f"i{n}", n) for n in range(5)]))
