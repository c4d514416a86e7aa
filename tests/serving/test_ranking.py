from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from recbole_lisa.errors import UsageError
from recbole_lisa.layers import item_store
from recbole_lisa.layers.item_store import CodedTargets
from recbole_lisa.serving import Recommender, scorer
from recbole_lisa.serving.new_items import add_items
from recbole_lisa.serving.scorer import rank
from tests.serving.build import IDS, small_bundle


def clustered(n_items: int, n_books: int, n_codewords: int) -> Tensor:
    """Items are one of 20 with a few codes changed, as near items of a trained model have."""
    centres = torch.randint(n_codewords, (20, n_books))
    codes = centres[torch.randint(20, (n_items,))]
    return torch.where(torch.rand(codes.shape) < 0.3, torch.randint(n_codewords, codes.shape), codes).byte()


def both(codes: Tensor, n_codewords: int, **settings: Any) -> tuple[CodedTargets, CodedTargets]:
    """The same items without and with an index."""
    codewords = torch.randn(codes.shape[1], n_codewords, 16)
    plain, indexed = (CodedTargets(codes, codewords, **settings) for _ in range(2))
    indexed.build_index()
    return plain, indexed


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Results of shortlist in the order of its calls."""
    results: list[Any] = []
    shortlist = item_store.shortlist

    def recorded(*arguments: Any) -> Any:
        results.append(shortlist(*arguments))
        return results[-1]

    monkeypatch.setattr(item_store, "shortlist", recorded)
    return results


@pytest.mark.parametrize("k", [1, 10, 300, 20000])
@pytest.mark.parametrize("n", [1, 3, 70])
@pytest.mark.parametrize(
    ("kind", "n_items", "n_books", "n_codewords"),
    [
        ("random", 12345, 8, 256),
        ("dense", 12345, 8, 256),
        ("dense", 6401, 2, 9),
        ("clustered", 9001, 8, 256),
        ("clustered", 6400, 5, 100),
        ("tied", 12001, 3, 9),
        ("random", 5003, 1, 200),
        ("tied", 5000, 4, 1),
    ],
)
def test_lists_with_an_index_are_those_of_scoring_all(
    kind: str, n_items: int, n_books: int, n_codewords: int, n: int, k: int, listed: list[Any]
) -> None:
    shape = (n_items, n_books)
    codes = clustered(*shape, n_codewords) if kind == "clustered" else torch.randint(n_codewords, shape).byte()
    dense = None
    if kind == "dense":
        slots = torch.full((n_items,), n_items // 20, dtype=torch.int32)
        slots[torch.randperm(n_items)[: n_items // 20]] = torch.arange(n_items // 20, dtype=torch.int32)
        dense = slots, torch.nn.functional.pad(torch.randn(n_items // 20, 16), (0, 0, 0, 1))
    plain, indexed = both(codes, n_codewords, dense=dense)
    hidden = torch.randn(n, 16)
    expected, actual = rank(plain, hidden, k), rank(indexed, hidden, k)
    assert torch.equal(actual.ids, expected.ids)
    assert torch.equal(actual.scores, expected.scores)
    if kind != "tied" and n_books > 1 and k <= 10 and n < 64:
        assert all(ids is not None for ids in listed)
        assert len(listed) == 1
    # The best items, and some that are no item twice, are seen.
    seen = [np.concatenate([row[: k // 2 + 1], row[:1]]) for row in expected.ids.numpy()]
    expected, actual = rank(plain, hidden, k, seen), rank(indexed, hidden, k, seen)
    assert torch.equal(actual.scores, expected.scores)
    some = expected.scores > float("-inf")
    assert torch.equal(actual.ids[some], expected.ids[some])


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1e38])
def test_scores_that_are_not_finite_rank_as_without_an_index(wrong: float) -> None:
    plain, indexed = both(torch.randint(256, (5000, 8)).byte(), 256)
    hidden = torch.randn(1, 16)
    hidden[0, 3] = wrong
    expected, actual = rank(plain, hidden, 10), rank(indexed, hidden, 10)
    assert torch.equal(actual.ids, expected.ids)
    assert torch.equal(actual.scores.isnan(), expected.scores.isnan())


def test_an_index_is_for_products_of_one_byte_codes_only() -> None:
    codes = torch.randint(256, (500, 2))
    assert both(codes.byte(), 256)[1].blocks is not None
    assert both(codes.byte(), 256, temperature=0.1)[1].blocks is None
    assert both(codes.short(), 300)[1].blocks is None


def test_lists_sessions_and_new_items_use_the_index(monkeypatch: pytest.MonkeyPatch, listed: list[Any]) -> None:
    _, bundle = small_bundle("LISABase", n_codewords=16)
    near = {f"new {i}": np.array([i % 29]) for i in range(3000)}
    many = add_items(bundle, near)
    plain = Recommender(many)
    assert plain.network.items.targets.blocks is None
    histories = [[IDS[3], IDS[1]], ["new 7", "new 8", IDS[4]]]
    expected = plain.recommend(histories, 5), plain.start(histories[1]).recommend(5)
    monkeypatch.setattr(scorer, "INDEXED_ITEMS", 3000)
    indexed = Recommender(add_items(bundle, near))
    assert indexed.recommend(histories, 5, exact=True) == expected[0]
    assert indexed.start(histories[1]).recommend(5) == expected[1]
    assert len(listed) == 2
    with pytest.raises(UsageError, match="exact must be True, got False: there are no approximate lists"):
        indexed.recommend(histories, 5, exact=False)
