"""Where sessions lie between requests: bytes of constant size under an id, and a version that a write must name."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Stored(NamedTuple):
    """A session as it lies in a store, and the version that `SessionStore.replace` compares."""

    data: bytes
    version: bytes


class SessionStore(Protocol):
    """What the service asks of a store. A write is there for good, or for the time to live, once it returns True."""

    name: str

    async def create(self, session: str, data: bytes) -> bool:
        """Store a new session; False where the id is taken."""

    async def load(self, session: str) -> Stored | None:
        """A session, which lives on from now; None where there is none."""

    async def replace(self, session: str, data: bytes, version: bytes) -> bool:
        """Store a session anew; False, and nothing is changed, where it has another version or is gone."""

    async def delete(self, session: str) -> bool:
        """Remove a session; False where there is none."""

    async def check(self) -> None:
        """See whether the store answers.

        Raises:
            RefusalError: 503, as every method may.
        """

    async def close(self) -> None:
        """Let go of what it holds."""


@dataclass
class _Entry:
    data: bytes
    version: int
    expires: float


class MemoryStore:
    """At most `most` sessions in this process, each for `seconds` after it was last asked for.

    When there is no room, the session goes that was asked for longest ago. One event loop uses it.

    Args:
        most: Sessions.
        seconds: Time to live.
        on_drop: Called with "expired" or "evicted" for every session that goes by itself.
        clock: Seconds that never go back.
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
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # longest unused first, so that it expires first, too
        self._writes = 0

    def __len__(self) -> int:
        """Sessions that are alive."""
        self._drop_expired()
        return len(self._entries)

    async def create(self, session: str, data: bytes) -> bool:
        """See `SessionStore`."""
        self._drop_expired()
        if session in self._entries:
            return False
        self._put(session, data)
        while len(self._entries) > self.most:
            self._entries.popitem(last=False)
            self._on_drop("evicted")
        return True

    async def load(self, session: str) -> Stored | None:
        """See `SessionStore`."""
        self._drop_expired()
        entry = self._entries.get(session)
        if entry is None:
            return None
        entry.expires = self._clock() + self.seconds
        self._entries.move_to_end(session)
        return Stored(entry.data, entry.version.to_bytes(8, "big"))

    async def replace(self, session: str, data: bytes, version: bytes) -> bool:
        """See `SessionStore`."""
        self._drop_expired()
        entry = self._entries.get(session)
        if entry is None or entry.version.to_bytes(8, "big") != version:
            return False
        self._put(session, data)
        return True

    async def delete(self, session: str) -> bool:
        """See `SessionStore`."""
        self._drop_expired()
        return self._entries.pop(session, None) is not None

    async def check(self) -> None:
        """It always answers."""

    async def close(self) -> None:
        """Nothing is held outside of this process."""

    def _put(self, session: str, data: bytes) -> None:
        self._writes += 1
        self._entries[session] = _Entry(data, self._writes, self._clock() + self.seconds)
        self._entries.move_to_end(session)

    def _drop_expired(self) -> None:
        now = self._clock()
        while self._entries and next(iter(self._entries.values())).expires <= now:
            self._entries.popitem(last=False)
            self._on_drop("expired")


class Locks:
    """One lock for each session that is being changed, and none for the others."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def __len__(self) -> int:
        """Sessions that are being changed."""
        return len(self._locks)

    @asynccontextmanager
    async def of(self, session: str) -> AsyncIterator[None]:
        """Hold the lock of a session; those who wait get it in the order in which they came."""
        lock, users = self._locks.get(session, (asyncio.Lock(), 0))
        self._locks[session] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(session)
            if users > 1:
                self._locks[session] = lock, users - 1
