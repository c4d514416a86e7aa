import socket

import pytest

from recbole_lisa.errors import UsageError

pytest.importorskip("uvicorn")
from recbole_lisa.serving.http.server import address_of, listen


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
