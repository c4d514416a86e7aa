import json
import socket
import time

import pytest

from recbole_lisa.errors import UsageError
from tests.serving.build import raw
from tests.serving.http.build import PATIENCE, running, seeded_recommender

pytest.importorskip("uvicorn")
from recbole_lisa.serving.http.server import address_of, listen

HEAD = b"POST /recommend HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


def test_a_socket_takes_callers_at_once_and_only_on_its_address() -> None:
    with listen("127.0.0.1", 0) as listening:
        host, port = listening.getsockname()
        assert address_of(listening) == f"http://127.0.0.1:{port}/"
        with socket.create_connection((host, port), timeout=60):
            pass
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.2", port), timeout=60)


def test_asyncio_knows_the_socket_as_tcp_and_sends_at_once() -> None:
    with listen("localhost", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_an_address_of_ipv6_is_written_in_brackets() -> None:
    try:
        listening = listen("::1", 0)
    except UsageError:
        pytest.skip("needs IPv6")
    with listening:
        assert address_of(listening) == f"http://[::1]:{listening.getsockname()[1]}/"


def test_a_body_may_take_longer_than_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recbole_lisa.serving.http.server.IDLE_SECONDS", 0.2)
    body = json.dumps({"histories": [raw([1])]}).encode()
    with (
        running(seeded_recommender()) as service,
        socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE) as connection,
    ):
        connection.sendall(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode())
        time.sleep(0.5)
        connection.sendall(body)
        assert connection.recv(12) == b"HTTP/1.1 200"
