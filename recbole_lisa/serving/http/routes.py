"""The routes: what each request asks of the model and of the store of sessions, and what goes back."""

import base64
import hashlib
import random
import secrets
from asyncio import Lock, sleep
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from prometheus_client import CONTENT_TYPE_LATEST

from recbole_lisa import __version__
from recbole_lisa.errors import UsageError
from recbole_lisa.serving import Recommender
from recbole_lisa.serving.http.bodies import SESSION_ID, Limits, Recommend, RecommendSession, Start, Update
from recbole_lisa.serving.http.metrics import Metrics
from recbole_lisa.serving.http.model_thread import ModelThread
from recbole_lisa.serving.http.refusals import RefusalError, json_answer
from recbole_lisa.serving.http.stores import MemoryStore, SessionStore

MAX_TRIES = 50
"""How often a change is computed again when other services write first."""
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
SessionId = Annotated[str, Path(pattern=SESSION_ID)]


class Service:
    """One model over HTTP; the arguments are those of `build_app`."""

    def __init__(
        self, recommender: Recommender, store: SessionStore, metrics: Metrics, limits: Limits, threads: int
    ) -> None:
        self.recommender, self.store, self._metrics, self.limits = recommender, store, metrics, limits
        self.model = ModelThread(recommender, limits.waiting, threads)
        # Changes of one session take turns; two sessions may share a lock.
        self._locks = [Lock() for _ in range(N_LOCKS)]
        metrics.watch("waiting", "Requests that wait for the model or run on it.", lambda: self.model.waiting)
        if isinstance(store, MemoryStore):
            metrics.watch("sessions", "Sessions in memory.", lambda: len(store))

    def router(self) -> APIRouter:
        """All paths."""
        router = APIRouter(redirect_slashes=False)
        router.get("/", include_in_schema=False)(self.page)
        router.get("/health")(self.health)
        router.head("/health", include_in_schema=False)(self.health)
        router.get("/metrics")(self.metrics)
        router.get("/items")(self.items)
        router.post("/recommend")(self.recommend)
        router.post("/sessions", status_code=201)(self.start)
        router.get("/sessions/{session}")(self.describe)
        router.delete("/sessions/{session}")(self.delete)
        router.get("/sessions/{session}/bytes")(self.export)
        router.post("/sessions/{session}/items")(self.update)
        router.post("/sessions/{session}/recommend")(self.recommend_session)
        return router

    async def page(self) -> Response:
        """The demo."""
        return Response(PAGE, 200, {"content-security-policy": PAGE_POLICY}, "text/html")

    async def health(self) -> Response:
        """What is served, once the store of sessions answers."""
        await self.store.check()
        bundle = self.recommender.bundle
        answer = {"status": "ok", "model": bundle.model, "dataset": bundle.dataset, "items": len(bundle.ids)}
        answer |= {"sessions": self.recommender.has_sessions, "needs_times": self.recommender.needs_times}
        return json_answer(answer | {"store": self.store.name, "version": __version__})

    async def metrics(self) -> Response:
        """Metrics for Prometheus."""
        return Response(self._metrics.text(), 200, media_type=CONTENT_TYPE_LATEST)

    async def items(
        self, query: Annotated[str, Query(max_length=100)] = "", limit: Annotated[int, Query(ge=1, le=100)] = 20
    ) -> Response:
        """Item ids that contain a text."""
        return json_answer({"items": await self.model.run(lambda: self.recommender.ids.search(query, limit))})

    async def recommend(self, body: Recommend) -> Response:
        """Lists for histories."""
        body.check(self.limits)
        answer: Answer = {"recommendations": [one._asdict() for one in await self.model.recommend(body)]}
        if body.on_unknown == "warn":
            answer["unknown"] = [self._unknown(history) for history in body.histories]
            answer |= self._unknown_candidates(body.candidates)
        return json_answer(answer)

    async def start(self, body: Start) -> Response:
        """A new session; 409 where the id is taken."""
        body.check(self.limits)

        def work() -> tuple[bytes, int]:
            session = self.recommender.start(body.history, body.times, on_unknown=_policy(body.on_unknown))
            return session.to_bytes(), len(session)

        (data, length), name = await self.model.run(work), body.id or secrets.token_urlsafe(16)
        if not await self.store.create(name, data):
            hint = f"there is a session '{name}': delete it first, or continue it"
            raise RefusalError(409, "session_exists", hint)
        unknown = {"unknown": self._unknown(body.history)} if body.on_unknown == "warn" else {}
        return json_answer({"id": name, "length": length} | unknown, 201)

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
                state.update(item, time, on_unknown=_policy(body.on_unknown))
            return state.to_bytes(), len(state)

        length = await self._change(session, change)
        unknown = {"unknown": self._unknown(body.items)} if body.on_unknown == "warn" else {}
        return json_answer({"id": session, "length": length} | unknown)

    async def recommend_session(self, session: SessionId, body: RecommendSession) -> Response:
        """A list for a session."""
        body.check(self.limits)
        data = await self._load(session)

        def work() -> Answer:
            state = self.recommender.from_bytes(data)
            policy = _policy(body.on_unknown)
            best = state.recommend(body.k, filter_seen=body.filter_seen, candidates=body.candidates, on_unknown=policy)
            return best._asdict() | {"length": len(state)}

        unknown = self._unknown_candidates(body.candidates) if body.on_unknown == "warn" else {}
        return json_answer(await self.model.run(work) | unknown)

    async def describe(self, session: SessionId) -> Response:
        """The length of a session, and the codeword histogram (B, W) of each layer of LISA."""
        data = await self._load(session)

        def work() -> Answer:
            state = self.recommender.from_bytes(data)
            return {"length": len(state), "histograms": [layer[0].tolist() for layer in state.batch.histograms]}

        return json_answer({"id": session} | await self.model.run(work))

    async def export(self, session: SessionId) -> Response:
        """A session as bytes, for `Recommender.from_bytes`."""
        return Response(await self._load(session), 200, media_type="application/octet-stream")

    async def delete(self, session: SessionId) -> Response:
        """Remove a session."""
        async with self._lock(session):
            await self._load(session)
            await self.store.delete(session)
        return json_answer({"id": session, "deleted": True})

    async def _change(self, session: str, change: Callable[[bytes], tuple[bytes, int]]) -> int:
        """Change a session and store it. Changes here take turns; those of other services are not lost either."""
        async with self._lock(session):
            for tries in range(MAX_TRIES):
                before = await self._load(session)
                data, length = await self.model.run(lambda before=before: change(before))  # type: ignore[misc]  # mypy infers no type for this default
                if await self.store.replace(session, data, before):
                    return length
                self._metrics.conflicts.inc()
                await sleep(random.uniform(0, min(0.1, 0.001 * 2**tries)))
        raise RefusalError(503, "busy", f"other services keep changing the session '{session}'; try again")

    def _lock(self, session: str) -> Lock:
        return self._locks[hash(session) % N_LOCKS]

    async def _load(self, session: str) -> bytes:
        data = await self.store.load(session)
        if data is None:
            hint = f"there is no session '{session}', or it has expired: start it again"
            raise RefusalError(404, "no_session", hint)
        return data

    def _unknown(self, items: Sequence[object]) -> list[str]:
        return [str(item) for item in self.recommender.ids.unknown(items)]

    def _unknown_candidates(self, candidates: Sequence[Any] | None) -> Answer:
        """Unknown candidates in the shape of the candidates."""
        if not candidates:
            return {}
        nested = isinstance(candidates[0], list)
        return {"unknown_candidates": [*map(self._unknown, candidates)] if nested else self._unknown(candidates)}


def _policy(on_unknown: str) -> str:
    """The model's policy: a warning is part of the answer here."""
    return "raise" if on_unknown == "raise" else "skip"
