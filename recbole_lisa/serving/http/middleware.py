"""Around every request: metrics, headers, and limits on the size and the time of its body."""

import time
from typing import Any

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from recbole_lisa.serving.http.bodies import Limits
from recbole_lisa.serving.http.metrics import Metrics
from recbole_lisa.serving.http.refusals import RefusalError

READ_ON = 8
"""A body that is too large is read up to this many times the limit, so that its sender reads the answer."""
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
]


class Boundary:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, metrics: Metrics, limits: Limits) -> None:
        self.app, self.metrics, self.limits = app, metrics, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 500

        async def send_with_headers(message: Any) -> None:
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
    announced = int(headers.get("content-length", 0))

    async def receive_limited() -> Any:
        nonlocal total
        try:
            with anyio.fail_after(max(deadline - time.monotonic(), 0)):
                message: Any = await receive() if announced <= READ_ON * limits.body_bytes else {}
        except TimeoutError as error:
            hint = f"the body did not arrive within {limits.read_seconds:g} seconds"
            raise RefusalError(408, "too_slow", hint, close=True) from error
        total += len(message.get("body", b""))
        if message and total <= limits.body_bytes:
            return message
        if total > READ_ON * limits.body_bytes or not message.get("more_body"):
            raise RefusalError(413, "too_large", f"the body has more than {limits.body_bytes} bytes", close=True)
        return {**message, "body": b""}

    return receive_limited
