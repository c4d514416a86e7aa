"""What the tests of the service need from outside."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.http.build import Running, redis_server, running, seeded_recommender


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running Redis; the test is skipped where there is none."""
    pytest.importorskip("redis")
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("needs redis-server")
    with redis_server(program, Path(tmp_path_factory.mktemp("redis"))) as (url, _):
        yield url


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    """A small LISABase in float64, sessions in memory, no limits but the usual ones."""
    pytest.importorskip("uvicorn")
    with running(seeded_recommender(), hosts=frozenset({"127.0.0.1", "localhost"})) as started:
        yield started
