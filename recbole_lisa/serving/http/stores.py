"""Sessions between requests: bytes of constant size under an id. A write names the bytes that it replaces."""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from recbole_lisa.errors import UsageError, install_extra
from recbole_lisa.serving.http.refusals import RefusalError


class MemoryStore:
    """At most `most` sessions in this process. Without room, the session that was unused for longest is removed.

    A session lives `seconds` after it was last read or written. on_drop is called with "expired" or "evicted" for every
    removed one; the clock gives seconds that never go back.
    """

    name = "memory"

    def __init__(
        self,
        most: int,
        seconds: float,
        on_drop: Callable[[str], object] = lambda reason: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most, self.seconds, self._on_drop, self._clock = most, seconds, on_drop, clock
        # Session -> bytes and time of expiry; the one unused for longest is first, and it expires first.
        self._entries: OrderedDict[str, tuple[bytes, float]] = OrderedDict()

    def __len__(self) -> int:
        """Sessions that have not expired."""
        return len(self._alive())

    async def create(self, session: str, data: bytes) -> bool:
        """Store a new session; False where the id is taken."""
        if session in self._alive():
            return False
        self._put(session, data)
        if len(self._entries) > self.most:
            self._entries.popitem(last=False)
            self._on_drop("evicted")
        return True

    async def load(self, session: str) -> bytes | None:
        """Read a session and begin its time to live again; None where there is none."""
        entry = self._alive().get(session)
        if entry is None:
            return None
        self._put(session, entry[0])
        return entry[0]

    async def replace(self, session: str, data: bytes, before: bytes) -> bool:
        """Store a session anew; False, and nothing changes, where it no longer holds `before`."""
        if self._alive().get(session, (None, 0.0))[0] != before:
            return False
        self._put(session, data)
        return True

    async def delete(self, session: str) -> bool:
        """Remove a session; False where there is none."""
        return self._alive().pop(session, None) is not None

    async def close(self) -> None:
        """Close connections."""

    def _put(self, session: str, data: bytes) -> None:
        self._entries[session] = data, self._clock() + self.seconds
        self._entries.move_to_end(session)

    def _alive(self) -> OrderedDict[str, tuple[bytes, float]]:
        while self._entries and next(iter(self._entries.values()))[1] <= self._clock():
            self._entries.popitem(last=False)
            self._on_drop("expired")
        return self._entries


class RedisStore:
    """Sessions in Redis: they outlive the service, and several services can use them. Methods as in `MemoryStore`.

    A session is one key with a time to live; its value is the session's bytes, which end in their checksum. Redis
    compares the checksum and writes in one script: of two services that change a session, one writes and the other
    reads again. A write counts once Redis has answered. No request is repeated: a write without an answer may have been
    made, and a second one would count an item twice. The keys name the model by its fingerprint.
    Without an answer of Redis within `timeout` seconds, methods raise a RefusalError with status 503.

    Raises:
        UsageError: The client is not installed, the URL is wrong, or no Redis answers.
    """

    name = "redis"
    _REPLACE = """
    if redis.call('GETRANGE', KEYS[1], -16, -1) ~= ARGV[1] then return 0 end
    redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
    return 1
    """

    def __init__(self, url: str, fingerprint: str, seconds: int, timeout: float = 5.0) -> None:
        try:
            import redis
            import redis.asyncio
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ImportError as error:
            raise UsageError(f"--redis needs its client: {install_extra('redis')}") from error
        self._errors: Any = redis.RedisError
        self._prefix, self._seconds = f"recbole-lisa:session-bytes:{fingerprint[:16]}:", seconds
        limits: dict[str, Any] = {"socket_timeout": timeout, "socket_connect_timeout": timeout}
        try:
            with redis.Redis.from_url(url, **limits) as first:
                self._redis: Any = redis.asyncio.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **limits)
                first.ping()
        except ValueError as error:
            raise UsageError(f"--redis: {error}; write for example redis://127.0.0.1:6379/0") from error
        except redis.RedisError as error:
            raise UsageError(f"--redis: no answer from Redis: {error}") from error

    async def create(self, session: str, data: bytes) -> bool:
        """See `MemoryStore`."""
        return bool(await self._answer(self._redis.set(self._prefix + session, data, ex=self._seconds, nx=True)))

    async def load(self, session: str) -> bytes | None:
        """See `MemoryStore`."""
        data: bytes | None = await self._answer(self._redis.getex(self._prefix + session, ex=self._seconds))
        return data

    async def replace(self, session: str, data: bytes, before: bytes) -> bool:
        """See `MemoryStore`."""
        arguments = self._prefix + session, before[-16:], data, self._seconds
        return bool(await self._answer(self._redis.eval(self._REPLACE, 1, *arguments)))

    async def delete(self, session: str) -> bool:
        """See `MemoryStore`."""
        return bool(await self._answer(self._redis.delete(self._prefix + session)))

    async def close(self) -> None:
        """See `MemoryStore`."""
        await self._redis.aclose()

    async def _answer(self, request: Awaitable[Any]) -> Any:
        try:
            return await request
        except self._errors as error:
            raise RefusalError(503, "store_unavailable", "the store of sessions does not answer; try again") from error


SessionStore = MemoryStore | RedisStore
