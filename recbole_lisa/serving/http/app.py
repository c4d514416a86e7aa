"""The service as an application of FastAPI, which makes the OpenAPI pages /docs and /openapi.json."""

import base64
import functools
import hashlib
import random
import secrets
from asyncio import Lock, sleep
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from itertools import islice
from typing import Annotated, Any, cast

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from recbole_lisa import __version__
from recbole_lisa.errors import UsageError
from recbole_lisa.serving import Recommender, Session
from recbole_lisa.serving.http.bodies import SESSION_ID, Body, Limits, Recommend, RecommendSession, Start, Update
from recbole_lisa.serving.http.middleware import Boundary, Direct, Metrics
from recbole_lisa.serving.http.model_thread import ModelThread
from recbole_lisa.serving.http.refusals import RefusalError, answer_error, json_answer
from recbole_lisa.serving.http.stores import MemoryStore, SessionStore

MAX_TRIES = 50  # of a change, when other services write first
N_LOCKS = 256
Answer = dict[str, Any]
PAGE = (files("recbole_lisa.serving.http") / "page.html").read_text(encoding="utf-8")
_SCRIPT, _STYLE = (
    base64.b64encode(hashlib.sha256(PAGE.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0].encode()).digest()).decode()
    for tag in ("script", "style")
)
PAGE_POLICY = (
    f"default-src 'none'; script-src 'sha256-{_SCRIPT}'; style-src 'sha256-{_STYLE}'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_UNKNOWN = dict.fromkeys(("histories", "history", "items"), "unknown") | {"candidates": "unknown_candidates"}
SessionId = Annotated[str, Path(pattern=SESSION_ID)]


def build_app(service: "Service", hosts: frozenset[str] | None = None) -> FastAPI:
    """Build the ASGI application, which closes the store of sessions at its end.

    `hosts` are the names that a request may have in its Host header; None allows all. A page of another site can lead
    a browser here under a name of its own, and this check refuses it.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.model.close()
        await service.store.close()

    errors: Any = (HTTPException, RequestValidationError, UsageError, Exception)
    app = FastAPI(
        title="recbole-lisa",
        version=__version__,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        exception_handlers=dict.fromkeys(errors, answer_error),
        dependencies=[Depends(check_query)],
    )
    app.get("/", include_in_schema=False)(service.page)
    app.get("/health")(service.health)
    app.head("/health", include_in_schema=False)(service.health)
    app.get("/metrics")(service.metrics)
    app.get("/items")(service.items)
    app.post("/recommend")(service.recommend)
    app.post("/sessions", status_code=201)(service.start)
    app.get("/sessions/{session}")(service.describe)
    app.delete("/sessions/{session}")(service.delete)
    app.get("/sessions/{session}/bytes")(service.export)
    app.post("/sessions/{session}/items")(service.update)
    app.post("/sessions/{session}/recommend")(service.recommend_session)
    app.add_middleware(Direct, {one.path: one.endpoint for one in cast("Any", app.routes) if "POST" in one.methods})
    app.add_middleware(Boundary, service.measured, service.limits, service.model.in_flight, hosts)
    return app


def check_query(request: Request) -> None:
    """Refuse parameters after the `?` of a path that its route does not have, or twice."""
    names, known = [*request.query_params.keys()], [one.name for one in request.scope["route"].dependant.query_params]
    given = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if name not in known:
            takes = f"this path takes {', '.join(known)}" if known else "this path takes no parameters"
            raise UsageError(f"{name[:50]!r} is not known: {takes}")
        if given.count(name) > 1:
            raise UsageError(f"{name!r} is given twice: give it once")


class Service:
    """What each request asks of the model and of the sessions; `threads` are those of torch."""

    def __init__(
        self, recommender: Recommender, store: SessionStore, metrics: Metrics, limits: Limits, threads: int = 1
    ) -> None:
        self.recommender, self.store, self.measured, self.limits = recommender, store, metrics, limits
        self.model = ModelThread(recommender, limits, threads)
        self._folded_titles = [(item, title.casefold()) for item, title in recommender.bundle.titles.items()]
        # Changes of one session take turns; two sessions may share a lock.
        self._locks = [Lock() for _ in range(N_LOCKS)]
        metrics.watch("waiting", "Requests that wait for the model or run on it.", lambda: self.model.waiting)
        metrics.watch("in_flight", "Requests at /recommend without an answer.", lambda: self.model.unanswered)
        if isinstance(store, MemoryStore):
            metrics.watch("sessions", "Sessions in memory.", lambda: len(store))

    async def page(self) -> Response:
        """The demo."""
        return Response(PAGE, 200, {"content-security-policy": PAGE_POLICY}, "text/html")

    async def health(self) -> Response:
        """What is served, once the store of sessions answers."""
        await self.store.load("")  # no session has this id
        bundle = self.recommender.bundle
        answer = {"status": "ok", "model": bundle.model, "dataset": bundle.dataset, "items": len(bundle.ids)}
        answer |= {"sessions": self.recommender.has_sessions, "needs_times": self.recommender.needs_times}
        return json_answer(answer | {"store": self.store.name, "version": __version__})

    async def metrics(self) -> Response:
        """Metrics for Prometheus."""
        return Response(generate_latest(self.measured.registry), 200, media_type=CONTENT_TYPE_LATEST)

    async def items(
        self, query: Annotated[str, Query(max_length=100)] = "", limit: Annotated[int, Query(ge=1, le=100)] = 20
    ) -> Response:
        """Item ids that contain a text, and then those whose titles do, in any case."""
        items = await self.model.run(lambda: self.search(query, limit))
        return json_answer({"items": items} | self._titles(items))

    async def recommend(self, body: Recommend) -> Response:
        """Lists for histories."""
        body.check(self.limits)
        lists = [one._asdict() | self._titles(one.items) for one in await self.model.recommend(body)]
        return json_answer({"recommendations": lists} | self._unknown(body))

    async def start(self, body: Start) -> Response:
        """A new session; 409 where the id is taken."""
        body.check(self.limits)

        def work() -> tuple[bytes, int]:
            session = self.recommender.start(body.history, body.times, on_unknown=body.policy)
            return session.to_bytes(), len(session)

        (data, length), name = await self.model.run(work), body.id or secrets.token_urlsafe(16)
        if not await self.store.create(name, data):
            hint = f"there is a session '{name}': delete it first, or continue it"
            raise RefusalError(409, "session_exists", hint)
        return json_answer({"id": name, "length": length} | self._unknown(body), 201)

    async def update(self, session: SessionId, body: Update) -> Response:
        """More items for a session, all of them or none; 409 where it does not have the expected length."""
        body.check(self.limits)
        times = [None] * len(body.items) if body.times is None else body.times
        if len(times) != len(body.items):
            raise UsageError(f"'times' must hold one number for each of the {len(body.items)} items, not {len(times)}")

        def change(before: bytes) -> tuple[bytes, int]:
            state = self.recommender.from_bytes(before)
            if body.expected_length not in (None, len(state)):
                hint = f"the session has {len(state)} items, not the expected {body.expected_length}"
                raise RefusalError(409, "other_length", hint)
            for item, time in zip(body.items, times, strict=True):
                state.update(item, time, on_unknown=body.policy)
            return state.to_bytes(), len(state)

        length = await self._change(session, change)
        return json_answer({"id": session, "length": length} | self._unknown(body))

    async def recommend_session(self, session: SessionId, body: RecommendSession) -> Response:
        """A list for a session."""
        body.check(self.limits)
        best = await self._ask(session, lambda state: state.recommend(**body.options)._asdict())
        return json_answer(best | self._titles(best["items"]) | self._unknown(body))

    async def describe(self, session: SessionId) -> Response:
        """The length of a session, and the codeword histogram (B, W) of each layer of LISA."""
        answer = await self._ask(session, lambda state: {"histograms": [x[0].tolist() for x in state.batch.histograms]})
        return json_answer({"id": session} | answer)

    async def export(self, session: SessionId) -> Response:
        """A session as bytes, for `Recommender.from_bytes`."""
        return Response(await self._load(session), 200, media_type="application/octet-stream")

    async def delete(self, session: SessionId) -> Response:
        """Remove a session."""
        async with self._locks[hash(session) % N_LOCKS]:
            await self._load(session)
            await self.store.delete(session)
        return json_answer({"id": session, "deleted": True})

    async def _change(self, session: str, change: Callable[[bytes], tuple[bytes, int]]) -> int:
        """Change a session and store it. Changes here take turns; those of other services are not lost either."""
        async with self._locks[hash(session) % N_LOCKS]:
            for tries in range(MAX_TRIES):
                before = await self._load(session)
                data, length = await self.model.run(functools.partial(change, before))
                if await self.store.replace(session, data, before):
                    return length
                self.measured.conflicts.inc()
                await sleep(random.uniform(0, min(0.1, 0.001 * 2**tries)))
        raise RefusalError(503, "busy", f"other services keep changing the session '{session}'; try again")

    async def _ask(self, session: str, question: Callable[[Session], Answer]) -> Answer:
        """Call a function of a session on the model's thread; the length is part of the answer."""
        data = await self._load(session)

        def work() -> Answer:
            state = self.recommender.from_bytes(data)
            return question(state) | {"length": len(state)}

        return await self.model.run(work)

    async def _load(self, session: str) -> bytes:
        data = await self.store.load(session)
        if data is None:
            raise RefusalError(404, "no_session", f"there is no session '{session}', or it has expired: start it again")
        return data

    def search(self, query: str, limit: int) -> list[str]:
        """Up to `limit` items by id, then by title."""
        items = dict.fromkeys(self.recommender.ids.search(query, limit))
        text = query.casefold()
        by_title = (item for item, title in self._folded_titles if text in title and item not in items)
        return [*items, *islice(by_title, limit - len(items))]

    def _titles(self, items: list[str]) -> Answer:
        """The titles of items, null for an item without one, where the export has titles."""
        titles = self.recommender.bundle.titles
        return {"titles": [titles.get(item) for item in items]} if titles else {}

    def _unknown(self, body: Body) -> Answer:
        """Under on_unknown=warn the unknown items of a request, in the shape of its lists."""

        def unknown(items: list[Any]) -> list[Any]:
            nested = items and isinstance(items[0], list)
            return [*map(unknown, items)] if nested else self.recommender.ids.unknown(items)

        lists = {name: value for name, value in body if name in _UNKNOWN and (value or name != "candidates")}
        return {_UNKNOWN[name]: unknown(value) for name, value in lists.items()} if body.on_unknown == "warn" else {}
