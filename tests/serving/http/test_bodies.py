import json
from typing import Any

import pytest

from recbole_lisa.serving.http import bodies
from recbole_lisa.serving.http.limits import Limits, RefusalError

LIMITS = Limits(histories=3, items=4, updates=2, k=20, id_characters=8)


def refusal_of(call: Any, *args: Any) -> RefusalError:
    with pytest.raises(RefusalError) as caught:
        call(*args)
    return caught.value


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is not JSON: Expecting value"),
        (b"{", "the body is not JSON: Expecting property name"),
        (b'{"k": 1}x', "the body is not JSON: Extra data"),
        (b'\xef\xbb\xbf{"k": 1}', "the body is not JSON: Unexpected UTF-8 BOM"),
        (b'{"k": "\xff"}', "the body is not utf-8: invalid start byte at byte 7"),
        (b'{"k": "\xed\xa0\x80"}', "the body is not utf-8: invalid continuation byte at byte 7"),
        ('{"k": 1}'.encode("utf-16"), "the body is not utf-8"),
        (b'{"k": NaN}', "the body is not JSON: NaN is no number of JSON"),
        (b'{"k": -Infinity}', "the body is not JSON: -Infinity is no number of JSON"),
        (b'{"k": 1' + b"0" * 5000 + b"}", "the body is not JSON: a number of 5001 digits"),
        (b'{"k": 1, "k": 2}', "the body is not JSON: a name appears twice in one object"),
        (b'{"k":' * 100_000, "the body is nested too deeply"),
        (b"[" * 100_000, "the body is nested too deeply"),
        (b"[1]", "the body must be a JSON object, it is a list"),
        (b"null", "the body must be a JSON object, it is missing or null"),
        (b"1e999", "the body must be a JSON object, it is a number"),
        (b'"\\ud800"', "the body must be a JSON object, it is a text"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_no_json_object_is_told(body: bytes, message: str) -> None:
    refusal = refusal_of(bodies.parse_object, body)
    assert (refusal.status, refusal.code) == (400, "not_json")
    assert refusal.message.startswith(message)


def test_texts_may_hold_anything_that_json_can_say() -> None:
    for text in ("", "é", "\x00", "\ud800", "\U0001f600", "</script>"):
        assert bodies.parse_object(json.dumps({"history": [text]}).encode()) == {"history": [text]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "'histories' must be a list of lists, it is missing or null"),
        ({"histories": "ab"}, "'histories' must be a list of lists, it is a text"),
        ({"histories": ["ab"]}, "'histories[0]' must be a list of item ids, it is a text"),
        ({"histories": [["a"], {"a": 1}]}, "'histories[1]' must be a list of item ids, it is an object"),
        (
            {"histories": [["a", None]]},
            "'histories[0]' must hold item ids, texts or whole numbers; there is missing or",
        ),
        ({"histories": [[True]]}, "'histories[0]' must hold item ids, texts or whole numbers; there is true in it"),
        ({"histories": [[1.0]]}, "'histories[0]' must hold item ids, texts or whole numbers; there is 1.0 in it"),
        ({"histories": [["a"] * 5]}, "'histories[0]' holds 5, at most 4 are allowed"),
        ({"histories": [["a"]] * 4}, "'histories' holds 4, at most 3 are allowed"),
        ({"histories": [["123456789"]]}, "'histories[0]' holds an id of 9 characters; at most 8"),
        ({"histories": [["a"]], "k": 0}, "'k' must be a whole number from 1 to 20, it is 0"),
        ({"histories": [["a"]], "k": 21}, "'k' must be a whole number from 1 to 20, it is 21"),
        ({"histories": [["a"]], "k": 3.0}, "'k' must be a whole number from 1 to 20, it is 3.0"),
        ({"histories": [["a"]], "k": True}, "'k' must be a whole number from 1 to 20, it is true"),
        ({"histories": [["a"]], "k": "5" * 60}, "'k' must be a whole number from 1 to 20, it is \"5555"),
        ({"histories": [["a"]], "filter_seen": 1}, "'filter_seen' must be true or false, it is 1"),
        ({"histories": [["a"]], "on_unknown": "fail"}, "'on_unknown' must be one of raise, warn, skip, it is \"fail\""),
        ({"histories": [["a"]], "on_unknown": ["skip"]}, "'on_unknown' must be one of raise, warn, skip, it is a list"),
        ({"histories": [["a"]], "times": [1]}, "'times[0]' must be a list of seconds, it is a number"),
        ({"histories": [["a"]], "times": [["1"]]}, "'times[0]' must hold numbers of seconds between -1e+12 and 1e+12;"),
        ({"histories": [["a"]], "times": [[1e300]]}, "'times[0]' must hold numbers of seconds"),
        ({"histories": [["a"]], "times": [[1, 2]]}, "'times' must hold one list of seconds for each history"),
        ({"histories": [["a"]], "times": []}, "'times' must hold one list of seconds for each history"),
        ({"histories": [["a"]], "candidates": "a"}, "'candidates' must be a list of item ids, it is a text"),
        ({"histories": [["a"]], "candidates": [["a"], ["b"]]}, "'candidates' must hold ids, or one list for each of"),
        ({"histories": [["a"], ["b"]], "candidates": [["a"], "b"]}, "'candidates[1]' must be a list of item ids"),
        ({"histories": [["a"]], "history": []}, "unknown field 'history': known are histories, times"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_recommend_does_not_take_is_told(body: dict[str, Any], message: str) -> None:
    refusal = refusal_of(bodies.read_recommend, body, LIMITS)
    assert (refusal.status, refusal.code) == (422, "invalid")
    assert refusal.message.startswith(message)


def test_infinite_times_are_told() -> None:
    body = bodies.parse_object(b'{"histories": [["a"]], "times": [[1e999]]}')
    assert "there is too large a number in it" in refusal_of(bodies.read_recommend, body, LIMITS).message


def test_recommend_is_read() -> None:
    body = {"histories": [["a", 7], []], "times": [[1, 2.5], []], "k": 20, "filter_seen": False, "on_unknown": "skip"}
    expected = bodies.Recommend([["a", "7"], []], [[1.0, 2.5], []], 20, False, None, "skip")
    assert bodies.read_recommend(body, LIMITS) == expected
    nulls = dict.fromkeys(("times", "k", "filter_seen", "candidates", "on_unknown"))
    assert bodies.read_recommend({"histories": [], **nulls}, LIMITS) == bodies.Recommend(
        [], None, 10, True, None, "raise"
    )
    both = [
        bodies.read_recommend({"histories": [[1], [2]], "candidates": c}, LIMITS).candidates for c in ([3], [[], [4]])
    ]
    assert both == [["3"], [[], ["4"]]]
    assert bodies.read_recommend({"histories": []}, Limits(k=3)).k == 3


@pytest.mark.parametrize(
    ("read", "body", "message"),
    [
        (bodies.read_start, {"history": None}, "'history' must be a list of item ids, it is missing or null"),
        (bodies.read_start, {"id": "a/b"}, "a session id has 1 to 64 characters"),
        (bodies.read_start, {"id": ""}, "a session id has 1 to 64 characters"),
        (bodies.read_start, {"id": "x" * 65}, "a session id has 1 to 64 characters"),
        (bodies.read_start, {"id": "a\n"}, "a session id has 1 to 64 characters"),
        (bodies.read_start, {"id": "é"}, "a session id has 1 to 64 characters"),
        (bodies.read_start, {"id": 5}, "a session id has 1 to 64 characters"),
        (
            bodies.read_start,
            {"history": [1], "times": []},
            "'times' must hold one number for each of the 1 items, it ho",
        ),
        (bodies.read_update, {}, "'items' must be a list of item ids, it is missing or null"),
        (bodies.read_update, {"items": [1, 2, 3]}, "'items' holds 3, at most 2 are allowed"),
        (bodies.read_update, {"items": [1], "expected_length": -1}, "'expected_length' must be a whole number from 0"),
        (
            bodies.read_update,
            {"items": [1], "item": 1},
            "unknown field 'item': known are items, times, on_unknown, expe",
        ),
        (bodies.read_recommend_session, {"k": 21}, "'k' must be a whole number from 1 to 20, it is 21"),
        (bodies.read_recommend_session, {"candidates": [[1]]}, "'candidates' must hold item ids"),
        (bodies.read_recommend_session, {"filterseen": 1}, "unknown field 'filterseen': known are k, filter_seen"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value))[:50],
)
def test_what_sessions_do_not_take_is_told(read: Any, body: dict[str, Any], message: str) -> None:
    refusal = refusal_of(read, body, LIMITS)
    assert refusal.status == 422
    assert refusal.message.startswith(message)


def test_bodies_of_sessions_are_read() -> None:
    assert bodies.read_start({}, LIMITS) == bodies.Start(None, [], None, "raise")
    started = bodies.read_start({"id": "A_z-9", "history": [1], "times": [5], "on_unknown": "warn"}, LIMITS)
    assert started == bodies.Start("A_z-9", ["1"], [5.0], "warn")
    assert bodies.read_update({"items": ["a"], "expected_length": 0}, LIMITS) == bodies.Update(["a"], None, "raise", 0)
    assert bodies.read_recommend_session({}, LIMITS) == bodies.RecommendSession(10, True, None, "raise")
