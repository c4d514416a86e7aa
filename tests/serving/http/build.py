"""A service on a real socket, in a thread of the test, and ways to talk to it."""

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from recbole_lisa.serving import Recommender
from recbole_lisa.serving.http.bodies import Limits
from tests.serving.build import small_recommender

JSON = {"Content-Type": "application/json"}
PATIENCE = 60.0
"""Seconds after which a test gives up; nothing is ever expected to take so long."""


class Answer(NamedTuple):
    """Status, headers in lower case and body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        """Status and code of a refusal, which always has a message too."""
        assert self.headers["content-type"] == "application/json"
        assert set(self.json) == {"error", "message"} and self.json["message"]
        return self.status, self.json["error"]


class Running(NamedTuple):
    """A service that answers."""

    port: int
    server: Any

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """One request; a body that is no bytes goes as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, path, data, headers if headers is not None else JSON if data else {})
            response = connection.getresponse()
            answered = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, answered, response.read())

    def get(self, path: str) -> Answer:
        return self.call("GET", path)

    def post(self, path: str, body: Any) -> Answer:
        return self.call("POST", path, body)

    def raw(self, sent: bytes, *, then_close: bool) -> bytes:
        """Send bytes, maybe say that there are no more, and read until the service ends the connection."""
        parts: list[bytes] = []
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection,
            contextlib.suppress(OSError),  # of a service that reads no further
        ):
            connection.sendall(sent)
            if then_close:
                connection.shutdown(socket.SHUT_WR)
            parts.extend(iter(lambda: connection.recv(65536), b""))
        return b"".join(parts)


def seeded_recommender(name: str = "LISABase", **settings: Any) -> Recommender:
    """`small_recommender`, whose random weights are the same at every call."""
    torch.manual_seed(7)
    return small_recommender(name, **settings)


@contextlib.contextmanager
def running(
    recommender: Recommender, store: Any = None, limits: Limits | None = None, hosts: frozenset[str] | None = None
) -> Iterator[Running]:
    """Serve until the block ends."""
    from recbole_lisa.serving.http.app import Service, build_app
    from recbole_lisa.serving.http.middleware import Metrics
    from recbole_lisa.serving.http.server import listen, server_of
    from recbole_lisa.serving.http.stores import MemoryStore

    store = MemoryStore(100, 1e6) if store is None else store
    app = build_app(Service(recommender, store, Metrics(), limits or Limits()), hosts)
    listening, server = listen("127.0.0.1", 0), server_of(app, stop_seconds=int(PATIENCE))
    port = listening.getsockname()[1]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield Running(port, server)
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listening.close()
    assert not thread.is_alive()


def wait_until(true: Callable[[], object]) -> None:
    """Wait for what must come true."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.005)


def find_redis() -> str:
    """The program redis-server; the test is skipped where it or its client is missing."""
    pytest.importorskip("redis")
    program = shutil.which("redis-server")
    return program or pytest.skip("needs redis-server")


@contextlib.contextmanager
def redis_server(program: str, folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A Redis of this test alone, on a socket in a folder: its URL and its process."""
    path = folder / "redis.sock"
    command = [program, "--port", "0", "--unixsocket", str(path), "--dir", str(folder), "--appendonly", "yes"]
    process = subprocess.Popen([*command, "--save", "", "--daemonize", "no"], stdout=subprocess.DEVNULL)
    try:
        wait_until(path.exists)
        yield f"unix://{path}", process
    finally:
        process.kill()
        process.wait()
        path.unlink(missing_ok=True)
