"""Bodies of requests: bytes to JSON to checked values, nothing taken on trust."""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from recbole_lisa.errors import did_you_mean
from recbole_lisa.serving.http.limits import Limits, RefusalError, invalid
from recbole_lisa.serving.inputs import POLICIES

MAX_DIGITS = 20
"""Digits of a whole number; longer ones cost quadratic time to read."""
MAX_SECONDS = 1e12
"""Largest time on either side of 0: differences of such times stay finite in float32."""
SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
Ids = list[str]
Times = list[float]


@dataclass(frozen=True)
class Recommend:
    """Recommendations for histories; see `Recommender.recommend`."""

    histories: list[Ids]
    times: list[Times] | None
    k: int
    filter_seen: bool
    candidates: Ids | list[Ids] | None
    on_unknown: str


@dataclass(frozen=True)
class Start:
    """A new session; id None lets the service choose one."""

    id: str | None
    history: Ids
    times: Times | None
    on_unknown: str


@dataclass(frozen=True)
class Update:
    """Items to add to a session; expected_length None adds them to a history of any length."""

    items: Ids
    times: Times | None
    on_unknown: str
    expected_length: int | None


@dataclass(frozen=True)
class RecommendSession:
    """Recommendations for a session; see `Session.recommend`."""

    k: int
    filter_seen: bool
    candidates: Ids | None
    on_unknown: str


def parse_object(body: bytes) -> dict[str, Any]:
    """Read a JSON object, as RFC 8259 has it: utf-8, no NaN, no name twice.

    Raises:
        RefusalError: 400, with what is wrong.
    """
    try:
        value = json.loads(
            body.decode("utf-8"), parse_constant=_no_constant, parse_int=_whole, object_pairs_hook=_distinct
        )
    except UnicodeDecodeError as error:
        raise RefusalError(400, "not_json", f"the body is not utf-8: {error.reason} at byte {error.start}") from error
    except RecursionError as error:
        raise RefusalError(400, "not_json", "the body is nested too deeply") from error
    except ValueError as error:
        raise RefusalError(400, "not_json", f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RefusalError(400, "not_json", f"the body must be a JSON object, it is {_kind(value)}")
    return value


def read_recommend(body: dict[str, Any], limits: Limits) -> Recommend:
    """Check the body of POST /recommend.

    Raises:
        RefusalError: 422; so do the other readers.
    """
    fields = Fields(body, ("histories", "times", "k", "filter_seen", "candidates", "on_unknown"), limits)
    histories = fields.lists("histories", limits.histories, fields.ids_of)
    times = None
    if fields.given("times"):
        times = fields.lists("times", limits.histories, fields.times_of)
        if [len(one) for one in times] != [len(one) for one in histories]:
            raise invalid("'times' must hold one list of seconds for each history, one number for each item")
    candidates = fields.candidates(len(histories))
    return Recommend(histories, times, fields.k(), fields.boolean("filter_seen"), candidates, fields.on_unknown())


def read_start(body: dict[str, Any], limits: Limits) -> Start:
    """Check the body of POST /sessions."""
    fields = Fields(body, ("id", "history", "times", "on_unknown"), limits)
    history = fields.ids_of(body.get("history", []), "history", limits.items)
    session = check_session_id(body["id"]) if fields.given("id") else None
    return Start(session, history, fields.times_beside(history), fields.on_unknown())


def read_update(body: dict[str, Any], limits: Limits) -> Update:
    """Check the body of POST /sessions/ID/items."""
    fields = Fields(body, ("items", "times", "on_unknown", "expected_length"), limits)
    items = fields.ids_of(body.get("items"), "items", limits.updates)
    expected = fields.whole("expected_length", 0, 2**63 - 1) if fields.given("expected_length") else None
    return Update(items, fields.times_beside(items), fields.on_unknown(), expected)


def read_recommend_session(body: dict[str, Any], limits: Limits) -> RecommendSession:
    """Check the body of POST /sessions/ID/recommend."""
    fields = Fields(body, ("k", "filter_seen", "candidates", "on_unknown"), limits)
    candidates = fields.ids_of(body["candidates"], "candidates", limits.items) if fields.given("candidates") else None
    return RecommendSession(fields.k(), fields.boolean("filter_seen"), candidates, fields.on_unknown())


def check_session_id(value: object) -> str:
    """A session id as it came.

    Raises:
        RefusalError: It is none.
    """
    if not isinstance(value, str) or not SESSION_ID.fullmatch(value):
        raise invalid("a session id has 1 to 64 characters, each of them a letter of a-z or A-Z, a digit, '_' or '-'")
    return value


class Fields:
    """The fields of a body.

    Args:
        body: A JSON object; a field that is null counts as not given.
        known: The names that it may have.
        limits: What they may ask for.

    Raises:
        RefusalError: 422: there is another field.
    """

    def __init__(self, body: dict[str, Any], known: Sequence[str], limits: Limits) -> None:
        for name in body:
            if name not in known:
                shown = name[:50]
                raise invalid(f"unknown field {shown!r}: known are {', '.join(known)}.{did_you_mean(shown, known)}")
        self.body, self.limits = body, limits

    def given(self, name: str) -> bool:
        """Whether a field has a value."""
        return self.body.get(name) is not None

    def whole(self, name: str, low: int, high: int) -> int:
        """A whole number from low to high."""
        value = self.body[name]
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise invalid(f"'{name}' must be a whole number from {low} to {high}, it is {_shown(value)}")
        return value

    def k(self) -> int:
        """How many items a list has, by default 10."""
        return self.whole("k", 1, self.limits.k) if self.given("k") else min(10, self.limits.k)

    def boolean(self, name: str) -> bool:
        """True unless the field says false."""
        value = self.body.get(name)
        if value is not None and not isinstance(value, bool):
            raise invalid(f"'{name}' must be true or false, it is {_shown(value)}")
        return value is not False

    def on_unknown(self) -> str:
        """The policy for unknown items, by default raise."""
        value = self.body.get("on_unknown")
        if value is not None and value not in POLICIES:
            raise invalid(f"'on_unknown' must be one of {', '.join(POLICIES)}, it is {_shown(value)}")
        return value or "raise"

    def ids_of(self, value: object, name: str, most: int) -> Ids:
        """A list of item ids; whole numbers count as their digits."""
        ids = _list(value, name, most, "item ids")
        for one in ids:
            if not isinstance(one, str | int) or isinstance(one, bool):
                raise invalid(f"'{name}' must hold item ids, texts or whole numbers; there is {_shown(one)} in it")
            if isinstance(one, str) and len(one) > self.limits.id_characters:
                raise invalid(f"'{name}' holds an id of {len(one)} characters; at most {self.limits.id_characters}")
        return [str(one) for one in ids]

    def times_of(self, value: object, name: str, most: int) -> Times:
        """A list of seconds."""
        times = _list(value, name, most, "seconds")
        for one in times:
            if not isinstance(one, int | float) or isinstance(one, bool) or not abs(one) <= MAX_SECONDS:
                raise invalid(
                    f"'{name}' must hold numbers of seconds between -{MAX_SECONDS:g} and {MAX_SECONDS:g}; there is "
                    f"{_shown(one)} in it"
                )
        return [float(one) for one in times]

    def times_beside(self, items: Ids) -> Times | None:
        """The field 'times', one number for each item."""
        if not self.given("times"):
            return None
        times = self.times_of(self.body["times"], "times", self.limits.items)
        if len(times) != len(items):
            raise invalid(f"'times' must hold one number for each of the {len(items)} items, it holds {len(times)}")
        return times

    def lists(self, name: str, most: int, read: Callable[[object, str, int], list[Any]]) -> list[list[Any]]:
        """A list of lists, each read by `read`."""
        outer = _list(self.body.get(name), name, most, "lists")
        return [read(inner, f"{name}[{n}]", self.limits.items) for n, inner in enumerate(outer)]

    def candidates(self, n_histories: int) -> Ids | list[Ids] | None:
        """One list of ids for all histories, or one for each."""
        value = self.body.get("candidates")
        if value is None:
            return None
        if not isinstance(value, list) or not any(isinstance(one, list) for one in value):
            return self.ids_of(value, "candidates", self.limits.items)
        if len(value) != n_histories:
            raise invalid(f"'candidates' must hold ids, or one list for each of the {n_histories} histories")
        return self.lists("candidates", self.limits.histories, self.ids_of)


def _list(value: object, name: str, most: int, of: str) -> list[Any]:
    if not isinstance(value, list):
        raise invalid(f"'{name}' must be a list of {of}, it is {_kind(value)}")
    if len(value) > most:
        raise invalid(f"'{name}' holds {len(value)}, at most {most} are allowed")
    return value


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice in one object")
    return found


def _kind(value: object) -> str:
    if value is None:
        return "missing or null"
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return names.get(type(value), "a number")


def _shown(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "too large a number"
    text = json.dumps(value) if isinstance(value, str | int | float) else _kind(value)
    return text if len(text) <= 50 else f"{text[:47]}..."
