import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recbole_lisa.errors import UsageError
from recbole_lisa.saved import bundle_of, check_scores
from recbole_lisa.serving import Recommendation, Recommender, SessionBatch
from recbole_lisa.serving import scorer as ranking_module
from tests.helpers import assert_close
from tests.model.build import MODEL_NAMES, build_model
from tests.serving.build import IDS, N_ITEMS, raw, scores_of, scores_of_model, small_bundle, small_recommender

HISTORIES = [[3, 1, 4], [1], list(range(1, 30)) * 2, [9, 9, 9]]


def expected_answers(model: Any, histories: list[list[int]], k: int, allowed: list[set[int]]) -> list[Recommendation]:
    """Sort the model's scores of the allowed items, equal scores by item."""
    answers = []
    for row, items in zip(scores_of_model(model, histories).tolist(), allowed, strict=True):
        best = sorted((-row[i], i) for i in items)[:k]
        answers.append(Recommendation([IDS[i] for _, i in best], [-score for score, _ in best]))
    return answers


def assert_same(answers: list[Recommendation], expected: list[Recommendation]) -> None:
    """The same scores, and the same items wherever scores are apart."""
    for one, other in zip(answers, expected, strict=True):
        assert_close(scores_of(one), scores_of(other))
        for i, (item, best) in enumerate(zip(one.items, other.items, strict=True)):
            tied = [other.items[j] for j, s in enumerate(other.scores) if abs(s - other.scores[i]) < 1e-9]
            assert item == best or item in tied or i == len(one.items) - 1


@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_recommendations_are_the_model_s_own(name: str, n_layers: int) -> None:
    try:
        model, bundle = small_bundle(name, n_layers=n_layers)
    except ValueError as error:
        pytest.skip(f"{name} cannot run here: {error}")
    unseen = [set(range(1, N_ITEMS)) - set(history) for history in HISTORIES]
    recommender, expected = Recommender(bundle), expected_answers(model, HISTORIES, 7, unseen)
    answers = recommender.recommend([raw(history) for history in HISTORIES], 7)
    assert_same(answers, expected)
    assert answers[2] == Recommendation([], []), "all items were seen"
    assert_same([recommender.recommend([raw(history)], 7)[0] for history in HISTORIES], expected)
    everything = recommender.recommend([raw(history) for history in HISTORIES], 40, filter_seen=False)
    assert_same(everything, expected_answers(model, HISTORIES, 40, [set(range(1, N_ITEMS))] * len(HISTORIES)))
    assert all(len(answer.items) == N_ITEMS - 1 for answer in everything)


@pytest.mark.parametrize("positions", ["absolute", "from_end", "none"])
@pytest.mark.parametrize("name", ["LISASoft", "Transformer"])
def test_models_of_whole_histories_read_whole_histories(name: str, positions: str) -> None:
    model, bundle = small_bundle(name, windows="whole", max_length=6, positions=positions)
    recommender, histories = Recommender(bundle), [[3, 1, 4], list(range(1, 21)) * 2]
    allowed = [set(range(1, N_ITEMS))] * 2
    expected = expected_answers(model, histories, 7, allowed)
    assert_same(recommender.recommend([raw(history) for history in histories], 7, filter_seen=False), expected)
    assert scores_of(expected[1]) != pytest.approx(scores_of_model(model, [histories[1][-6:]]).topk(7).values[0])
    if recommender.has_sessions:
        sessions = recommender.start_many([raw(history) for history in histories])
        assert_same(sessions.recommend(7, filter_seen=False), expected)


@pytest.mark.parametrize("name", ["LISABase", "LISASoft", "LISAMini", "Transformer"])
def test_float32_scores_equal_the_model_s(name: str) -> None:
    model = small_bundle(name)[0].float()
    single = Recommender(bundle_of(model, IDS[1:], "small"))
    largest = scores_of_model(model, [[1, 2]]).abs().max()
    assert check_scores(model, single) <= 1e-6 * max(1.0, float(largest))


@pytest.mark.parametrize("filter_seen", [True, False])
def test_candidates_for_all_or_for_each(filter_seen: bool) -> None:
    model, bundle = small_bundle("LISABase")
    recommender, histories = Recommender(bundle), [raw(history) for history in HISTORIES]
    for candidates in ([[4, 1, 7, 7, 20]] * 4, [[4], [], [5, 6], [9, 1]]):
        allowed = [set(own) - (set(h) if filter_seen else set()) for own, h in zip(candidates, HISTORIES, strict=True)]
        given: Any = [raw(own) for own in candidates]
        expected = expected_answers(model, HISTORIES, 3, allowed)
        assert_same(recommender.recommend(histories, 3, candidates=given, filter_seen=filter_seen), expected)
    separate = recommender.recommend(histories, 3, candidates=[raw([4, 1, 7, 20])] * 4, filter_seen=filter_seen)
    for kind in (tuple, iter):
        shared: Any = kind(raw([4, 1, 7, 20]))
        assert_same(recommender.recommend(histories, 3, candidates=shared, filter_seen=filter_seen), separate)


def test_a_flag_that_is_a_text_is_refused() -> None:
    recommender: Any = small_recommender()
    for recommend in (recommender.start(["item 1"]).recommend, partial(recommender.recommend, [["item 1"]])):
        with pytest.raises(UsageError, match="filter_seen must be True or False, got 'False'"):
            recommend(3, filter_seen="False")


def test_batches_and_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    recommender = small_recommender()
    histories = [raw([i % 29 + 1, i % 7 + 1]) for i in range(11)]
    together = recommender.recommend(histories, 5)
    monkeypatch.setattr("recbole_lisa.serving.scorer.BATCH", 3)
    monkeypatch.setattr(ranking_module, "MAX_QUERIES", 4)
    monkeypatch.setattr(ranking_module, "BLOCK_SCORES", 20)
    assert_same(recommender.recommend(histories, 5), together)
    assert_same([recommender.recommend([history], 5)[0] for history in histories], together)


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


def test_no_histories_have_no_answers() -> None:
    recommender = small_recommender()
    assert recommender.recommend([]) == []
    batch = recommender.start_many([])
    batch.update([])
    assert (batch.recommend(), batch.lengths, batch.to_bytes()) == ([], [], [])
    assert len(SessionBatch.from_bytes(recommender, [])) == 0


def test_ids_that_are_no_text_count_as_their_text() -> None:
    recommender = Recommender(bundle_of(build_model("LISABase").double(), [str(i) for i in range(1, 30)], "small"))
    expected = recommender.recommend([["3", "4"]], 4)
    for history in ([3, np.int64(4)], np.array([3, 4]), ("3", "4")):
        assert recommender.recommend([history], 4) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"histories": ["item 1"]}, r"history 0 must be a list of ids, got 'item 1'; write \['item 1'\]"),
        ({"histories": "item 1"}, r"histories must be a list of lists of ids, got 'item 1'"),
        ({"histories": [7, 8]}, r"history 0 must be a list of ids, got 7; write \[7\]"),
        ({"histories": [None]}, "history 0 must be a list of ids, got None"),
        ({"histories": None}, "histories must be a list of lists of ids, got None"),
        ({"histories": [[["item 1"]]]}, r"history 0: \['item 1'\] stands where one id belongs"),
        ({"histories": [[]]}, "history 0 is empty"),
        ({"k": True}, "k must be a whole number of at least 1, got True"),
        ({"candidates": 5}, "candidates must be a list of ids, got 5"),
        ({"times": [["noon"]]}, "the times of history 0 must be numbers of seconds: could not convert"),
        ({"times": [None]}, "the times of history 0 must be a list of seconds, got None"),
        ({"times": 1.0}, "times must be a list of lists of seconds, got 1.0"),
        ({"times": [{1.0}]}, "the times of history 0 is a set, it must be a list of seconds in order"),
        ({"times": [[True]]}, "the times of history 0 must be numbers of seconds: got True"),
        ({"histories": {("item 1",)}}, "histories is a set, it must be a list of lists of ids in order"),
        ({"k": 0}, "k must be a whole number of at least 1, got 0"),
        ({"k": 2.5}, "k must be a whole number of at least 1, got 2.5"),
        ({"on_unknown": "skipp"}, "on_unknown must be raise, warn, skip, got 'skipp'. Did you mean 'skip'?"),
        ({"candidates": [["item 1"], ["item 2"]]}, "one for each of the 1 histories: got 2"),
        ({"candidates": ["new"]}, "candidates: 1 unknown item: 'new'"),
        ({"candidates": "item 1"}, "candidates must be a list of ids, got 'item 1'"),
        ({"candidates": {"item 1": 1}}, "candidates must be a list of ids, got {'item 1': 1}"),
        ({"candidates": [{"item 1": 1}]}, "candidates: {'item 1': 1} stands where one id belongs"),
        ({"histories": [{"item 1"}]}, "history 0 is a set, it must be a list"),
        ({"histories": [[None]]}, "history 0: 1 unknown item: 'None'"),
        ({"times": [["2020"]]}, "the times of history 0 must be numbers of seconds: got '2020'"),
        ({"times": [[[2020.0]]]}, r"the times of history 0 must be numbers of seconds: got \[2020.0\]"),
        ({"times": [[10**400]]}, "the times of history 0 must be numbers of seconds"),
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
    recommender, histories = Recommender(bundle), [raw([3, 1, 4, 8])]
    with pytest.raises(UsageError, match="give the times in seconds"):
        recommender.recommend(histories)
    with pytest.raises(UsageError, match="finite and never go back"):
        recommender.recommend([raw([3, 1])], times=[[2.0, 1.0]])
    batch = {"item_id_list": torch.tensor([[3, 1, 4, 8]]), "item_length": torch.tensor([4])}
    with torch.no_grad():
        scores = model.full_sort_predict(batch | {"time_gap_list": torch.tensor([[0.0, 3.0, 7.0, 1.0]])})[0]
    best, later = (
        recommender.recommend(histories, 29, times=[times], filter_seen=False)[0]
        for times in ([100.0, 103.0, 110.0, 111.0], [0.0, 3.0, 7.0, 99.0])
    )
    assert_close(scores_of(best), scores[1:].sort(descending=True).values)
    assert later.scores != best.scores


@pytest.mark.parametrize("number", [1e308, float("nan")])
def test_scores_that_are_no_numbers_are_refused(number: float) -> None:
    bundle = small_bundle("LISABase")[1]
    bundle.weights["blocks.0.feed_forward_norm.bias"].fill_(number)
    recommender = Recommender(bundle)
    with pytest.raises(UsageError, match="the scores of this LISABase are no finite numbers"):
        recommender.recommend([raw([1, 2])], 3)
