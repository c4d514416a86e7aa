"""The command `recbole-lisa serve`."""

import argparse
import contextlib
import os
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from recbole_lisa.cli import imported
from recbole_lisa.cli.arguments import UsageParser, positive, thread_count
from recbole_lisa.errors import UsageError, install_extra
from recbole_lisa.serving import Recommender
from recbole_lisa.serving.http.bodies import Limits

REDIS_VARIABLE = "RECBOLE_LISA_REDIS"
MAX_WAIT_MS, MAX_SESSIONS = 1000, 10_000
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_NEEDED = ("fastapi", "uvicorn", "prometheus_client")
_EPILOG = """\
JSON in and out, with Content-Type: application/json:

  POST   /recommend                  {"histories": [["a", "b"]], "k": 10}
  POST   /sessions                   {"history": ["a"]} -> id; {"id": ...} names it yourself
  POST   /sessions/ID/items          {"items": ["b"], "expected_length": 1}
  POST   /sessions/ID/recommend      {"k": 10}
  GET    /sessions/ID                length and codeword histograms
  GET    /sessions/ID/bytes          for Recommender.from_bytes
  DELETE /sessions/ID
  GET    /items?query=TEXT           ids that contain a text
  GET    /health, /metrics           for a supervisor, for Prometheus
  GET    /, /docs, /openapi.json     a page to try it with, and the OpenAPI description

Optional fields: times (seconds), filter_seen, candidates, on_unknown (raise, skip, or warn, which lists the items left
out in "unknown" and "unknown_candidates"), and for a model with query_time at, the time of the question in seconds
since 1970 (default: now). expected_length makes a repeated request safe: it is refused with 409 when the items are
there already. There is no login, no TLS and no limit on slow request heads: to serve other machines, put a proxy in
front. SIGTERM ends the service after the requests that have begun.
"""


def main(arguments: Sequence[str]) -> int:
    """Serve an export until SIGTERM or Ctrl+C, with the arguments after `serve`; return 0."""
    options = _parser().parse_args(arguments)
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise UsageError(f"serve needs {' and '.join(missing)}: {install_extra('serve')}")
    app, server, middleware = (imported(f"serving.http.{name}") for name in ("app", "server", "middleware"))
    metrics = middleware.Metrics()
    recommender = Recommender.load(options.export)
    store = _store(options, recommender, metrics)
    listening = server.listen(options.host, options.port)
    names = ("body_bytes", "histories", "items", "updates", "k", "waiting", "batch")
    largest = {name: getattr(options, f"max_{name}") for name in names}
    limits = Limits(**largest, batch_wait_ms=options.batch_wait_ms)
    warm_up(recommender)
    service = app.build_app(app.Service(recommender, store, metrics, limits, options.threads), hosts_of(options))
    bundle = recommender.bundle
    if recommender.reads_query_time:
        print("query time: that of each request, or its field 'at'", flush=True)
    print(f"{bundle.model} of {bundle.dataset}, {len(bundle.ids):,} items: {server.address_of(listening)}", flush=True)
    server.serve(service, listening, stop_seconds=options.stop_seconds)
    return 0


def warm_up(recommender: Recommender) -> None:
    """Load and compile what the first calls need, so that the first callers do not wait for it."""
    history, times = [recommender.ids.raw(0)], [time.time()]
    recommender.recommend([history], k=1, times=[times], filter_seen=False)
    if recommender.has_sessions:
        recommender.start(history, times).recommend(1, filter_seen=False)


def hosts_of(options: argparse.Namespace) -> frozenset[str] | None:
    """Names that a Host header may have: any once others may reach the service, unless some are named."""
    if options.host not in _LOOPBACK and not options.allowed_host:
        return None
    return _LOOPBACK | {options.host.lower(), *(name.lower() for name in options.allowed_host)}


def _store(options: argparse.Namespace, recommender: Recommender, metrics: Any) -> Any:
    stores = imported("serving.http.stores")
    if options.redis:
        if options.max_sessions is not None:
            raise UsageError("--max_sessions is of sessions in memory, and Redis keeps them here: leave it out")
        return stores.RedisStore(options.redis, recommender.fingerprint, options.session_seconds)
    return stores.MemoryStore(
        options.max_sessions or MAX_SESSIONS,
        options.session_seconds,
        lambda reason: metrics.dropped.labels(reason).inc(),
    )


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be a port from 0 (any that is free) to 65535, got {text}")
    return int(text)


def _milliseconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (value := float(text)) <= MAX_WAIT_MS:
            return value
    raise argparse.ArgumentTypeError(f"must be milliseconds from 0 (no wait) to {MAX_WAIT_MS}, got {text}")


def _parser() -> UsageParser:
    parser = UsageParser("recbole-lisa serve", "Answer requests for recommendations over HTTP.", _EPILOG)
    add = parser.add_argument
    add("--export", type=Path, required=True, metavar="DIR", help="folder of recbole-lisa export")
    add("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine)")
    add("--port", type=_port, default=8000, help="default: 8000; 0 takes a free one")
    meaning = "a host name of the service; default: loopback names, or any name where --host is not loopback"
    add("--allowed_host", action="append", default=[], metavar="NAME", help=meaning)
    add("--threads", type=thread_count, default=1, help="threads of torch (default: 1)")
    meaning = "longest wait for requests in flight that may join a batch (default: 2; a lone request never waits)"
    add("--batch_wait_ms", type=_milliseconds, default=Limits.batch_wait_ms, help=meaning)
    sessions = parser.add_argument_group("sessions")
    meaning = f"keep sessions in Redis, not in memory (default: the environment's {REDIS_VARIABLE})"
    sessions.add_argument("--redis", metavar="URL", default=os.environ.get(REDIS_VARIABLE), help=meaning)
    for group, name, default, meaning in (
        (sessions, "session_seconds", 86400, "seconds that a session lives after it was last used"),
        (parser, "stop_seconds", 30, "seconds that requests may take to end after SIGTERM"),
        (parser, "max_body_bytes", Limits.body_bytes, "bytes of a request"),
        (parser, "max_histories", Limits.histories, "histories in a request"),
        (parser, "max_items", Limits.items, "items of a list"),
        (parser, "max_updates", Limits.updates, "items that a request adds to a session"),
        (parser, "max_k", Limits.k, "recommendations for one history"),
        (parser, "max_waiting", Limits.waiting, "requests that wait for the model; more get 503"),
        (parser, "max_batch", Limits.batch, "requests for lists that the model answers together; 1 answers each alone"),
    ):
        group.add_argument(f"--{name}", type=positive, default=default, help=f"{meaning} (default: {default})")
    meaning = f"sessions in memory; the one unused for longest is removed (default: {MAX_SESSIONS})"
    sessions.add_argument("--max_sessions", type=positive, help=meaning)
    return parser
