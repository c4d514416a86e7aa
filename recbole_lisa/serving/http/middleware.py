"""Around every request: metrics, headers, limits on the size and the time of its body, a short way for right ones."""

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from functools import cache
from itertools import pairwise
from typing import Any, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from starlette.types import ASGIApp, Receive, Scope, Send

from recbole_lisa.errors import UsageError
from recbole_lisa.serving.http.bodies import SESSION_ID, Body, Limits
from recbole_lisa.serving.http.refusals import RefusalError, answer_error, json_answer

InFlight = Callable[[], AbstractContextManager[None]]
READ_ON = 8  # times the limit: so far a body that is too large is read, so that its sender reads the answer
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_HEADERS = {b"x-content-type-options": b"nosniff", b"cache-control": b"no-store", b"referrer-policy": b"no-referrer"}
_SESSION = re.compile(rf"/sessions/({SESSION_ID.strip('^$')})/(\w+)")
_JSON = re.compile(rb"application/([^/;]*\+)?json\s*(;.*)?", re.IGNORECASE | re.DOTALL)


class Metrics:
    """The metrics of one service, for Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._own: dict[str, Any] = {"namespace": "recbole_lisa", "registry": self.registry}
        ProcessCollector(registry=self.registry)
        self.requests = Counter("requests", "Answered requests.", ("route", "status"), **self._own)
        meaning = "From the head of a request to the end of its answer."
        self.seconds = Histogram("request_seconds", meaning, ("route",), buckets=SECONDS, **self._own)
        self.dropped = Counter("sessions_dropped", "Sessions in memory that ended.", ("reason",), **self._own)
        self.conflicts = Counter("session_conflicts", "Writes repeated after another service's write.", **self._own)
        for reason in ("expired", "evicted"):
            self.dropped.labels(reason)

    def watch(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """Add a number that is read whenever the metrics are."""
        Gauge(name, meaning, **self._own).set_function(value)


class Boundary:
    """An ASGI application around another one; `in_flight` counts a request for lists from its head to its answer.

    A request with a Host header that matches no pattern in `hosts` gets status 400; None allows all.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, limits: Limits, in_flight: InFlight, hosts: frozenset[str] | None
    ) -> None:
        self.app, self.limits, self.in_flight, self.hosts = app, limits, in_flight, hosts
        self._requests, self._seconds = cache(metrics.requests.labels), cache(metrics.seconds.labels)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status, app = time.perf_counter(), 500, self.app
        headers = {name: value.decode("latin-1") for name, value in reversed(scope["headers"])}
        host = re.sub(r":\d*$", "", headers.get(b"host", "")).strip("[]").lower()
        if self.hosts is not None and host not in self.hosts and not any(fnmatchcase(host, one) for one in self.hosts):
            hint = f"{host[:50]!r} is no name of this service: start it with --allowed_host NAME"
            app = json_answer({"error": "unknown_host", "message": hint}, 400)
        if (coding := headers.get(b"content-encoding", "identity").lower()) != "identity":
            hint = f"Content-Encoding is {coding[:50]!r}: send the body as plain JSON"
            app = json_answer({"error": "not_json", "message": hint}, 400)

        async def send_with_headers(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *_HEADERS.items()]
            await send(message)

        try:
            with self.in_flight() if scope["path"] == "/recommend" else nullcontext():
                announced = int(headers.get(b"content-length", 0))
                await app(scope, limited(receive, announced, self.limits), send_with_headers)
        finally:
            route = getattr(scope.get("endpoint"), "__name__", "none")
            self._requests(route, status).inc()
            self._seconds(route).observe(time.perf_counter() - begun)


def limited(receive: Receive, announced: int, limits: Limits) -> Receive:
    """Return a `receive` that refuses a body that is too large (413) or too slow (408)."""
    loop, task, total = asyncio.get_running_loop(), cast("asyncio.Task[None]", asyncio.current_task()), 0
    deadline = loop.time() + limits.read_seconds

    async def receive_limited() -> Any:
        nonlocal total
        timer = loop.call_at(deadline, task.cancel, "late")  # a tenth of what anyio.fail_after costs
        try:
            message: Any = await receive() if announced <= READ_ON * limits.body_bytes else {}
        except asyncio.CancelledError as error:
            if error.args != ("late",):  # of uvicorn, after stop_seconds
                raise RefusalError(503, "stopping", "the service stops; try again", close=True) from error
            hint = f"the body did not arrive within {limits.read_seconds:g} seconds"
            raise RefusalError(408, "too_slow", hint, close=True) from error
        finally:
            timer.cancel()
        total += len(message.get("body", b""))
        if message and total <= limits.body_bytes:
            return message
        if total > READ_ON * limits.body_bytes or not message.get("more_body"):
            raise RefusalError(413, "too_large", f"the body has more than {limits.body_bytes} bytes", close=True)
        return {**message, "body": b""}

    return receive_limited


class Direct:
    """An ASGI application before FastAPI's routes: a POST with a right JSON body goes straight to its function.

    All others go to the routes, which word what is wrong. The answers are equal, the short way costs less.
    """

    def __init__(self, app: ASGIApp, endpoints: dict[str, Callable[..., Awaitable[ASGIApp]]]) -> None:
        self.app, self.endpoints = app, endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        app, path, arguments, received = self.app, scope.get("path", ""), {}, list[Any]()
        if in_session := _SESSION.fullmatch(path):
            path, arguments = f"/sessions/{{session}}/{in_session[2]}", {"session": in_session[1]}
        elif path.startswith("/sessions/"):
            path = ""  # not the id of a session
        kind = next((value for name, value in scope.get("headers", ()) if name == b"content-type"), b"")
        plain = scope.get("method") == "POST" and not scope.get("query_string")
        if plain and path in self.endpoints and _JSON.fullmatch(kind):
            endpoint = scope["endpoint"] = self.endpoints[path]
            try:
                if body := await _read(endpoint.__annotations__["body"], receive, received):
                    app = await endpoint(**arguments, body=body)
            except (RefusalError, UsageError) as error:
                app = await answer_error(None, error)

        async def receive_again() -> Any:
            return received.pop(0) if received else await receive()

        await app(scope, receive_again, send)


async def _read(model: type[Body], receive: Receive, received: list[Any]) -> Body | None:
    while not received or received[-1].get("more_body"):
        received.append(await receive())
    content = b"".join(message.get("body", b"") for message in received)
    try:
        return model.model_validate(json.loads(content, object_pairs_hook=_object))
    except (ValueError, RecursionError):  # pydantic's error is a ValueError
        return None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(fields := dict(pairs)) < len(pairs):
        twice = next(one for one, other in pairwise(sorted(name for name, _ in pairs)) if one == other)
        raise RefusalError(422, "invalid", f"the body has the field {twice[:50]!r} twice: give it once")
    return fields
