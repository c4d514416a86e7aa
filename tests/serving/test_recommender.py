import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recbole_lisa.errors import UsageError
from recbole_lisa.saved import check_scores
from recbole_lisa.serving import Recommendation, Recommender, SessionBatch
from recbole_lisa.serving import ranking as ranking_module
from tests.helpers import assert_close
from tests.model.build import MODEL_NAMES
from tests.serving.build import IDS, N_ITEMS, raw, scores_of_model, small_bundle, small_recommender

HISTORIES = [[3, 1, 4], [1], list(range(1, 30)) * 2, [9, 9, 9]]


def expected_answers(model: Any, histories: list[list[int]], k: int, allowed: list[set[int]]) -> list[Recommendation]:
    """Sort the model's scores of the allowed items, equal scores by item."""
    answers = []
    for row, items in zip(scores_of_model(model, histories).tolist(), allowed, strict=True):
        best = sorted((-row[i], i) for i in items)[:k]
        answers.append(Recommendation([IDS[i] for _, i in best], [-score for score, _ in best]))
    return answers


def assert_same(found: list[Recommendation], expected: list[Recommendation]) -> None:
    """The same scores, and the same items wherever scores are apart."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert_close(torch.tensor(one.scores, dtype=torch.float64), torch.tensor(other.scores, dtype=torch.float64))
        for i, (item, wanted) in enumerate(zip(one.items, other.items, strict=True)):
            tied = [other.items[j] for j, s in enumerate(other.scores) if abs(s - other.scores[i]) < 1e-9]
            assert item == wanted or item in tied or i == len(one.items) - 1


@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_recommendations_are_the_model_s_own(name: str, n_layers: int) -> None:
    try:
        model, bundle = small_bundle(name, n_layers=n_layers)
    except ValueError as error:
        pytest.skip(f"{name} cannot run here: {error}")
    unseen = [set(range(1, N_ITEMS)) - set(history) for history in HISTORIES]
    found = Recommender(bundle).recommend([raw(history) for history in HISTORIES], 7)
    assert_same(found, expected_answers(model, HISTORIES, 7, unseen))
    assert found[2] == Recommendation([], []), "all items were seen"


@pytest.mark.parametrize("name", ["LISABase", "LISASoft", "LISAMini", "Transformer"])
def test_float32_scores_equal_the_model_s(name: str) -> None:
    model, bundle = small_bundle(name)
    model = model.float()
    single = small_bundle_of(model)
    largest = scores_of_model(model, [[1, 2]]).abs().max()
    assert check_scores(model, single) <= 1e-6 * max(1.0, float(largest))


def small_bundle_of(model: Any) -> Recommender:
    from recbole_lisa.saved import bundle_of

    return Recommender(bundle_of(model, IDS[1:], "small"))


@pytest.mark.parametrize("name", ["LISABase", "LISAMini", "Transformer"])
def test_seen_items_stay_where_they_are_asked_for(name: str) -> None:
    model, bundle = small_bundle(name)
    everything = [set(range(1, N_ITEMS))] * len(HISTORIES)
    found = Recommender(bundle).recommend([raw(history) for history in HISTORIES], 40, filter_seen=False)
    assert_same(found, expected_answers(model, HISTORIES, 40, everything))
    assert all(len(answer.items) == N_ITEMS - 1 for answer in found)


@pytest.mark.parametrize("filter_seen", [True, False])
def test_candidates_for_all_or_for_each(filter_seen: bool) -> None:
    model, bundle = small_bundle("LISABase")
    recommender, histories = Recommender(bundle), [raw(history) for history in HISTORIES]
    for candidates in ([[4, 1, 7, 7, 20]] * 4, [[4], [], [5, 6], [9, 1]]):
        allowed = [set(own) - (set(h) if filter_seen else set()) for own, h in zip(candidates, HISTORIES, strict=True)]
        given: Any = [raw(own) for own in candidates]
        expected = expected_answers(model, HISTORIES, 3, allowed)
        assert_same(recommender.recommend(histories, 3, candidates=given, filter_seen=filter_seen), expected)
    shared = recommender.recommend(histories, 3, candidates=tuple(raw([4, 1, 7, 20])), filter_seen=filter_seen)
    separate = recommender.recommend(histories, 3, candidates=[raw([4, 1, 7, 20])] * 4, filter_seen=filter_seen)
    assert_same(shared, separate)


def test_batches_and_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    recommender = small_recommender()
    histories = [raw([i % 29 + 1, i % 7 + 1]) for i in range(11)]
    together = recommender.recommend(histories, 5)
    monkeypatch.setattr("recbole_lisa.serving.scorer.BATCH", 3)
    monkeypatch.setattr(ranking_module, "MAX_QUERIES", 4)
    monkeypatch.setattr(ranking_module, "BLOCK_SCORES", 20)
    assert_same(recommender.recommend(histories, 5), together)
    assert_same([recommender.recommend([history], 5)[0] for history in histories], together)


def test_one_history_at_a_time_is_ranked_as_the_model_ranks() -> None:
    model, bundle = small_bundle("LISAMini")
    recommender = Recommender(bundle)
    for history in HISTORIES[:2]:
        unseen = [set(range(1, N_ITEMS)) - set(history)]
        assert_same(recommender.recommend([raw(history)], 7), expected_answers(model, [history], 7, unseen))


@pytest.mark.parametrize("ids", [["item 1", "new"], ["new", "newer", "item 1", "n", "m"]])
def test_unknown_items_are_raised_warned_of_or_skipped(ids: list[str]) -> None:
    recommender = small_recommender()
    known = recommender.recommend([["item 1"]], 5)
    with pytest.raises(UsageError, match="history 1: . unknown items?: 'new'"):
        recommender.recommend([["item 1"], ids], 5)
    with pytest.warns(UserWarning, match="history 0: . unknown items?: 'new'"):
        assert recommender.recommend([ids], 5, on_unknown="warn") == known
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert recommender.recommend([ids, ["new"]], 5, on_unknown="skip") == [*known, Recommendation([], [])]


def test_a_warning_names_the_line_that_asked() -> None:
    recommender = small_recommender()
    session = recommender.start(["item 1"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recommender.recommend([["item 1", "new"]], on_unknown="warn")
        recommender.recommend([["item 1"]], candidates=["item 2", "new"], on_unknown="warn")
        session.update("new", on_unknown="warn")
        session.recommend(candidates=["item 2", "new"], on_unknown="warn")
    assert [Path(warning.filename).name for warning in caught] == [Path(__file__).name] * 4
    assert len({warning.lineno for warning in caught}) == 4


def test_candidates_may_come_one_by_one() -> None:
    recommender = small_recommender()
    expected = recommender.recommend([["item 1"]] * 2, candidates=["item 2", "item 3"])
    assert recommender.recommend([["item 1"]] * 2, candidates=iter(["item 2", "item 3"])) == expected
    assert all(len(answer.items) == 2 for answer in expected)


def test_no_histories_have_no_answers() -> None:
    recommender = small_recommender()
    assert recommender.recommend([]) == []
    batch = recommender.start_many([])
    batch.update([])
    assert (batch.recommend(), batch.lengths, batch.to_bytes()) == ([], [], [])
    assert len(SessionBatch.from_bytes(recommender, [])) == 0


def test_ids_that_are_no_text_count_as_their_text() -> None:
    from recbole_lisa.saved import bundle_of
    from tests.model.build import build_model

    recommender = Recommender(bundle_of(build_model("LISABase").double(), [str(i) for i in range(1, 30)], "small"))
    expected = recommender.recommend([["3", "4"]], 4)
    assert recommender.recommend([[3, np.int64(4)]], 4) == expected
    assert recommender.recommend([np.array([3, 4])], 4) == expected
    assert recommender.recommend(iterable_histories([["3", "4"]]), 4) == expected


def iterable_histories(histories: list[list[str]]) -> list[tuple[str, ...]]:
    return [tuple(history) for history in histories]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"histories": ["item 1"]}, r"history 0 must be a list of ids, got 'item 1'; write \['item 1'\]"),
        ({"histories": "item 1"}, r"histories must be a list of lists of ids, got 'item 1'"),
        ({"histories": [7, 8]}, r"history 0 must be a list of ids, got 7; write \[7\]"),
        ({"histories": [None]}, "history 0 must be a list of ids, got None"),
        ({"histories": None}, "histories must be a list of lists of ids, got None"),
        ({"histories": [[]]}, "history 0 is empty"),
        ({"k": True}, "k must be a whole number of at least 1, got True"),
        ({"candidates": 5}, "candidates must be a list of ids, got 5"),
        ({"times": [["noon"]]}, "the times of history 0 must be numbers of seconds: could not convert"),
        ({"times": [None]}, "the times of history 0 must be numbers of seconds"),
        ({"k": 0}, "k must be a whole number of at least 1, got 0"),
        ({"k": 2.5}, "k must be a whole number of at least 1, got 2.5"),
        ({"on_unknown": "skipp"}, "on_unknown must be raise, warn, skip, got 'skipp'. Did you mean 'skip'?"),
        ({"candidates": [["item 1"], ["item 2"]]}, "one for each of the 1 histories: got 2"),
        ({"candidates": ["new"]}, "candidates: 1 unknown item: 'new'"),
        ({"candidates": "item 1"}, "candidates must be a list of ids, got 'item 1'"),
        ({"times": [[1.0], [2.0]]}, "one list for each of the 1 histories, got 2"),
        ({"times": [[1.0, 2.0]]}, "history 0 has 1 items and 2 times"),
    ],
    ids=str,
)
def test_mistakes_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        small_recommender().recommend(**{"histories": [["item 1"]], **arguments})


def test_models_that_fade_with_time_need_the_times() -> None:
    model, bundle = small_bundle("LISABase", histogram_decay="time")
    recommender = Recommender(bundle)
    times = [100.0, 103.0, 110.0, 111.0]
    with pytest.raises(UsageError, match="give the times in seconds"):
        recommender.recommend([raw([3, 1, 4, 8])])
    with pytest.raises(UsageError, match="finite and never go back"):
        recommender.recommend([raw([3, 1])], times=[[2.0, 1.0]])
    batch = {
        "item_id_list": torch.tensor([[3, 1, 4, 8]]),
        "item_length": torch.tensor([4]),
        "time_gap_list": torch.tensor([[0.0, 3.0, 7.0, 1.0]]),
    }
    with torch.no_grad():
        scores = model.full_sort_predict(batch)[0]
    found = recommender.recommend([raw([3, 1, 4, 8])], 29, times=[times], filter_seen=False)[0]
    assert_close(torch.tensor(found.scores, dtype=torch.float64), scores[1:].sort(descending=True).values)
    later = recommender.recommend([raw([3, 1, 4, 8])], 29, times=[[0.0, 3.0, 7.0, 99.0]], filter_seen=False)[0]
    assert later.scores != found.scores
