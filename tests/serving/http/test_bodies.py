from typing import Any

import pytest

pytest.importorskip("fastapi")
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from recbole_lisa.errors import UsageError
from recbole_lisa.serving.http.bodies import Body, Limits, Recommend, RecommendSession, Start, Update
from recbole_lisa.serving.http.refusals import describe

LIMITS = Limits(histories=3, items=4, updates=2, k=20)


def message_of(model: type[Body], body: Any) -> str:
    """The line that a caller gets for a wrong body."""
    try:
        model.model_validate(body).check(LIMITS)
    except ValidationError as error:
        errors = RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in error.errors()]).errors()
        return describe(errors[0])
    except UsageError as error:
        return str(error)
    raise AssertionError("the body is accepted")


@pytest.mark.parametrize(
    ("model", "body", "message"),
    [
        (Recommend, [1], "the body must be a JSON object, sent with the header Content-Type: application/json"),
        (Recommend, {}, "'histories': field required"),
        (Recommend, {"histories": None}, "'histories': field required"),
        (Recommend, {"histories": "ab"}, "'histories': input should be a valid list, got \"ab\""),
        (Recommend, {"histories": [["a"], {"a": 1}]}, "'histories[1]': input should be a valid list, got dict"),
        *(
            (Recommend, {"histories": [["a", id_]]}, f"'histories[0][1]': input should be a valid string, got {text}")
            for id_, text in ((None, "null"), (True, "true"), (1.0, "1.0"))
        ),
        (Recommend, {"histories": [["a"] * 5]}, "'histories[0]' holds 5 entries; at most 4 are allowed"),
        (Recommend, {"histories": [["a"]] * 4}, "'histories' holds 4 entries; at most 3 are allowed"),
        (Recommend, {"histories": [["x" * 1001]]}, "'histories[0][0]': string should have at most 1000 characters"),
        (Recommend, {"histories": [["a"]], "k": 0}, "'k': input should be greater than or equal to 1, got 0"),
        (Recommend, {"histories": [["a"]], "k": 21}, "'k' must be a whole number from 1 to 20, got 21"),
        (Recommend, {"histories": [["a"]], "k": True}, "'k': input should be a valid integer, got true"),
        (Recommend, {"histories": [["a"]], "k": "5" * 60}, "'k': input should be a valid integer, got \"5555"),
        (Recommend, {"histories": [], "filter_seen": 1}, "'filter_seen': input should be a valid boolean, got 1"),
        *(
            (Recommend, {"histories": [], "on_unknown": policy}, "'on_unknown': input should be 'raise', 'warn' or")
            for policy in ("fail", ["skip"])
        ),
        (Recommend, {"histories": [["a"]], "times": [1]}, "'times[0]': input should be a valid list, got 1"),
        (Recommend, {"histories": [["a"]], "times": [["1"]]}, "'times[0][0]': input should be a valid number"),
        (Recommend, {"histories": [["a"]], "times": [[1e300]]}, "'times[0][0]': input should be less than or equal"),
        (Recommend, {"histories": [["a"]], "times": [[1e999]]}, "'times[0][0]': input should be a finite number"),
        (Recommend, {"histories": [], "candidates": "a"}, "'candidates': input should be a valid list, got \"a\""),
        (Recommend, {"histories": [], "candidates": [["a"], "b"]}, "'candidates[1]': input should be a valid list"),
        (Recommend, {"histories": [], "candidates": [[1] * 5]}, "'candidates[0]' holds 5 entries; at most 4"),
        (Start, {"histry": []}, "unknown field 'histry': known are on_unknown, id, history, times. Did you mean 'hi"),
        (Start, {"history": ["a"] * 5}, "'history' holds 5 entries; at most 4 are allowed"),
        *((Start, {"id": name}, "'id': string should match pattern") for name in ("a/b", "", "x" * 65, "a\n", "é")),
        (Start, {"id": 5}, "'id': input should be a valid string, got 5"),
        (Update, {}, "'items': field required"),
        (Update, {"items": [1, 2, 3]}, "'items' holds 3 entries; at most 2 are allowed"),
        (Update, {"items": [1], "expected_length": -1}, "'expected_length': input should be greater than or equal"),
        (RecommendSession, {"candidates": [[1]]}, "'candidates[0]': input should be a valid string, got list"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value))[:50],
)
def test_what_a_body_must_not_have_is_one_line(model: type[Body], body: Any, message: str) -> None:
    line = message_of(model, body)
    assert line.startswith(message) and "\n" not in line and len(line) < 250


def test_bodies_are_read_and_null_counts_as_not_given() -> None:
    defaults = {"times": None, "k": 10, "filter_seen": True, "at": None, "candidates": None, "on_unknown": "raise"}
    for fields in ({}, dict.fromkeys(defaults)):
        read = Recommend.model_validate({"histories": [], **fields})
        assert read.model_dump() == {"histories": [], **defaults}
    fields = Recommend.model_json_schema()["properties"]
    assert {name for name in fields if {"type": "null"} in fields[name].get("anyOf", [])} == {*defaults}
    assert fields["k"]["default"] == 10 and {"minimum": 1, "type": "integer"} in fields["k"]["anyOf"]
    for candidates in ([3], [[], [4]], ["é", "\x00", "\U0001f600", "</script>"]):
        body = {"histories": [["a", 7], []], "candidates": candidates}
        assert Recommend.model_validate(body).candidates == candidates
    for k, given in ((3, {}), (2, {"k": 2})):
        read = Recommend.model_validate({"histories": [], **given})
        read.check(Limits(k=3))
        assert read.k == k
    assert Start.model_validate({}).model_dump() == {"on_unknown": "raise", "id": None, "history": [], "times": None}
    assert Start.model_validate({"id": "A_z-9", "history": [1], "times": [5]}).times == [5.0]
    assert Update.model_validate({"items": ["a"], "expected_length": 0}).expected_length == 0
