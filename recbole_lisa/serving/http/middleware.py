"""Around every request: metrics, headers, and limits on the size and the time of its body."""

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import anyio
from starlette.datastructures import Headers

from recbole_lisa.serving.http.bodies import Limits
from recbole_lisa.serving.http.metrics import Metrics
from recbole_lisa.serving.http.refusals import RefusalError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
READ_ON = 8
"""A body that is too large is read up to this many times the limit, so that its sender reads the answer."""
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)


class Boundary:
    """An ASGI application around another one.

    Args:
        app: The application inside.
        metrics: Counts the requests.
        limits: Limits of a body.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], metrics: Metrics, limits: Limits) -> None:
        self.app, self.metrics, self.limits = app, metrics, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        try:
            await self.app(scope, limited(receive, Headers(scope=scope), self.limits), send_with_headers)
        finally:
            route = getattr(scope.get("endpoint"), "__name__", "none")
            self.metrics.requests.labels(route, status).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - begun)


def limited(receive: Receive, headers: Headers, limits: Limits) -> Receive:
    """Return a `receive` that refuses a body that is too large (413) or too slow (408)."""
    deadline, total = time.monotonic() + limits.read_seconds, 0

    async def receive_limited() -> Message:
        nonlocal total
        too_large = RefusalError(413, "too_large", f"the body has more than {limits.body_bytes} bytes", close=True)
        if int(headers.get("content-length", 0)) > READ_ON * limits.body_bytes:
            raise too_large
        try:
            with anyio.fail_after(max(deadline - time.monotonic(), 0)):
                message = await receive()
        except TimeoutError as error:
            hint = f"the body did not arrive within {limits.read_seconds:g} seconds"
            raise RefusalError(408, "too_slow", hint, close=True) from error
        total += len(message.get("body", b""))
        if total <= limits.body_bytes:
            return message
        if total > READ_ON * limits.body_bytes or not message.get("more_body"):
            raise too_large
        return {**message, "body": b""}

    return receive_limited
