from itertools import combinations

import numpy as np
import pytest
from scipy.stats import chisquare

from recbole_lisa.data.histories import Histories
from recbole_lisa.data.sampler import TrainingNegatives, evaluation_negatives, item_weights
from recbole_lisa.errors import UsageError

ALMOST_SURELY = 1e-6
COUNTS = np.array([0, 100, 50, 10, 0, 40])


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def random_histories(n_users: int, n_items: int, longest: int) -> Histories:
    users = np.repeat(np.arange(1, n_users + 1), rng(1).integers(1, longest, n_users))
    items = rng(2).integers(1, n_items, len(users))
    return Histories.from_interactions(users, items, np.arange(len(users), dtype=np.float64))


def test_weights_follow_the_popularity_to_the_power_alpha() -> None:
    weights = item_weights(COUNTS, "popularity", 0.5)
    np.testing.assert_allclose(weights / weights.sum(), np.sqrt(COUNTS) / np.sqrt(COUNTS).sum(), rtol=1e-9)
    weights = item_weights(COUNTS, "popularity", 0.0)
    np.testing.assert_array_equal(weights > 0, COUNTS > 0)
    assert len(set(weights[COUNTS > 0])) == 1
    np.testing.assert_array_equal(item_weights(COUNTS, "uniform"), [0, 1, 1, 1, 1, 1])


@pytest.mark.parametrize(("distribution", "alpha"), [("uniform", 0.0), ("popularity", 0.5), ("popularity", 1.0)])
@pytest.mark.parametrize("target", [None, 1, 2, 4, 5], ids=["shared", "1", "2", "4", "5"])
def test_negatives_follow_the_weights_without_the_target(target: int | None, distribution: str, alpha: float) -> None:
    negatives = TrainingNegatives(item_weights(COUNTS, distribution, alpha), 20)
    drawn = negatives.draw_shared(50_000, rng()) if target is None else negatives.draw(np.full(5000, target), rng())
    observed = np.bincount(drawn.ravel(), minlength=6)
    weights = (np.arange(6) > 0).astype(float) if distribution == "uniform" else COUNTS**alpha
    weights[target or 0] = 0
    assert not observed[weights == 0].any()
    expected = weights[weights > 0] / weights.sum() * observed.sum()
    assert chisquare(observed[weights > 0], expected).pvalue > ALMOST_SURELY


def test_training_negatives_need_two_items() -> None:
    negatives = TrainingNegatives(item_weights(np.array([0, 1, 9]), "popularity"), 1)
    assert negatives.draw(np.array([1, 2, 2, 1]), rng()).ravel().tolist() == [2, 1, 1, 2]
    with pytest.raises(UsageError, match="at least 2 items to draw from, the data has 1"):
        TrainingNegatives(item_weights(np.array([0, 0, 5]), "popularity"), 1)


@pytest.mark.parametrize(("n_items", "longest"), [(400, 200), (131, 30)])
@pytest.mark.parametrize("distribution", ["uniform", "popularity"])
def test_evaluation_negatives_are_unseen_and_never_repeat(distribution: str, n_items: int, longest: int) -> None:
    store = random_histories(300, n_items, longest)
    weights = item_weights(np.append(0, rng(4).integers(1, 500, n_items - 1)), distribution)
    owners = rng(5).integers(0, 300, 500)
    drawn = evaluation_negatives(store, owners, weights, 100, rng())
    for owner, negatives in zip(owners, drawn, strict=True):
        history = set(store.items[store.offsets[owner] : store.offsets[owner + 1]].tolist())
        chosen = set(negatives.tolist())
        assert len(chosen) == 100
        assert not chosen & (history | {0})


def test_evaluation_negatives_can_take_every_item_that_is_left() -> None:
    store = random_histories(200, 61, 40)
    unseen = [set(range(1, 61)) - set(part.tolist()) for part in np.split(store.items, store.offsets[1:-1])]
    k = min(map(len, unseen))
    drawn = evaluation_negatives(store, np.arange(200), item_weights(np.ones(61, int), "uniform"), k, rng())
    tight = [user for user in range(200) if len(unseen[user]) == k]
    assert tight
    assert all(set(drawn[user].tolist()) == unseen[user] for user in tight)


@pytest.mark.parametrize(("distribution", "rounds"), [("uniform", None), ("popularity", None), ("popularity", 0)])
def test_evaluation_negatives_are_drawn_one_after_the_other_without_replacement(
    monkeypatch: pytest.MonkeyPatch, distribution: str, rounds: int | None
) -> None:
    if rounds is not None:  # every row is completed as a straggler
        monkeypatch.setattr("recbole_lisa.data.sampler._ROUNDS", rounds)
    weights = item_weights(np.array([0, 6, 3, 2, 1, 1]), distribution)
    store = Histories.from_interactions(np.array([1]), np.array([5]), np.zeros(1))
    drawn = evaluation_negatives(store, np.zeros(40_000, dtype=np.int64), weights, 2, rng())
    observed = dict.fromkeys(combinations(range(1, 5), 2), 0)
    for pair in np.sort(drawn, axis=1):
        observed[tuple(pair.tolist())] += 1
    p = weights[:5] / weights[:5].sum()
    expected = [p[a] * p[b] * (1 / (1 - p[a]) + 1 / (1 - p[b])) * 40_000 for a, b in observed]
    assert chisquare(list(observed.values()), expected).pvalue > ALMOST_SURELY


def test_too_few_unseen_items_are_refused_with_the_numbers() -> None:
    store = Histories.from_interactions(np.ones(3, int), np.array([1, 2, 2]), np.arange(3.0))
    weights = item_weights(np.ones(6, int), "uniform")
    message = "needs 4 evaluation negatives.* only 3 items of 5 .*set eval_args to {mode: full}, or rank at most 3"
    with pytest.raises(UsageError, match=message):
        evaluation_negatives(store, np.array([0]), weights, 4, rng())
