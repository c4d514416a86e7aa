"""The process: a listening socket, uvicorn on it, and an orderly end."""

import asyncio
import contextlib
import signal
import socket
from typing import Any, NoReturn

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from recbole_lisa.errors import UsageError

MAX_CONNECTIONS = 1000
IDLE_SECONDS = 30
MAX_HEAD_BYTES = 2**16


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens already: callers wait, and are not refused, until the service answers.

    Args:
        host: Name or address.
        port: 0 takes a free one.

    Raises:
        UsageError: It cannot be had.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # Named as TCP: only then does asyncio send answers at once; else each waits some 40 ms for the caller's kernel.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(MAX_CONNECTIONS)
        except OSError:
            listening.close()
            raise
        return listening
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}, port {port}: {error.strerror}; choose another --port or --host"
        ) from error


def address_of(listening: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class Connection(H11Protocol):
    """uvicorn's connection, ended where the head of a request takes longer than an idle connection may be kept.

    uvicorn waits for a head for ever, so that callers who never finish one could hold all connections.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """The first head may begin."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """More of a head, or what follows one."""
        super().data_received(data)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        super().connection_lost(exc)
        self._forget_deadline()

    def _await_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._forget_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.timeout_keep_alive, self.transport.close)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def server_of(app: Starlette, stop_seconds: int) -> uvicorn.Server:
    """uvicorn around a service, with limits on what a caller may hold.

    Args:
        app: The service.
        stop_seconds: How long requests may take to end; what still runs then is cut off.
    """
    config = uvicorn.Config(
        app,
        http=Connection,
        loop="asyncio",
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=stop_seconds,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
    )
    return uvicorn.Server(config)


def serve(app: Starlette, listening: socket.socket, *, stop_seconds: int) -> None:
    """Answer requests until SIGTERM or Ctrl+C, and then end those that have begun.

    Args:
        app: The service.
        listening: From `listen`.
        stop_seconds: See `server_of`.
    """
    # uvicorn raises the signal again once it has ended; that is then this handler's.
    before = signal.signal(signal.SIGTERM, _end)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            server_of(app, stop_seconds).run(sockets=[listening])
    finally:
        signal.signal(signal.SIGTERM, before)
        listening.close()


def _end(*_: Any) -> NoReturn:
    raise KeyboardInterrupt
