import asyncio
import functools
import secrets
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from recbole_lisa.errors import UsageError
from tests.serving.http.build import PATIENCE

pytest.importorskip("fastapi")
from recbole_lisa.serving.http.refusals import RefusalError
from recbole_lisa.serving.http.stores import MemoryStore, RedisStore, SessionStore

DAY = 86400


def in_event_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an asynchronous test."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class StoreContract:
    """What the service relies on, of every store."""

    @pytest.fixture
    def open_store(self) -> Callable[[], SessionStore]:
        raise NotImplementedError

    @in_event_loop
    async def test_a_session_is_made_read_changed_and_removed(self, open_store: Callable[[], SessionStore]) -> None:
        store = open_store()
        assert await store.load("a") is None
        assert not await store.replace("a", b"1", b"0" * 16)
        assert not await store.delete("a")
        assert await store.create("a", b"1\x00\xff")
        first = await store.load("a")
        assert first == b"1\x00\xff"
        assert await store.replace("a", b"2", first)
        second = await store.load("a")
        assert second == b"2"
        assert await store.delete("a")
        assert await store.load("a") is None
        await store.close()

    @in_event_loop
    async def test_an_id_that_is_taken_is_not_taken_again(self, open_store: Callable[[], SessionStore]) -> None:
        store = open_store()
        assert await store.create("b", b"1")
        assert not await store.create("b", b"2")
        found = await store.load("b")
        assert found == b"1"
        await store.close()

    @in_event_loop
    async def test_a_write_with_an_old_version_changes_nothing(self, open_store: Callable[[], SessionStore]) -> None:
        store = open_store()
        await store.create("c", b"1")
        found = await store.load("c")
        assert found is not None
        assert await store.replace("c", b"2", found)
        assert not await store.replace("c", b"3", found)
        await store.delete("c")
        await store.create("c", b"2")
        assert not await store.replace("c", b"3", found)
        last = await store.load("c")
        assert last == b"2"
        await store.close()


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def open_store(self) -> Callable[[], SessionStore]:
        return lambda: MemoryStore(10, DAY)


class TestRedisStore(StoreContract):
    @pytest.fixture
    def open_store(self, redis_url: str) -> Callable[[], SessionStore]:
        model = secrets.token_hex(32)
        return lambda: RedisStore(redis_url, model, DAY, timeout=PATIENCE)

    @in_event_loop
    async def test_stores_of_one_model_share_sessions_and_others_do_not(self, redis_url: str) -> None:
        one, same, other = (RedisStore(redis_url, model * 64, DAY, timeout=PATIENCE) for model in "001")
        await one.create("s", b"1")
        found = await same.load("s")
        assert found == b"1"
        assert await other.load("s") is None
        for store in (one, same, other):
            await store.close()

    @in_event_loop
    async def test_a_session_expires_after_it_was_last_asked_for(self, redis_url: str) -> None:
        import redis

        store = RedisStore(redis_url, "2" * 64, DAY, timeout=PATIENCE)
        with redis.Redis.from_url(redis_url) as client:
            await store.create("s", b"1")
            assert DAY - 60 < client.ttl("recbole-lisa:session-bytes:2222222222222222:s") <= DAY
            client.expire("recbole-lisa:session-bytes:2222222222222222:s", 100)
            found = await store.load("s")
            assert found is not None
            assert client.ttl("recbole-lisa:session-bytes:2222222222222222:s") > 100
            client.expire("recbole-lisa:session-bytes:2222222222222222:s", 100)
            assert await store.replace("s", b"2", found)
            assert client.ttl("recbole-lisa:session-bytes:2222222222222222:s") > 100
        await store.close()

    def test_mistakes_are_named(self) -> None:
        pytest.importorskip("redis")
        with pytest.raises(UsageError, match="--redis: Redis URL must specify one of the following schemes"):
            RedisStore("http://127.0.0.1", "0" * 64, DAY)
        with pytest.raises(UsageError, match="--redis: no answer from Redis: "):
            RedisStore("unix:///nowhere/redis.sock", "0" * 64, DAY)


@in_event_loop
async def test_the_session_unused_for_longest_makes_room() -> None:
    dropped: list[str] = []
    store = MemoryStore(3, DAY, dropped.append)
    for name in "abc":
        await store.create(name, b"1")
    await store.load("a")
    await store.create("d", b"1")
    assert [name for name in "abcd" if await store.load(name)] == ["a", "c", "d"]
    found = await store.load("a")
    assert found is not None and await store.replace("a", b"2", found)
    await store.create("e", b"1")
    await store.create("f", b"1")
    assert [name for name in "acdef" if await store.load(name)] == ["a", "e", "f"]
    assert len(store) == 3
    assert dropped == ["evicted"] * 3


@in_event_loop
async def test_sessions_in_memory_expire_after_they_were_last_asked_for() -> None:
    dropped: list[str] = []
    clock = Clock()
    store = MemoryStore(9, 10.0, dropped.append, clock)
    await store.create("a", b"1")
    await store.create("b", b"1")
    clock.now = 6.0
    assert await store.load("a") is not None
    clock.now = 10.0
    assert await store.load("b") is None and len(store) == 1
    clock.now = 16.0
    assert await store.create("a", b"2") and len(store) == 1
    assert dropped == ["expired", "expired"]


@in_event_loop
async def test_a_redis_that_has_gone_is_told(tmp_path: Any) -> None:
    import shutil

    pytest.importorskip("redis")
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("needs redis-server")
    from tests.serving.http.build import redis_server

    with redis_server(program, tmp_path) as (url, _):
        store = RedisStore(url, "0" * 64, DAY)
        await store.create("s", b"1")
    calls = (
        store.load("s"),
        store.create("t", b"1"),
        store.replace("s", b"1", b"0"),
        store.delete("s"),
    )
    for call in calls:
        with pytest.raises(RefusalError, match="the store of sessions does not answer") as caught:
            await call
        assert (caught.value.status_code, caught.value.code) == (503, "store_unavailable")
    await store.close()
