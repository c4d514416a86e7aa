"""What the tests of the service need from outside."""

from collections.abc import Iterator

import pytest

from tests.serving.http.build import Running, find_redis, redis_server, running, seeded_recommender


@pytest.fixture(scope="session")
def redis_program() -> str:
    return find_redis()


@pytest.fixture(scope="session")
def redis_url(redis_program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(redis_program, tmp_path_factory.mktemp("redis")) as (url, _):
        yield url


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    """A small LISABase in float64 with sessions in memory and the default limits."""
    pytest.importorskip("uvicorn")
    with running(seeded_recommender(), hosts=frozenset({"127.0.0.1", "localhost"})) as started:
        yield started
