"""Users whose histories go on: constant size, constant time per item, saved to bytes and back to the bit."""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recbole_lisa.errors import UsageError
from recbole_lisa.layers.session_encoder import EncoderState
from recbole_lisa.serving.inputs import History, Numbers, check_policy, numbers_of

if TYPE_CHECKING:
    from recbole_lisa.serving.recommender import Recommendation, Recommender

MAGIC, VERSION = b"RLSES", 1
_HEADER = struct.Struct("<5sB32s")
_DIGEST_BYTES = 16


@dataclass(frozen=True)
class _Kept:
    """What stays of N users between two items.

    Attributes:
        state: of the encoder.
        recent: (N, R) int32, the newest R = max_length item numbers, item i of a history in column i mod R; -1 is none.
        time: (N,) float64, seconds of the newest item; NaN before the first.
    """

    state: EncoderState
    recent: Tensor
    time: Tensor

    def tensors(self) -> list[Tensor]:
        """All tensors, each (N, ...), in the order of the bytes."""
        state, recent, time = self.state, self.recent, self.time
        return [state.length, time, recent, state.hidden, *(x for layer in state.layers for x in layer)]

    def with_tensors(self, tensors: Sequence[Tensor]) -> "_Kept":
        """The same structure around other tensors in the order of `tensors`."""
        length, time, recent, hidden, *rest = tensors
        left = iter(rest)
        layers = tuple(type(layer)(*(next(left) for _ in layer)) for layer in self.state.layers)
        return _Kept(EncoderState(layers, hidden, length), recent, time)

    def rows(self, rows: Any) -> "_Kept":
        """Some of the users."""
        return self.with_tensors([x[rows] for x in self.tensors()])


class SessionBatch:
    """N sessions that are updated and asked together; `batch[n]` and iteration give single ones.

    Equal to the encoder over the whole history, of which item i stands at position min(i, max_length - 1): see
    `SessionEncoder`. filter_seen knows the newest max_length items, so that the size stays constant.
    """

    def __init__(self, recommender: "Recommender", kept: _Kept) -> None:
        self.recommender = recommender
        self._kept = kept

    @classmethod
    @torch.no_grad()
    def start(cls, recommender: "Recommender", histories: Sequence[History]) -> "SessionBatch":
        """Begin sessions after histories, each in O(L).

        Raises:
            UsageError: the model has no state of constant size, or times are missing.
        """
        kept = _nothing(recommender, len(histories))
        filled = [n for n, history in enumerate(histories) if len(history.items)]
        columns = kept.tensors()
        for n in filled:
            one = _after(recommender, histories[n])
            for column, value in zip(columns, one.tensors(), strict=True):
                column[n] = value[0]
        return cls(recommender, kept.with_tensors(columns))

    @classmethod
    def join(cls, sessions: Sequence["Session"]) -> "SessionBatch":
        """Copy single sessions of one recommender into a batch.

        Raises:
            UsageError: there are none, or they belong to different recommenders.
        """
        recommenders = {id(session.recommender): session.recommender for session in sessions}
        if len(recommenders) != 1:
            raise UsageError(f"sessions of one recommender can be joined, got those of {len(recommenders)}")
        columns = zip(*(session.batch.kept.tensors() for session in sessions), strict=True)
        first = sessions[0].batch
        return cls(first.recommender, first.kept.with_tensors([torch.cat(column) for column in columns]))

    @classmethod
    def from_bytes(cls, recommender: "Recommender", data: Sequence[bytes]) -> "SessionBatch":
        """Read what to_bytes wrote.

        Raises:
            UsageError: bytes are damaged, of another version or of another model.
        """
        template = _nothing(recommender, 1)
        rows = [template.rows([]).tensors(), *(_read(recommender, one, template) for one in data)]
        return cls(recommender, template.with_tensors([torch.cat(column) for column in zip(*rows, strict=True)]))

    def to_bytes(self) -> list[bytes]:
        """Each session as bytes: magic, version, the model's fingerprint, the numbers, and a checksum.

        The number of bytes depends on the model alone.
        """
        head = _HEADER.pack(MAGIC, VERSION, bytes.fromhex(self.recommender.fingerprint))
        columns = [np.ascontiguousarray(x.numpy()) for x in self._kept.tensors()]
        bodies = (head + b"".join(column[n].tobytes() for column in columns) for n in range(len(self)))
        return [body + _digest(body) for body in bodies]

    @property
    def kept(self) -> _Kept:
        """The state, for joining."""
        return self._kept

    @property
    def lengths(self) -> list[int]:
        """Items in each history so far."""
        return [int(n) for n in self._kept.state.length]

    @property
    def histograms(self) -> list[Tensor]:
        """The codeword histograms (N, B, W) of the LISA layers, first layer first."""
        return [layer.histogram for layer in self._kept.state.layers if hasattr(layer, "histogram")]

    @property
    def hidden(self) -> Tensor:
        """Hidden states (N, D) at the newest items."""
        return self._kept.state.hidden

    def __len__(self) -> int:
        """N."""
        return len(self._kept.recent)

    def __getitem__(self, n: int) -> "Session":
        """Session n, on its own from now on."""
        if not -len(self) <= n < len(self):
            raise IndexError(f"session {n} of {len(self)}")
        return Session(SessionBatch(self.recommender, self._kept.rows([n])))

    def __iter__(self) -> Iterator["Session"]:
        """The single sessions, each on its own from now on."""
        return (self[n] for n in range(len(self)))

    @torch.no_grad()
    def update(self, items: Sequence[Any], times: Sequence[float] | None = None, *, on_unknown: str = "raise") -> None:
        """Append one item to every session.

        Args:
            items: N raw ids.
            times: N times in seconds; needed when the model's histogram fades with time.
            on_unknown: raise (then no session changes), warn or skip (then the session of that item does not).

        Raises:
            UsageError: a wrong number of items, an unknown one, or a time that is missing, not finite or goes back.
        """
        check_policy(on_unknown)
        if len(items) != len(self) or (times is not None and len(times) != len(self)):
            raise UsageError(f"give one item, and one time where times are given, for each of {len(self)} sessions")
        numbers, known = numbers_of(self.recommender.ids, items, on_unknown, "update")
        seconds = self._seconds(times)
        if known.all():
            self._kept = self._appended(self._kept, numbers, seconds)
        elif known.any():
            rows = torch.from_numpy(np.flatnonzero(known))
            moved = self._appended(self._kept.rows(rows), numbers, seconds[rows])
            columns = zip(self._kept.tensors(), moved.tensors(), strict=True)
            self._kept = self._kept.with_tensors([old.index_copy(0, rows, new) for old, new in columns])

    @torch.no_grad()
    def recommend(
        self,
        k: int = 10,
        *,
        filter_seen: bool = True,
        candidates: Sequence[Any] | None = None,
        on_unknown: str = "raise",
    ) -> list["Recommendation"]:
        """The k best items for every session.

        Args:
            k: at least 1.
            filter_seen: leave out the newest max_length items of the history.
            candidates: ids to choose from; None takes the whole catalogue.
            on_unknown: what candidates do that the model does not know: raise, warn or skip.

        Raises:
            UsageError: a session has no item yet, a candidate is unknown under raise, or k is below 1.
        """
        check_policy(on_unknown)
        empty = (self._kept.state.length == 0).nonzero().flatten().tolist()
        if empty:
            raise UsageError(f"session {empty[0]} has no item yet: update it first")
        seen = [row[row >= 0].astype(np.int64) for row in self._kept.recent.numpy()] if filter_seen else None
        allowed: list[Numbers] | None = None
        if candidates is not None:
            allowed = [np.unique(self.recommender.numbers(candidates, on_unknown, "candidates"))] * len(self)
        return self.recommender.best(self.hidden, k, seen, allowed)

    def _seconds(self, times: Sequence[float] | None) -> Tensor:
        """Times of the new items (N,) float64; those of the last ones where none are needed."""
        if times is None:
            if self.recommender.needs_times:
                raise UsageError("this model's histogram fades with time (histogram_decay: time): give the times")
            return self._kept.time
        try:
            seconds = torch.tensor([float(time) for time in times], dtype=torch.float64)
        except (TypeError, ValueError) as error:
            raise UsageError(f"times must be numbers of seconds: {error}") from error
        if not bool(seconds.isfinite().all()) or bool((seconds < self._kept.time).any()):
            raise UsageError("times must be finite and never go back")
        return seconds

    def _appended(self, kept: _Kept, numbers: Numbers, seconds: Tensor) -> _Kept:
        """The state after one more item each; the first item has no gap before it."""
        items = torch.from_numpy(numbers)
        gaps = None
        if self.recommender.needs_times:
            gaps = (seconds - kept.time).nan_to_num(0.0).float() / self.recommender.bundle.time_unit
        state = self.recommender.network.step(kept.state, self.recommender.network.items.view(items), gaps)
        column = (kept.state.length % kept.recent.shape[1]).unsqueeze(1)
        recent = kept.recent.scatter(1, column, items.to(torch.int32).unsqueeze(1))
        return _Kept(state, recent, seconds)


class Session:
    """One user whose history goes on: `update`, `recommend`, `to_bytes`. See `SessionBatch` for what it equals."""

    def __init__(self, batch: SessionBatch) -> None:
        self.batch = batch

    @property
    def recommender(self) -> "Recommender":
        """The model behind it."""
        return self.batch.recommender

    def __len__(self) -> int:
        """Items in the history so far."""
        return self.batch.lengths[0]

    def update(self, item: Any, time: float | None = None, *, on_unknown: str = "raise") -> None:
        """Append one item; see `SessionBatch.update`."""
        self.batch.update([item], None if time is None else [time], on_unknown=on_unknown)

    def recommend(
        self,
        k: int = 10,
        *,
        filter_seen: bool = True,
        candidates: Sequence[Any] | None = None,
        on_unknown: str = "raise",
    ) -> "Recommendation":
        """The k best items; see `SessionBatch.recommend`."""
        return self.batch.recommend(k, filter_seen=filter_seen, candidates=candidates, on_unknown=on_unknown)[0]

    def to_bytes(self) -> bytes:
        """All of the session, for `Recommender.from_bytes`; its size depends on the model alone."""
        return self.batch.to_bytes()[0]


def _nothing(recommender: "Recommender", n: int) -> _Kept:
    try:
        state = recommender.network.init_state(n)
    except ValueError as error:
        raise UsageError(
            f"{recommender.bundle.model} has no sessions: {error}; recommend() takes any history"
        ) from error
    recent = torch.full((n, recommender.max_length), -1, dtype=torch.int32)
    return _Kept(state, recent, torch.full((n,), float("nan"), dtype=torch.float64))


def _after(recommender: "Recommender", history: History) -> _Kept:
    """One session after a history."""
    kept = _nothing(recommender, 1)
    state = recommender.network.state_of(*recommender.sequences([history]))
    width, length = recommender.max_length, len(history.items)
    newest = np.arange(max(length - width, 0), length)
    recent: npt.NDArray[np.int32] = kept.recent.numpy().copy()
    recent[0, newest % width] = history.items[newest]
    time = kept.time if history.times is None else torch.tensor([history.times[-1]], dtype=torch.float64)
    return replace(kept, state=state, recent=torch.from_numpy(recent), time=time)


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()


def _read(recommender: "Recommender", given: Any, template: _Kept) -> list[Tensor]:
    """The tensors of one session, each (1, ...)."""
    if not isinstance(given, bytes | bytearray | memoryview):
        raise UsageError(f"a session is bytes that to_bytes gave, got a {type(given).__name__}")
    data = bytes(given)
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if len(data) < _HEADER.size + _DIGEST_BYTES or not data.startswith(MAGIC):
        raise UsageError(f"these {len(data)} bytes are no session")
    _, version, model = _HEADER.unpack_from(body)
    if version != VERSION:
        raise UsageError(f"the session has version {version}, this program reads version {VERSION}: start it again")
    if _digest(body) != digest:
        raise UsageError("the session is damaged: it does not have its checksum; start it again")
    if model.hex() != recommender.fingerprint:
        raise UsageError("the session belongs to another model: start it again with the user's history")
    if len(body) != _HEADER.size + sum(like.nbytes for like in template.tensors()):
        raise UsageError("the session is damaged: it is not as long as this model's are; start it again")
    tensors, at = [], _HEADER.size
    for like in template.tensors():
        array = np.frombuffer(body, dtype=like.numpy().dtype, count=like.numel(), offset=at).reshape(like.shape)
        tensors.append(torch.from_numpy(array.copy()))
        at += array.nbytes
    return tensors
