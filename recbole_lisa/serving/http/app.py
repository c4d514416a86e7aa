"""The routes: what each request reads, what the model does with it off the event loop, and what goes back."""

import functools
import json
import random
import secrets
from asyncio import TimeoutError as AsyncTimeoutError
from asyncio import sleep, wait_for
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from recbole_lisa import __version__
from recbole_lisa.serving import Recommender
from recbole_lisa.serving.http import bodies
from recbole_lisa.serving.http.engine import Changed, Engine, Worker
from recbole_lisa.serving.http.guard import Guard
from recbole_lisa.serving.http.limits import Limits, RefusalError, invalid
from recbole_lisa.serving.http.measures import Measures
from recbole_lisa.serving.http.page import CONTENT_SECURITY_POLICY, PAGE
from recbole_lisa.serving.http.stores import Locks, MemoryStore, SessionStore

MAX_TRIES = 50
"""Times that a change is done again when other services are ahead of it."""
MAX_FOUND, MAX_QUERY = 100, 100
"""Ids that a search gives, and characters that it looks for."""
DRAINED_BODIES = 8
"""A body that is too large is read on to this many times the limit, so that its sender gets to read the answer."""


class Service:
    """One model over HTTP.

    Args:
        recommender: The model.
        store: Of the sessions.
        measures: What is counted.
        limits: On all that callers send.
        threads: Of torch.
    """

    def __init__(
        self, recommender: Recommender, store: SessionStore, measures: Measures, limits: Limits, threads: int
    ) -> None:
        self.engine, self.store, self.measures, self.limits = Engine(recommender), store, measures, limits
        self.worker, self.locks = Worker(limits.waiting, threads), Locks()
        measures.watch("waiting", "Requests that wait for the model or run on it.", lambda: self.worker.waiting)
        if isinstance(store, MemoryStore):
            measures.watch("sessions", "Sessions in memory.", lambda: len(store))

    def routes(self) -> list[Route]:
        """All paths."""
        return [
            Route("/", self.page, methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/items", self.items, methods=["GET"]),
            Route("/recommend", self.recommend, methods=["POST"]),
            Route("/sessions", self.start, methods=["POST"]),
            Route("/sessions/{id}", self.describe, methods=["GET"]),
            Route("/sessions/{id}", self.delete, methods=["DELETE"]),
            Route("/sessions/{id}/bytes", self.export, methods=["GET"]),
            Route("/sessions/{id}/items", self.update, methods=["POST"]),
            Route("/sessions/{id}/recommend", self.recommend_session, methods=["POST"]),
        ]

    async def page(self, request: Request) -> Response:
        """The demo."""
        return Response(PAGE, 200, {"content-security-policy": CONTENT_SECURITY_POLICY}, "text/html")

    async def health(self, request: Request) -> Response:
        """What is served, once the store of sessions answers."""
        await self.store.check()
        bundle = self.engine.recommender.bundle
        told = {
            "status": "ok",
            "model": bundle.model,
            "dataset": bundle.dataset,
            "items": len(bundle.ids),
            "sessions": self.engine.has_sessions,
            "needs_times": self.engine.recommender.needs_times,
            "store": self.store.name,
            "version": __version__,
        }
        return _json(told)

    async def metrics(self, request: Request) -> Response:
        """Metrics for Prometheus."""
        return Response(self.measures.text(), 200, media_type=CONTENT_TYPE_LATEST)

    async def items(self, request: Request) -> Response:
        """Item ids that contain ?query=."""
        query, most = request.query_params.get("query", ""), request.query_params.get("limit", "20")
        if len(query) > MAX_QUERY:
            raise invalid(f"'query' has {len(query)} characters; at most {MAX_QUERY}")
        if not (most.isascii() and most.isdigit() and len(most) <= 3 and 1 <= int(most) <= MAX_FOUND):
            raise invalid(f"'limit' must be a whole number from 1 to {MAX_FOUND}, it is {most[:50]!r}")
        return _json(await self.worker.run(functools.partial(self.engine.search, query, int(most))))

    async def recommend(self, request: Request) -> Response:
        """Lists for histories."""
        asked = bodies.read_recommend(await self._object(request), self.limits)
        return _json(await self.worker.run(functools.partial(self.engine.recommend, asked)))

    async def start(self, request: Request) -> Response:
        """A new session; 409 where the id is taken."""
        asked = bodies.read_start(await self._object(request), self.limits)
        session = asked.id or secrets.token_urlsafe(16)
        data, answer = await self.worker.run(functools.partial(self.engine.start, asked))
        if not await self.store.create(session, data):
            raise RefusalError(
                409, "session_exists", f"there is a session '{session}': delete it first, or go on with it"
            )
        return _json({"id": session, **answer}, 201)

    async def update(self, request: Request) -> Response:
        """More items for a session."""
        session = bodies.check_session_id(request.path_params["id"])
        asked = bodies.read_update(await self._object(request), self.limits)
        return _json({"id": session, **await self._change(session, functools.partial(self.engine.update, asked))})

    async def recommend_session(self, request: Request) -> Response:
        """A list for a session."""
        session = bodies.check_session_id(request.path_params["id"])
        asked = bodies.read_recommend_session(await self._object(request), self.limits)
        data = (await self._stored(session)).data
        return _json(await self.worker.run(functools.partial(self.engine.recommend_session, asked, data)))

    async def describe(self, request: Request) -> Response:
        """Length and histograms of a session."""
        session = bodies.check_session_id(request.path_params["id"])
        data = (await self._stored(session)).data
        return _json({"id": session, **await self.worker.run(functools.partial(self.engine.describe, data))})

    async def export(self, request: Request) -> Response:
        """A session as bytes, for `Recommender.from_bytes`."""
        stored = await self._stored(bodies.check_session_id(request.path_params["id"]))
        return Response(stored.data, 200, media_type="application/octet-stream")

    async def delete(self, request: Request) -> Response:
        """Forget a session."""
        session = bodies.check_session_id(request.path_params["id"])
        async with self.locks.of(session):
            if not await self.store.delete(session):
                raise _no_session(session)
        return _json({"id": session, "deleted": True})

    async def _change(self, session: str, work: Callable[[bytes], Changed]) -> dict[str, Any]:
        """Change a session and store it: one change after the other here, and none lost to another service."""
        async with self.locks.of(session):
            for tried in range(MAX_TRIES):
                stored = await self._stored(session)
                data, answer = await self.worker.run(functools.partial(work, stored.data))
                if await self.store.replace(session, data, stored.version):
                    return answer
                self.measures.conflicts.inc()
                await sleep(random.uniform(0, min(0.1, 0.001 * 2**tried)))
        raise RefusalError(503, "busy", f"other services keep changing the session '{session}'; try again")

    async def _stored(self, session: str) -> Any:
        stored = await self.store.load(session)
        if stored is None:
            raise _no_session(session)
        return stored

    async def _object(self, request: Request) -> dict[str, Any]:
        """The JSON object in the body.

        Raises:
            RefusalError: There is none, it is too large or too slow, or the sender went away.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" or "content-encoding" in request.headers:
            raise RefusalError(
                415, "not_json", "send plain JSON with the header Content-Type: application/json", close=True
            )
        try:
            body = await wait_for(self._body(request), self.limits.read_seconds)
        except AsyncTimeoutError as error:
            message = f"the body did not arrive within {self.limits.read_seconds:g} seconds"
            raise RefusalError(408, "too_slow", message, close=True) from error
        except ClientDisconnect as error:
            raise RefusalError(400, "incomplete", "the connection ended before the body did", close=True) from error
        return bodies.parse_object(body)

    async def _body(self, request: Request) -> bytes:
        most = self.limits.body_bytes
        refusal = RefusalError(
            413, "too_large", f"the body has more than {most} bytes, the most that is read", close=True
        )
        announced = request.headers.get("content-length", "0")
        if int(announced) > most * DRAINED_BODIES:
            raise refusal
        parts, total = [], 0
        async for part in request.stream():
            total += len(part)
            if total <= most:
                parts.append(part)
            elif total > most * DRAINED_BODIES:
                break
        if total > most:
            raise refusal
        return b"".join(parts)


def build_app(
    recommender: Recommender,
    store: SessionStore,
    measures: Measures,
    limits: Limits | None = None,
    threads: int = 1,
    hosts: frozenset[str] | None = None,
) -> Starlette:
    """The service as an ASGI application.

    Args:
        recommender: The model.
        store: Of the sessions; it is closed with the application.
        measures: What is counted.
        limits: None takes those of `Limits`.
        threads: Of torch.
        hosts: Names that a request may have in its Host header; None allows all.
    """
    service = Service(recommender, store, measures, limits or Limits(), threads)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            service.worker.close()
            await store.close()

    handlers: Any = {RefusalError: _refused, HTTPException: _not_routed, Exception: _failed}
    guard = Middleware(Guard, measures=measures, hosts=hosts)
    app = Starlette(routes=service.routes(), exception_handlers=handlers, lifespan=lifespan, middleware=[guard])
    app.router.redirect_slashes = False
    return app


def _no_session(session: str) -> RefusalError:
    return RefusalError(404, "no_session", f"there is no session '{session}', or it has expired: start it again")


async def _refused(request: Request, error: RefusalError) -> Response:
    response = _json({"error": error.code, "message": error.message}, error.status)
    if error.status == 503:
        response.headers["retry-after"] = "1"
    if error.close:
        response.headers["connection"] = "close"
    return response


async def _not_routed(request: Request, error: HTTPException) -> Response:
    codes = {404: ("no_such_path", "there is nothing at this path")}
    code, message = codes.get(error.status_code, ("not_allowed", f"this path does not take {request.method[:20]}"))
    response = _json({"error": code, "message": message}, error.status_code)
    response.headers.update(error.headers or {})
    return response


async def _failed(request: Request, error: Exception) -> Response:
    return _json({"error": "failed", "message": "the service failed; its log says how"}, 500)


def _json(value: Any, status: int = 200) -> Response:
    """JSON in ASCII: ids may hold halves of surrogate pairs, which utf-8 has no bytes for."""
    return Response(json.dumps(value, allow_nan=False), status, media_type="application/json")
