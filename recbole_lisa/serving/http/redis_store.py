"""Sessions in Redis: they outlive the service, and several services may share them."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from recbole_lisa.errors import UsageError
from recbole_lisa.serving.http.limits import RefusalError
from recbole_lisa.serving.http.stores import Stored

VERSION_BYTES = 16
_PREFIX = "recbole-lisa:session"
_MODEL_DIGITS = 16
_REPLACE = f"""
if redis.call('GETRANGE', KEYS[1], 0, {VERSION_BYTES - 1}) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
return 1
"""


class RedisStore:
    """A session is one key with a time to live; its value is a random version and the session's bytes.

    A write names the version that it read. Redis compares and writes in one step (a script), so that of two services
    that change one session, one writes and the other reads again. A write counts once Redis has answered; what Redis
    itself keeps when it is killed is its own setting (`appendonly yes`). Nothing is sent twice by itself: a write whose
    answer was lost may be there, and a second one would count an item twice.

    The keys name the model: another model's sessions, as after a new training, are not found, and expire.

    Args:
        url: redis://, rediss:// or unix://.
        fingerprint: Of the model.
        seconds: Time to live after a session was last asked for.
        timeout: Seconds to wait for an answer of Redis.

    Raises:
        UsageError: The client is not installed, the URL is none, or no Redis answers there.
    """

    name = "redis"

    def __init__(self, url: str, fingerprint: str, seconds: int, timeout: float = 5.0) -> None:
        try:
            import redis
            import redis.asyncio
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ImportError as error:
            raise UsageError("--redis needs its client: pip install 'recbole-lisa[redis]'") from error
        self._errors: Any = redis.RedisError
        self._prefix, self._seconds = f"{_PREFIX}:{fingerprint[:_MODEL_DIGITS]}:", seconds
        limits: dict[str, Any] = {"socket_timeout": timeout, "socket_connect_timeout": timeout}
        try:
            first = redis.Redis.from_url(url, **limits)
            self._redis: Any = redis.asyncio.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **limits)
        except ValueError as error:
            raise UsageError(f"--redis: {error}; write for example redis://127.0.0.1:6379/0") from error
        try:
            first.ping()
        except redis.RedisError as error:
            raise UsageError(f"--redis: no answer from Redis: {error}") from error
        finally:
            first.close()

    async def create(self, session: str, data: bytes) -> bool:
        """See `SessionStore`."""
        value = secrets.token_bytes(VERSION_BYTES) + data
        async with self._answering():
            return bool(await self._redis.set(self._key(session), value, ex=self._seconds, nx=True))

    async def load(self, session: str) -> Stored | None:
        """See `SessionStore`."""
        key = self._key(session)
        async with self._answering(), self._redis.pipeline(transaction=False) as pipe:
            value, _ = await pipe.get(key).expire(key, self._seconds).execute()
        return None if value is None else Stored(value[VERSION_BYTES:], value[:VERSION_BYTES])

    async def replace(self, session: str, data: bytes, version: bytes) -> bool:
        """See `SessionStore`."""
        value = secrets.token_bytes(VERSION_BYTES) + data
        async with self._answering():
            return bool(await self._redis.eval(_REPLACE, 1, self._key(session), version, value, self._seconds))

    async def delete(self, session: str) -> bool:
        """See `SessionStore`."""
        async with self._answering():
            return bool(await self._redis.delete(self._key(session)))

    async def check(self) -> None:
        """See `SessionStore`."""
        async with self._answering():
            await self._redis.ping()

    async def close(self) -> None:
        """See `SessionStore`."""
        await self._redis.aclose()

    def _key(self, session: str) -> str:
        return self._prefix + session

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[None]:
        try:
            yield
        except self._errors as error:
            raise RefusalError(503, "store_unavailable", "the store of sessions does not answer; try again") from error
