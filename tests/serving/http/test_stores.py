"""Both stores of sessions keep one contract; each expires sessions and fails in its own way."""

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from recbole_lisa.errors import UsageError
from tests.serving.http.build import PATIENCE, redis_server

pytest.importorskip("fastapi")
from recbole_lisa.serving.http.refusals import RefusalError
from recbole_lisa.serving.http.stores import MemoryStore, RedisStore, SessionStore

DAY = 86400
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["memory", "redis"])
def open_store(request: pytest.FixtureRequest) -> Callable[[], SessionStore]:
    if request.param == "memory":
        return lambda: MemoryStore(10, DAY)
    url, fingerprint = request.getfixturevalue("redis_url"), secrets.token_hex(32)
    return lambda: RedisStore(url, fingerprint, DAY, timeout=PATIENCE)


async def test_an_id_is_created_once_and_old_versions_replace_nothing(open_store: Callable[[], SessionStore]) -> None:
    store = open_store()
    assert await store.load("a") is None
    assert not await store.replace("a", b"1", b"0" * 16)
    assert not await store.delete("a")
    first = b"1\x00\xff"
    assert await store.create("a", first)
    assert not await store.create("a", b"2")
    assert await store.load("a") == first
    assert await store.replace("a", b"2", first)
    assert not await store.replace("a", b"3", first)
    assert await store.load("a") == b"2"
    assert await store.delete("a")
    assert await store.load("a") is None
    await store.create("a", b"2")
    assert not await store.replace("a", b"3", first)
    assert await store.load("a") == b"2"
    await store.close()


async def test_services_of_one_model_share_sessions_in_redis_and_others_do_not(redis_url: str) -> None:
    one, same, other = (RedisStore(redis_url, model * 64, DAY, timeout=PATIENCE) for model in "001")
    await one.create("s", b"1")
    assert await same.load("s") == b"1"
    assert await other.load("s") is None
    for store in (one, same, other):
        await store.close()


async def test_redis_counts_the_time_to_live_from_the_last_use(redis_url: str) -> None:
    import redis

    key = f"recbole-lisa:session-bytes:{'2' * 16}:s"
    store = RedisStore(redis_url, "2" * 64, DAY, timeout=PATIENCE)
    with redis.Redis.from_url(redis_url) as client:
        await store.create("s", b"1")
        assert DAY - 60 < client.ttl(key) <= DAY
        for use in (store.load("s"), store.replace("s", b"2", b"1")):
            client.expire(key, 100)
            assert await use
            assert client.ttl(key) > 100
    await store.close()


def test_a_wrong_url_and_an_absent_redis_are_named() -> None:
    pytest.importorskip("redis")
    for url, message in (
        ("http://127.0.0.1", "--redis: Redis URL must specify one of the following schemes"),
        ("unix:///nowhere/redis.sock", "--redis: no answer from Redis: "),
    ):
        with pytest.raises(UsageError, match=message):
            RedisStore(url, "0" * 64, DAY)


async def test_a_redis_that_has_ended_is_status_503(redis_program: str, tmp_path: Path) -> None:
    with redis_server(redis_program, tmp_path) as (url, _):
        store = RedisStore(url, "0" * 64, DAY)
        await store.create("s", b"1")
    for call in (store.load("s"), store.create("t", b"1"), store.replace("s", b"1", b"0"), store.delete("s")):
        with pytest.raises(RefusalError, match="the store of sessions does not answer") as caught:
            await call
        assert (caught.value.status_code, caught.value.code) == (503, "store_unavailable")
    await store.close()


async def test_the_session_unused_for_longest_makes_room() -> None:
    dropped: list[str] = []
    store = MemoryStore(3, DAY, dropped.append)
    for name in "abc":
        await store.create(name, b"1")
    await store.load("a")
    await store.create("d", b"1")
    assert [name for name in "abcd" if await store.load(name)] == ["a", "c", "d"]
    assert await store.replace("a", b"2", b"1")
    await store.create("e", b"1")
    await store.create("f", b"1")
    assert [name for name in "acdef" if await store.load(name)] == ["a", "e", "f"]
    assert len(store) == 3
    assert dropped == ["evicted"] * 3


async def test_memory_counts_the_time_to_live_from_the_last_use() -> None:
    dropped: list[str] = []
    now = [0.0]
    store = MemoryStore(9, 10.0, dropped.append, lambda: now[0])
    await store.create("a", b"1")
    await store.create("b", b"1")
    now[0] = 6.0
    assert await store.load("a") is not None
    now[0] = 10.0
    assert await store.load("b") is None and len(store) == 1
    now[0] = 16.0
    assert await store.create("a", b"2") and len(store) == 1
    assert dropped == ["expired", "expired"]
