"""Mixed load on a service: clients that know what each answer must be."""

import contextlib
import http.client
import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

HOSTILE = (
    b"",
    b"{",
    b"\xff\xfe",
    b"[" * 20_000,
    b'{"histories": [[NaN]]}',
    b'{"histories": [["0"]], "k": 1e400}',
    b'{"histories": ' + b"[" * 500 + b"]" * 500 + b"}",
    b'{"histories": [[true]]}',
    b'{"histories": [["no such item"]]}',
    b" " * (2**20 + 1),
)
"""Bodies that must be refused."""
PATIENCE_SECONDS = 600
"""How long a client waits for an answer; the times tell whether it should not have waited so long."""
MAX_IDLE_SECONDS = 10
"""A connection that was idle for longer is opened anew, as the service may be closing it."""
MAX_SESSIONS = 20
"""Sessions that a client keeps before it deletes the oldest."""
Answers = tuple[int, ...]


class WrongAnswerError(RuntimeError):
    """An answer that is not what it must be."""


@dataclass
class Outcome:
    """What one client saw.

    Attributes:
        seconds: of every request, by kind.
        errors: what went wrong, in words.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


class Client:
    """One caller: a connection that stays, and sessions of its own whose lengths it counts.

    Args:
        address: Host and port.
        n_items: Items have the ids "0" to n_items - 1.
        seed: Of all that it asks for.
    """

    def __init__(self, address: str, n_items: int, seed: int) -> None:
        self.address, self.n_items, self.random = address, n_items, random.Random(seed)
        self.outcome, self.lengths = Outcome(), dict[str, int]()
        self._connection = http.client.HTTPConnection(address, timeout=PATIENCE_SECONDS)
        self._answered = time.monotonic()
        self.kinds: dict[str, tuple[int, Callable[[], None]]] = {
            "recommend, 1 history": (25, lambda: self.recommend(1)),
            "recommend, 16 histories": (5, lambda: self.recommend(16)),
            "session: start": (8, self.start),
            "session: update": (30, self.update),
            "session: recommend": (15, self.recommend_session),
            "session: histograms": (4, self.describe),
            "session: bytes": (2, self.export),
            "search": (4, self.search),
            "health, metrics": (2, self.watch),
            "hostile body": (5, self.hostile),
        }

    def run(self, until: threading.Event) -> None:
        """Ask for one thing after the other."""
        names = list(self.kinds)
        weights = [weight for weight, _ in self.kinds.values()]
        while not until.is_set():
            name = self.random.choices(names, weights)[0]
            begun = time.perf_counter()
            try:
                self.kinds[name][1]()
            except Exception as error:  # whatever it is, the table tells it, and the load goes on
                self.outcome.errors.append(f"{name}: {type(error).__name__}: {error}")
                self._connection.close()
                self.lengths.clear()  # a request without an answer may have changed a session
                time.sleep(0.1)
            else:
                self.outcome.seconds.setdefault(name, []).append(time.perf_counter() - begun)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def recommend(self, n: int) -> None:
        """Lists for n histories."""
        histories = [self.items(self.random.randint(1, 60)) for _ in range(n)]
        answer = self.ask("POST", "/recommend", {"histories": histories, "k": 10}, (200,))
        for one, history in zip(answer["recommendations"], histories, strict=True):
            must(len(set(one["items"]) - set(history)) == 10, "10 items that are not in the history", one)
            must(one["scores"] == sorted(one["scores"], reverse=True), "scores that go down", one)

    def start(self) -> None:
        """A session more; with many, the oldest goes."""
        history = self.items(self.random.randint(0, 30))
        answer = self.ask("POST", "/sessions", {"history": history}, (201,))
        must(answer["length"] == len(history), f"length {len(history)}", answer)
        self.lengths[answer["id"]] = len(history)
        if len(self.lengths) > MAX_SESSIONS:
            oldest = next(iter(self.lengths))
            del self.lengths[oldest]
            self.ask("DELETE", f"/sessions/{oldest}", None, (200,))
            self.ask("GET", f"/sessions/{oldest}", None, (404,))

    def update(self) -> None:
        """Items for a session, once, and refused when they are sent again."""
        session = self.session()
        items = self.items(self.random.choice([1, 1, 1, 5]))
        body = {"items": items, "expected_length": self.lengths[session]}
        answer = self.ask("POST", f"/sessions/{session}/items", body, (200,))
        self.lengths[session] += len(items)
        must(answer["length"] == self.lengths[session], f"length {self.lengths[session]}", answer)
        if self.random.random() < 0.05:
            self.ask("POST", f"/sessions/{session}/items", body, (409,))

    def recommend_session(self) -> None:
        """A list for a session."""
        session = self.session()
        if self.lengths[session] == 0:
            self.ask("POST", f"/sessions/{session}/recommend", {}, (422,))
            return
        answer = self.ask("POST", f"/sessions/{session}/recommend", {"k": 7}, (200,))
        must(len(set(answer["items"])) == 7, "7 items", answer)
        must(answer["length"] == self.lengths[session], f"length {self.lengths[session]}", answer)

    def describe(self) -> None:
        """Length and histograms of a session."""
        session = self.session()
        answer = self.ask("GET", f"/sessions/{session}", None, (200,))
        must(answer["length"] == self.lengths[session], f"length {self.lengths[session]}", answer)

    def export(self) -> None:
        """A session as bytes."""
        must(
            self.request("GET", f"/sessions/{self.session()}/bytes", None, (200,)).startswith(b"RLSES"), "a session", ""
        )

    def search(self) -> None:
        """Ids that contain a number."""
        (item,) = self.items(1)
        must(item in self.ask("GET", f"/items?query={item}&limit=1", None, (200,))["items"], item, "")

    def watch(self) -> None:
        """Health and metrics."""
        must(self.ask("GET", "/health", None, (200,))["status"] == "ok", "ok", "")
        must(b"process_resident_memory_bytes" in self.request("GET", "/metrics", None, (200,)), "metrics", "")

    def hostile(self) -> None:
        """A body that must be refused, or one that ends before it should."""
        body = self.random.choice([*HOSTILE, None])
        if body is not None:
            self.request("POST", "/recommend", body, (400, 413, 422))
            return
        broken = http.client.HTTPConnection(self.address, timeout=PATIENCE_SECONDS)
        with contextlib.closing(broken):
            broken.putrequest("POST", "/recommend")
            broken.putheader("Content-Type", "application/json")
            broken.putheader("Transfer-Encoding", "chunked")
            broken.endheaders()
            broken.send(b'20\r\n{"histories"')

    def session(self) -> str:
        """One of the client's sessions."""
        if not self.lengths:
            self.start()
        return self.random.choice(list(self.lengths))

    def items(self, n: int) -> list[str]:
        """Random ids, some of them wanted far more often than others."""
        return [str(int(self.n_items * self.random.random() ** 3)) for _ in range(n)]

    def ask(self, method: str, path: str, body: Any, statuses: Answers) -> dict[str, Any]:
        """One request with JSON in and out."""
        answer = self.request(method, path, None if body is None else json.dumps(body).encode(), statuses)
        found: dict[str, Any] = json.loads(answer)
        return found

    def request(self, method: str, path: str, body: bytes | None, statuses: Answers) -> bytes:
        """One request.

        Raises:
            WrongAnswerError: The status is another one.
        """
        if time.monotonic() - self._answered > MAX_IDLE_SECONDS:
            self._connection.close()
        self._connection.request(method, path, body, {} if body is None else {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        answer = response.read()
        self._answered = time.monotonic()
        must(response.status in statuses, f"status {statuses} of {method} {path}", (response.status, answer[:200]))
        return answer


def must(true: bool, wanted: str, found: object) -> None:
    """Refuse an answer.

    Raises:
        WrongAnswerError: It is not what it must be.
    """
    if not true:
        raise WrongAnswerError(f"wanted {wanted}, got {str(found)[:300]}")
