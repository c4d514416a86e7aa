"""Users whose histories go on: constant size, constant time per item, saved to bytes and back to the bit."""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from recbole_lisa.errors import UsageError
from recbole_lisa.layers.session_encoder import EncoderState
from recbole_lisa.serving.inputs import History, Numbers, check_policy, in_order, numbers_of, seconds_of
from recbole_lisa.serving.scorer import Recommendation, Scorer

MAGIC, VERSION = b"RLSES", 1
_HEADER = struct.Struct("<5sB32s")
_DIGEST_BYTES = 16


@dataclass(frozen=True)
class Kept:
    """The state of N users between two items."""

    state: EncoderState  # state of the encoder
    recent: Tensor  # (N, R) int32, the newest R = max_length item numbers, item i in column i mod R; -1 is none
    time: Tensor  # (N,) float64, seconds of the newest item; NaN before the first

    @classmethod
    def empty(cls, scorer: Scorer, n: int) -> "Kept":
        """N users without an item."""
        try:
            state = scorer.network.init_state(n)
        except ValueError as error:
            raise UsageError(f"{scorer.bundle.model} has no sessions: {error}; recommend takes any history") from error
        recent = torch.full((n, scorer.max_length), -1, dtype=torch.int32)
        return cls(state, recent, torch.full((n,), float("nan"), dtype=torch.float64))

    def tensors(self) -> list[Tensor]:
        """All tensors, each (N, ...), in the order of the bytes."""
        state, recent, time = self.state, self.recent, self.time
        of_layers = (x for layer in state.layers for x in layer)
        return [state.length, time, recent, state.hidden, *of_layers, *state.convolved]

    def with_tensors(self, tensors: Sequence[Tensor]) -> "Kept":
        """The same structure around other tensors in the order of `tensors`."""
        length, time, recent, hidden, *rest = tensors
        left = iter(rest)
        layers = tuple(type(layer)(*(next(left) for _ in layer)) for layer in self.state.layers)
        return Kept(EncoderState(layers, hidden, length, tuple(left)), recent, time)

    def rows(self, rows: Any) -> "Kept":
        """Some of the users."""
        return self.with_tensors([x[rows] for x in self.tensors()])


class SessionBatch:
    """N sessions that are updated and asked together; `batch[n]` and iteration give single ones.

    Equal to the encoder over the whole history, of which item i stands at position min(i, max_length - 1): see
    `SessionEncoder`. filter_seen knows the newest max_length items, so that the size stays constant.
    """

    def __init__(self, recommender: Scorer, kept: Kept) -> None:
        self.recommender, self.kept = recommender, kept

    @classmethod
    @torch.no_grad()
    def start(cls, recommender: Scorer, histories: Sequence[History]) -> "SessionBatch":
        """Begin sessions after histories, each in O(L); a UsageError where the model has no sessions."""
        kept = Kept.empty(recommender, len(histories))
        columns = kept.tensors()
        for n, history in enumerate(histories):
            if len(history.items):
                for column, value in zip(columns, _after(recommender, history).tensors(), strict=True):
                    column[n] = value[0]
        return cls(recommender, kept.with_tensors(columns))

    @classmethod
    def join(cls, sessions: Sequence["Session"]) -> "SessionBatch":
        """Copy single sessions into a batch; a UsageError where they do not belong to one recommender."""
        sessions = in_order(sessions, "sessions", "sessions")
        if wrong := [type(session).__name__ for session in sessions if not isinstance(session, Session)]:
            raise UsageError(f"sessions can be joined, got {wrong[0]}")
        recommenders = {id(session.recommender) for session in sessions}
        if len(recommenders) != 1:
            raise UsageError(f"sessions of one recommender can be joined, got those of {len(recommenders)}")
        columns = zip(*(session.batch.kept.tensors() for session in sessions), strict=True)
        first = sessions[0].batch
        return cls(first.recommender, first.kept.with_tensors([torch.cat(column) for column in columns]))

    @classmethod
    def from_bytes(cls, recommender: Scorer, data: Sequence[bytes]) -> "SessionBatch":
        """Read the bytes of `to_bytes`; a UsageError where they are damaged, of another version or another model."""
        template, data = Kept.empty(recommender, 1), in_order(data, "data", "bytes of sessions")
        rows = [template.rows([]).tensors(), *(_read(recommender, one, template) for one in data)]
        return cls(recommender, template.with_tensors([torch.cat(column) for column in zip(*rows, strict=True)]))

    def to_bytes(self) -> list[bytes]:
        """Each session as bytes: magic, version, the model's fingerprint, the numbers, and a checksum."""
        head = _HEADER.pack(MAGIC, VERSION, bytes.fromhex(self.recommender.fingerprint))
        columns = [np.ascontiguousarray(x.numpy()) for x in self.kept.tensors()]
        bodies = (head + b"".join(column[n].tobytes() for column in columns) for n in range(len(self)))
        return [body + _digest(body) for body in bodies]

    @property
    def lengths(self) -> list[int]:
        """Items in each history so far."""
        return list(map(int, self.kept.state.length))

    @property
    def histograms(self) -> list[Tensor]:
        """The codeword histograms (N, B, W) of the LISA layers, first layer first."""
        return [layer.histogram for layer in self.kept.state.layers if hasattr(layer, "histogram")]

    @property
    def hidden(self) -> Tensor:
        """Hidden states (N, D) at the newest items, without the time of a question."""
        return self.kept.state.hidden

    def __len__(self) -> int:
        """N."""
        return len(self.kept.recent)

    @overload
    def __getitem__(self, n: int) -> "Session": ...
    @overload
    def __getitem__(self, n: slice) -> "SessionBatch": ...
    def __getitem__(self, n: int | slice) -> "Session | SessionBatch":
        """A copy of session n, or of the batch of the sessions of a slice."""
        try:
            rows = range(len(self))[n]
        except (IndexError, TypeError) as error:
            raise type(error)(
                f"session {n!r} of {len(self)}: give a whole number below {len(self)}, or a slice"
            ) from None
        if isinstance(rows, range):
            return SessionBatch(self.recommender, self.kept.rows(list(rows)))
        return Session(SessionBatch(self.recommender, self.kept.rows([rows])))

    def __iter__(self) -> Iterator["Session"]:
        """Copies of the single sessions."""
        return (self[n] for n in range(len(self)))

    @torch.no_grad()
    def update(self, items: Sequence[Any], times: Sequence[float] | None = None, *, on_unknown: str = "raise") -> None:
        """Append one of N items to every session, with N times in seconds if the model needs them.

        An unknown item changes no session under raise, and not its own session under warn and skip.

        Raises:
            UsageError: A wrong number of items, an unknown one, or a time that is missing, not finite or goes back.
        """
        check_policy(on_unknown)
        items = in_order(items, "items")
        times = None if times is None else in_order(times, "times", "seconds")
        if len(items) != len(self) or (times is not None and len(times) != len(self)):
            raise UsageError(f"give one item, and one time where times are given, for each of {len(self)} sessions")
        numbers, known = numbers_of(self.recommender.ids, items, on_unknown, "update")
        seconds = self._seconds(times)
        if known.all():
            self.kept = self._appended(self.kept, numbers, seconds)
        elif known.any():
            rows = torch.from_numpy(np.flatnonzero(known))
            moved = self._appended(self.kept.rows(rows), numbers, seconds[rows])
            columns = zip(self.kept.tensors(), moved.tensors(), strict=True)
            self.kept = self.kept.with_tensors([old.index_copy(0, rows, new) for old, new in columns])

    @torch.no_grad()
    def recommend(
        self,
        k: int = 10,
        *,
        at: float | Sequence[float] | None = None,
        filter_seen: bool = True,
        candidates: Sequence[Any] | None = None,
        on_unknown: str = "raise",
    ) -> list[Recommendation]:
        """The k best items for every session; arguments as in `Recommender.recommend`, one list of candidates for all.

        Raises:
            UsageError: A session has no item yet, a candidate is unknown under raise, or k or at is wrong.
        """
        check_policy(on_unknown, filter_seen)
        if 0 in self.lengths:
            name = "the session" if len(self) == 1 else f"session {self.lengths.index(0)}"
            raise UsageError(f"{name} has no item yet: update it first")
        seen = [row[row >= 0].astype(np.int64) for row in self.kept.recent.numpy()] if filter_seen else None
        allowed: list[Numbers] | None = None
        if candidates is not None:
            numbers, _ = numbers_of(self.recommender.ids, candidates, on_unknown, "candidates")
            allowed = [np.unique(numbers)] * len(self)
        hidden = self.recommender.network.at(self.hidden, self.recommender.query(at, self.kept.time.numpy()))
        return self.recommender.best(hidden, k, seen, allowed)

    def _seconds(self, times: Sequence[float] | None) -> Tensor:
        """Times of the new items (N,) float64; those of the last ones if the model needs none."""
        self.recommender.check_times(times is not None)
        if times is None:
            return self.kept.time
        seconds = torch.from_numpy(seconds_of(times, "times"))
        if not bool(seconds.isfinite().all()) or bool((seconds < self.kept.time).any()):
            raise UsageError("times must be finite and never go back")
        self.recommender.check_unit(seconds.numpy())
        return seconds

    def _appended(self, kept: Kept, numbers: Numbers, seconds: Tensor) -> Kept:
        """The state after one more item each; the first item has no gap before it."""
        items = torch.from_numpy(numbers)
        gaps = None
        if self.recommender.needs_times:
            gaps = (seconds - kept.time).nan_to_num(0.0).float() / self.recommender.bundle.time_unit
        state = self.recommender.network.step(kept.state, self.recommender.network.items.view(items), gaps)
        column = (kept.state.length % kept.recent.shape[1]).unsqueeze(1)
        recent = kept.recent.scatter(1, column, items.to(torch.int32).unsqueeze(1))
        return Kept(state, recent, seconds)


class Session:
    """One user whose history goes on; the methods are those of `SessionBatch` for a single session."""

    def __init__(self, batch: SessionBatch) -> None:
        self.batch = batch

    def __copy__(self) -> "Session":
        """A session that goes on independently."""
        return self.batch[0]

    @property
    def recommender(self) -> Scorer:
        """The model of the session."""
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
        at: float | None = None,
        filter_seen: bool = True,
        candidates: Sequence[Any] | None = None,
        on_unknown: str = "raise",
    ) -> Recommendation:
        """The k best items; see `SessionBatch.recommend`."""
        return self.batch.recommend(k, at=at, filter_seen=filter_seen, candidates=candidates, on_unknown=on_unknown)[0]

    def to_bytes(self) -> bytes:
        """The whole session, for `Recommender.from_bytes`; its size depends on the model alone."""
        return self.batch.to_bytes()[0]


def _after(scorer: Scorer, history: History) -> Kept:
    """One session after a history."""
    kept = Kept.empty(scorer, 1)
    state = scorer.network.state_of(*scorer.sequences([history]))
    width, length = scorer.max_length, len(history.items)
    newest = np.arange(max(length - width, 0), length)
    recent = kept.recent.clone()
    recent[0, newest % width] = torch.from_numpy(history.items[newest]).int()
    time = kept.time if history.times is None else torch.tensor([history.times[-1]], dtype=torch.float64)
    return replace(kept, state=state, recent=recent, time=time)


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()


def _read(scorer: Scorer, data: Any, template: Kept) -> list[Tensor]:
    """The tensors of one session, each (1, ...)."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise UsageError(f"a session is bytes that to_bytes gave, got a {type(data).__name__}")
    data = bytes(data)
    body = data[:-_DIGEST_BYTES]
    if len(data) < _HEADER.size + _DIGEST_BYTES or not data.startswith(MAGIC):
        raise UsageError(f"these {len(data)} bytes are no session")
    _, version, model = _HEADER.unpack_from(body)
    if version != VERSION:
        raise UsageError(f"the session has version {version}, this program reads version {VERSION}: start it again")
    if model.hex() != scorer.fingerprint:
        raise UsageError("the session belongs to another model: start it again with the user's history")
    tensors, at = [], _HEADER.size
    fits = _digest(body) == data[len(body) :] and len(body) == at + sum(like.nbytes for like in template.tensors())
    for like in template.tensors() if fits else ():
        array = np.frombuffer(body, dtype=like.numpy().dtype, count=like.numel(), offset=at).reshape(like.shape)
        tensors.append(torch.from_numpy(array.copy()))
        at += array.nbytes
    is_right = fits and 0 <= int(tensors[0]) < 2**53 and not bool(tensors[1].isinf())
    is_right = is_right and int(tensors[2].min()) >= -1 and int(tensors[2].max()) < len(scorer.ids)
    if not is_right or not all(bool(x.isfinite().all()) for x in tensors[3:]):
        raise UsageError("the session is damaged: its checksum, length or numbers are wrong; start it again")
    return tensors
