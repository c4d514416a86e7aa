"""The service as an application of FastAPI, which makes the OpenAPI pages /docs and /openapi.json."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from recbole_lisa import __version__
from recbole_lisa.errors import UsageError
from recbole_lisa.serving import Recommender
from recbole_lisa.serving.http.bodies import Limits
from recbole_lisa.serving.http.metrics import Metrics
from recbole_lisa.serving.http.middleware import Boundary
from recbole_lisa.serving.http.refusals import answer_error
from recbole_lisa.serving.http.routes import Service
from recbole_lisa.serving.http.stores import SessionStore


def build_app(
    recommender: Recommender,
    store: SessionStore,
    metrics: Metrics,
    limits: Limits | None = None,
    threads: int = 1,
    hosts: frozenset[str] | None = None,
) -> FastAPI:
    """Build the ASGI application, which closes the store at its end.

    Args:
        recommender: The model.
        store: The sessions.
        metrics: The metrics.
        limits: None takes those of `Limits`.
        threads: Threads of torch.
        hosts: Names that a request may have in its Host header; None allows all. A page of another site can lead a
            browser here under a name of its own, and this check refuses it.
    """
    limits = limits or Limits()
    service = Service(recommender, store, metrics, limits, threads)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            service.model.close()
            await store.close()

    names = ["*"] if hosts is None else [f"[{host}]" if ":" in host else host for host in hosts]
    errors: Any = (HTTPException, RequestValidationError, UsageError, Exception)
    app = FastAPI(
        title="recbole-lisa",
        version=__version__,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        exception_handlers=dict.fromkeys(errors, answer_error),
        middleware=[
            Middleware(Boundary, metrics=metrics, limits=limits),
            Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False),
        ],
    )
    app.include_router(service.router())
    return app
