"""Around every request: who may ask, what is counted, and the headers that each answer has."""

import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from recbole_lisa.serving.http.measures import Measures

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)


class Guard:
    """An ASGI application around another one.

    A page of another site may make a browser ask a service on this machine under a name of its own, whose address it
    changes meanwhile. The Host header then has that name, and the request is refused where `hosts` lacks it.

    Args:
        app: The application inside.
        measures: What is counted.
        hosts: Names that the Host header may have; None allows all.
    """

    def __init__(
        self, app: Callable[[Scope, Receive, Send], Awaitable[None]], measures: Measures, hosts: frozenset[str] | None
    ) -> None:
        self.app, self.measures, self.hosts = app, measures, hosts

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
            if self.hosts is not None and host_of(scope) not in self.hosts:
                await _send_refusal(send_with_headers)
            else:
                await self.app(scope, receive, send_with_headers)
        finally:
            route = getattr(scope.get("endpoint"), "__name__", "none")
            self.measures.requests.labels(route, status).inc()
            self.measures.seconds.labels(route).observe(time.perf_counter() - begun)


def host_of(scope: Scope) -> str:
    """The Host header without its port, in lower case; empty where there is none."""
    host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1").lower()
    if host.startswith("["):
        return str(host[1:].partition("]")[0])
    return str(host.partition(":")[0])


async def _send_refusal(send: Send) -> None:
    message = "this name is not served; start with --allowed_host to allow it"
    body = json.dumps({"error": "other_host", "message": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
