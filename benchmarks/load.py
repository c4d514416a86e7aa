"""Load on the HTTP service: clients with keep-alive connections that know what each answer must be."""

import http.client
import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any

HOSTILE = (
    *(b"", b"{", b"\xff\xfe", b"[" * 20_000, b" " * (2**20 + 1)),
    *(b'{"histories": [[NaN]]}', b'{"histories": [[true]]}', b'{"histories": [["no such item"]]}'),
    *(b'{"histories": [["0"]], "k": 1e400}', b'{"histories": ' + b"[" * 500 + b"]" * 500 + b"}"),
)
"""Bodies that the service must refuse."""
MAX_SESSIONS = 20  # of a client, before it deletes the oldest


class WrongAnswerError(RuntimeError):
    """An answer differs from what it must be."""


class Client:
    """One caller with one connection and its own sessions, whose lengths it counts; items are "0" to n_items - 1.

    `seconds` holds the times of each kind of request, `errors` one line for each wrong answer.
    """

    def __init__(self, address: str, n_items: int, seed: int) -> None:
        self.n_items, self.random = n_items, random.Random(seed)
        self.seconds: dict[str, list[float]] = {}
        self.errors: list[str] = []
        self.lengths: dict[str, int] = {}
        self._connection = http.client.HTTPConnection(address, timeout=600)
        self.kinds: dict[str, tuple[int, Callable[[], None]]] = {  # weight and request
            "recommend, 1 history": (25, lambda: self.recommend(1)),
            "recommend, 16 histories": (5, lambda: self.recommend(16)),
            "session: start": (8, self.start),
            "session: update": (30, self.update),
            "session: recommend": (15, self.recommend_session),
            "session: describe": (6, self.describe),
            "hostile body": (5, self.hostile),
        }

    def run(self, end: threading.Event) -> None:
        """Send one request after the other until `end` is set."""
        names, weights = list(self.kinds), [weight for weight, _ in self.kinds.values()]
        while not end.is_set():
            name = self.random.choices(names, weights)[0]
            start = time.perf_counter()
            try:
                self.kinds[name][1]()
            except Exception as error:  # the load goes on; the report counts the errors
                self.errors.append(f"{name}: {type(error).__name__}: {error}")
                self._connection.close()
                self.lengths.clear()  # a request without an answer may have changed a session
                time.sleep(0.1)
            else:
                self.seconds.setdefault(name, []).append(time.perf_counter() - start)
        self._connection.close()

    def recommend(self, n: int) -> None:
        """Recommend for n histories."""
        histories = [self._items(self.random.randint(1, 60)) for _ in range(n)]
        answer = self._ask("POST", "/recommend", {"histories": histories, "k": 10}, 200)
        for one, history in zip(answer["recommendations"], histories, strict=True):
            _check(len(set(one["items"]) - set(history)) == 10, "10 items that are not in the history", one)
            _check(one["scores"] == sorted(one["scores"], reverse=True), "descending scores", one)

    def start(self) -> None:
        """Start a session and delete the oldest of too many."""
        history = self._items(self.random.randint(0, 30))
        session = self._ask("POST", "/sessions", {"history": history}, 201)
        self.lengths[session["id"]] = len(history)
        self._check_length(session["id"], session)
        if len(self.lengths) > MAX_SESSIONS:
            oldest = next(iter(self.lengths))
            del self.lengths[oldest]
            self._ask("DELETE", f"/sessions/{oldest}", None, 200)
            self._ask("GET", f"/sessions/{oldest}", None, 404)

    def update(self) -> None:
        """Append items to a session; a repeated request must be refused."""
        session, items = self._session(), self._items(self.random.choice([1, 1, 1, 5]))
        body = {"items": items, "expected_length": self.lengths[session]}
        answer = self._ask("POST", f"/sessions/{session}/items", body, 200)
        self.lengths[session] += len(items)
        self._check_length(session, answer)
        if self.random.random() < 0.05:
            self._ask("POST", f"/sessions/{session}/items", body, 409)

    def recommend_session(self) -> None:
        """Recommend for a session; one without items must be refused."""
        session = self._session()
        if not self.lengths[session]:
            self._ask("POST", f"/sessions/{session}/recommend", {}, 422)
            return
        answer = self._ask("POST", f"/sessions/{session}/recommend", {"k": 7}, 200)
        _check(len(set(answer["items"])) == 7, "7 items", answer)
        self._check_length(session, answer)

    def describe(self) -> None:
        """Read the histograms and the length of a session."""
        session = self._session()
        self._check_length(session, self._ask("GET", f"/sessions/{session}", None, 200))

    def hostile(self) -> None:
        """Send a body that must be refused."""
        self._request("POST", "/recommend", self.random.choice(HOSTILE), 400, 413, 422)

    def _session(self) -> str:
        if not self.lengths:
            self.start()
        return self.random.choice(list(self.lengths))

    def _items(self, n: int) -> list[str]:
        """Random ids, some far more frequent than others."""
        return [str(int(self.n_items * self.random.random() ** 3)) for _ in range(n)]

    def _check_length(self, session: str, answer: Any) -> None:
        _check(answer["length"] == self.lengths[session], f"length {self.lengths[session]}", answer)

    def _ask(self, method: str, path: str, body: Any, status: int) -> Any:
        """One request with JSON in both directions."""
        return json.loads(self._request(method, path, None if body is None else json.dumps(body).encode(), status))

    def _request(self, method: str, path: str, body: bytes | None, *statuses: int) -> bytes:
        """One request; the content of the answer, whose status must be one of `statuses`."""
        self._connection.request(method, path, body, {} if body is None else {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        content = response.read()
        _check(response.status in statuses, f"status {statuses} of {method} {path}", (response.status, content[:200]))
        return content


def _check(condition: bool, expected: str, answer: object) -> None:
    if not condition:
        raise WrongAnswerError(f"expected {expected}, got {str(answer)[:300]}")
