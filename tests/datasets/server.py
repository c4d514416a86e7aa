"""A publisher for the tests: an HTTP server on this machine that can break off, refuse or stay silent."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Publisher:
    """What the server serves, and the number of requests.

    Attributes:
        content: The file.
        break_after: For each coming request, after how many bytes the line drops; then never.
        status: Another status than 200 refuses every request.
        silent: Never answer.
        requests: Requests so far.
    """

    content: bytes
    break_after: list[int] = field(default_factory=list)
    status: int = 200
    silent: bool = False
    requests: int = 0

    def __enter__(self) -> Publisher:
        """Start serving."""
        self.released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/ml-1m.zip"
        return self

    def __exit__(self, *_: object) -> None:
        """Stop serving."""
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        publisher = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
                publisher.requests += 1
                if publisher.silent:
                    publisher.released.wait(20)
                elif publisher.status != 200:
                    self.send_error(publisher.status)
                else:
                    total = len(publisher.content)
                    self.send_response(200)
                    self.send_header("Content-Length", str(total))
                    self.end_headers()
                    length = publisher.break_after.pop(0) if publisher.break_after else total
                    with contextlib.suppress(OSError):  # the client may close the connection
                        self.wfile.write(publisher.content[:length])

            def log_message(self, *_: object) -> None:
                """Stay quiet."""

        return Handler
