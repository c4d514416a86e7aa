"""Suggestions of Optuna: inside the space, accepted by the model, better for what they learn."""

import pytest

from recbole_lisa.errors import UsageError
from recbole_lisa.tuning.record import FAILED, FINISHED, STOPPED, Trial
from recbole_lisa.tuning.space import Domain, Settings
from tests.tuning.test_record import told

pytest.importorskip("optuna")
from recbole_lisa.tuning.optuna_search import OptunaSearch  # noqa: E402

SPACE = {
    "a": Domain("uniform", (0, 1)),
    "b": Domain("choice", ([1], None, "x")),
    "c": Domain("integers", (1, 9)),
    "d": Domain("log_uniform", (1e-4, 1e-2)),
}


def search(**more: object) -> OptunaSearch:
    return OptunaSearch(SPACE, seed=5, **{"problem": lambda chosen: None, **more})  # type: ignore[arg-type]


def score(chosen: Settings) -> float:
    """Best at a = 0.8."""
    return 1 - abs(chosen["a"] - 0.8)


def test_suggestions_are_of_the_space_and_learn() -> None:
    suggestions = search()
    distances = []
    for number in range(40):
        chosen = suggestions.suggest(number)
        assert all(domain.holds(chosen[key]) for key, domain in SPACE.items())
        assert isinstance(chosen["c"], int) and chosen["d"] == float(f"{chosen['d']:.4g}")
        suggestions.learn(Trial(number, chosen, FINISHED, [told(score(chosen))]))
        distances.append(abs(chosen["a"] - 0.8))
    assert sum(distances[20:]) / 20 < 0.7 * sum(distances[:10]) / 10


def test_the_trials_of_an_interrupted_search_are_learnt_from() -> None:
    known = [
        Trial(number, {"a": number / 10, "b": None, "c": 3, "d": 1e-3}, FINISHED, [told(score({"a": number / 10}))])
        for number in range(11)
    ]
    fresh, taught = search(), search()
    taught.learn_all([*known, *known])
    distance = [sum(abs(source.suggest(n)["a"] - 0.8) for n in range(10)) for source in (fresh, taught)]
    assert distance[1] < 0.8 * distance[0]


def test_failed_stopped_and_foreign_trials_do_no_harm() -> None:
    suggestions = search()
    inside = {"a": 0.5, "b": "x", "c": 1, "d": 1e-3}
    suggestions.learn(Trial(0, {**inside, "b": "not in the space"}, FINISHED, [told(0.5)]))
    suggestions.learn(Trial(1, inside, FAILED))
    suggestions.learn(Trial(2, inside, STOPPED, [told(0.1), told(0.2, epoch=2)]))
    assert SPACE["a"].holds(suggestions.suggest(3)["a"])


def test_refused_combinations_are_not_suggested() -> None:
    suggestions = search(problem=lambda chosen: "too small" if chosen["c"] < 5 else None)
    assert all(suggestions.suggest(number)["c"] >= 5 for number in range(10))
    with pytest.raises(UsageError, match="refuses what optuna suggests from the space, the last time since never"):
        search(problem=lambda chosen: "never").suggest(0)
