import contextlib
import socket

import pytest

from recbole_lisa.errors import UsageError

pytest.importorskip("uvicorn")
from recbole_lisa.serving.http.server import address_of, listen


def test_a_socket_takes_callers_at_once_and_only_on_its_address() -> None:
    with listen("127.0.0.1", 0) as listening:
        host, port = listening.getsockname()
        assert address_of(listening) == f"http://127.0.0.1:{port}/"
        assert listening.proto == socket.IPPROTO_TCP  # asyncio then sends at once
        with socket.create_connection((host, port), timeout=60):
            pass
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.2", port), timeout=60)


def test_an_address_of_ipv6_is_written_in_brackets() -> None:
    with contextlib.suppress(UsageError), listen("::1", 0) as listening:  # a machine may lack IPv6
        assert address_of(listening) == f"http://[::1]:{listening.getsockname()[1]}/"
