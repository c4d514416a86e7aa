"""A publisher for the tests: an HTTP server on this machine that can break off, refuse or stay silent."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Publisher:
    """What the server serves, and what it was asked.

    Attributes:
        content: The file.
        break_after: For each coming request, how many bytes it gets before the line drops; then all.
        ranges: Whether a request for the rest is honoured.
        status: Another status than 200 refuses every request.
        silent: Never answer.
        tag: The version of the file.
        asked: The `Range` header of each request, None where there was none.
    """

    content: bytes
    break_after: list[int] = field(default_factory=list)
    ranges: bool = True
    status: int = 200
    silent: bool = False
    tag: str = '"1"'
    asked: list[str | None] = field(default_factory=list)

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
                publisher.asked.append(self.headers.get("Range"))
                if publisher.silent:
                    publisher.released.wait(20)
                elif publisher.status != 200:
                    self.send_error(publisher.status)
                else:
                    self._serve()

            def _serve(self) -> None:
                start, total = 0, len(publisher.content)
                wanted = self.headers.get("If-Range", publisher.tag) == publisher.tag
                if publisher.ranges and wanted and self.headers.get("Range"):
                    start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
                    if start >= total:
                        self.send_response(416)
                        self.send_header("Content-Range", f"bytes */{total}")
                        self.end_headers()
                        return
                self.send_response(206 if start else 200)
                self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
                self.send_header("Content-Length", str(total - start))
                self.send_header("ETag", publisher.tag)
                self.end_headers()
                length = publisher.break_after.pop(0) if publisher.break_after else total
                self.wfile.write(publisher.content[start : start + length])

            def log_message(self, *_: object) -> None:
                """Stay quiet."""

        return Handler
