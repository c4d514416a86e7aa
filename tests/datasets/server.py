"""A publisher for the tests: an HTTP server on this machine that can break off, refuse or stay silent."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Publisher:
    """What the server serves, and the number of requests so far."""

    content: bytes
    break_after: list[int] = field(default_factory=list)  # bytes of each coming answer; then answers are whole
    status: int = 200  # another status refuses every request
    silent: bool = False  # never answer
    requests: int = 0

    def __enter__(self) -> Publisher:
        self.released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"publisher": self}))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/ml-1m.zip"
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    publisher: Publisher

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
        self.publisher.requests += 1
        if self.publisher.silent:
            self.publisher.released.wait(20)
        elif self.publisher.status != 200:
            self.send_error(self.publisher.status)
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(self.publisher.content)))
            self.end_headers()
            length = self.publisher.break_after.pop(0) if self.publisher.break_after else None
            with contextlib.suppress(OSError):  # the client may close the connection
                self.wfile.write(self.publisher.content[:length])

    def log_message(self, *_: object) -> None:
        """Stay quiet."""
