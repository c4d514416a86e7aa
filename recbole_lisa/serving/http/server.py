"""The process: a listening socket, uvicorn on it, and an orderly end."""

import contextlib
import socket
from typing import Any

import uvicorn

from recbole_lisa.errors import UsageError
from recbole_lisa.files import Termination

MAX_CONNECTIONS = 1000


def listen(host: str, port: int) -> socket.socket:
    """Open a socket that listens (port 0: any free one); a UsageError if the address cannot be used.

    Callers wait, and are not refused, until the service answers.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with contextlib.ExitStack() as stack:
            # asyncio sends answers at once only on a socket with this protocol; else each waits some 40 ms.
            listening = stack.enter_context(socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(MAX_CONNECTIONS)
            stack.pop_all()
        return listening
    except OSError as error:
        reason = f"{error.strerror}; choose another --port or --host"
        raise UsageError(f"cannot listen on {host}, port {port}: {reason}") from error


def address_of(listening: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class _Server(uvicorn.Server):
    """uvicorn, which ends at the first signal: a second one would end it in the middle, with a traceback."""

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Begin to stop, once."""
        if not self.should_exit:
            super().handle_exit(sig, frame)


def server_of(app: Any, stop_seconds: int) -> uvicorn.Server:
    """uvicorn with limits on what a caller may hold; after SIGTERM, requests have stop_seconds to end."""
    config = uvicorn.Config(
        app,
        http="h11",  # the parser that limits the size of a head
        loop="asyncio",
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=stop_seconds,
        h11_max_incomplete_event_size=2**16,
    )
    return _Server(config)


def serve(app: Any, listening: socket.socket, *, stop_seconds: int) -> None:
    """Answer requests until SIGTERM or Ctrl+C, and then those that have begun."""
    # uvicorn raises the signal again once it has ended.
    with listening, contextlib.suppress(KeyboardInterrupt, Termination):
        server_of(app, stop_seconds).run(sockets=[listening])
