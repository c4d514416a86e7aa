from typing import Any

import numpy as np
import pytest
import torch

from recbole_lisa.data import dataloader
from recbole_lisa.data.dataloader import EvalLoader
from tests.data.conftest import MakeConfig, many_users
from tests.tiny import tiny_loaders

PAPER_MODE = {"mode": {"valid": "uni10", "test": "uni10"}}


def paper(make_config: MakeConfig, **settings: Any) -> EvalLoader:
    return tiny_loaders(make_config(many_users(), "paper", **{"eval_args": PAPER_MODE, **settings}))[2]


def histories(loader: EvalLoader) -> dict[int, list[int]]:
    store = loader.dataset.histories
    parts = np.split(store.items, store.offsets[1:-1])
    return {int(user): part.tolist() for user, part in zip(store.users, parts, strict=True)}


def test_every_held_out_item_comes_once_with_the_items_before_it(make_config: MakeConfig) -> None:
    config = make_config(many_users(), eval_batch_size=7)
    _, valid, test = tiny_loaders(config)
    assert all(batch.candidates is batch.positive_column is None for batch in test)  # full ranking
    for loader, from_end in ((valid, 2), (test, 1)):
        whole, seen = histories(loader), []
        for batch in loader:
            columns = batch.interaction
            lists = (columns[name].tolist() for name in ("user_id", "item_id_list", "item_length", "item_id"))
            for user, inputs, length, target in zip(*lists, strict=True):
                before = whole[user][:-from_end]
                assert inputs[:length] == before[-4:]
                assert not any(inputs[length:])
                assert target == whole[user][-from_end]
                seen.append(user)
        shortest = {1: 3, 2: 4}[from_end]
        assert sorted(seen) == sorted(user for user, items in whole.items() if len(items) >= shortest)


@pytest.mark.parametrize("most", [0, 2**27], ids=["late", "at once"])
def test_candidates_are_the_target_and_items_never_interacted_with(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(dataloader, "_MAX_CANDIDATES", most)
    loader = paper(make_config)
    assert all(torch.equal(one.candidates, two.candidates) for one, two in zip(loader, loader, strict=True))
    whole = histories(loader)
    for batch in loader:
        assert batch.candidates.shape == (len(batch.interaction["user_id"]), 11)
        target = batch.candidates.gather(1, batch.positive_column[:, None])[:, 0]
        assert torch.equal(target, batch.interaction["item_id"])
        columns = (batch.interaction["user_id"], batch.candidates, batch.positive_column)
        for user, row, column in zip(*(values.tolist() for values in columns), strict=True):
            negatives = row[:column] + row[column + 1 :]
            assert len(set(negatives)) == 10
            assert not set(negatives) & {0, *whole[user]}


def test_candidates_depend_on_the_seed_only(make_config: MakeConfig) -> None:
    first = paper(make_config, seed=5)
    again = paper(make_config, seed=5, train_batch_size=3, MAX_ITEM_LIST_LENGTH=9)
    other = paper(make_config, seed=6)
    np.testing.assert_array_equal(first.candidates, again.candidates)
    assert (first.candidates != other.candidates).any()
    one, two = (torch.cat([batch.candidates for batch in first]) for _ in range(2))
    assert torch.equal(one, two)


def test_ties_favour_neither_side(make_config: MakeConfig) -> None:
    rows = [(f"u{n}", f"i{(n + t) % 40}", t) for n in range(2000) for t in range(3)]
    loader = tiny_loaders(make_config(rows, "paper", eval_args=PAPER_MODE))[2]
    observed = np.bincount(loader.positive_column, minlength=11)
    assert len(observed) == 11
    # 2000 draws from 11 columns: five standard deviations are 5 * sqrt(2000 * 10) / 11 = 64.
    assert np.abs(observed - 2000 / 11).max() < 64


def test_full_batches_hold_the_scores_that_fit(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recbole_lisa.data.dataloader._MAX_SCORES", 5 * 51 + 50)
    loader = tiny_loaders(make_config(many_users(), MAX_ITEM_LIST_LENGTH=30, eval_batch_size=256))[2]
    assert loader.dataset.item_num == 51
    lengths = [batch.interaction["item_length"].tolist() for batch in loader]
    assert max(map(len, lengths)) == 5
    assert len(lengths) == len(loader)
    assert sum(lengths, []) == sorted(sum(lengths, []))
