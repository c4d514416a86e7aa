"""Top-k recommendations for any history of raw ids."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from recbole_lisa.errors import UsageError
from recbole_lisa.layers.sequence_encoder import ItemView, Sequences
from recbole_lisa.serving.bundle import Bundle, Network
from recbole_lisa.serving.export import fingerprint_of, read_export
from recbole_lisa.serving.inputs import History, Numbers, listed, numbers_of, read_histories
from recbole_lisa.serving.ranking import positions_of, rank
from recbole_lisa.serving.sessions import Session, SessionBatch

BATCH = 128
"""Histories encoded together."""


class Recommendation(NamedTuple):
    """Items for one user, best first, with their scores; fewer than k where no more are left."""

    items: list[str]
    scores: list[float]


class Recommender:
    """A trained model that recommends, without RecBole.

    Histories hold raw ids (what is no text counts as its text), oldest first, of any users. Of a history longer than
    the model's window the newest items count, as in the model's own evaluation; a session keeps all of it.

    Args:
        bundle: the model.
        fingerprint: identifies the model in the bytes of sessions; None works it out.
    """

    def __init__(self, bundle: Bundle, fingerprint: str | None = None) -> None:
        self.bundle = bundle
        self.ids = bundle.ids
        self.network = Network(bundle)
        self.max_length: int = bundle.encoder["max_length"]
        self.needs_times = any(layer.needs_time_gaps for layer in self.network.layers())
        self._fingerprint = fingerprint

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "Recommender":
        """Read an export that `recbole-lisa export` wrote.

        Raises:
            UsageError: it is missing, damaged, or of a newer version.
        """
        bundle, manifest = read_export(folder)
        return cls(bundle, manifest["fingerprint"])

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all that the model consists of, as hexadecimal digits."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint_of(self.bundle)
        return self._fingerprint

    @torch.no_grad()
    def recommend(
        self,
        histories: Sequence[Any],
        k: int = 10,
        *,
        times: Sequence[Any] | None = None,
        filter_seen: bool = True,
        candidates: Sequence[Any] | None = None,
        on_unknown: str = "raise",
    ) -> list[Recommendation]:
        """The k best items for each history.

        Args:
            histories: one list of ids a user.
            k: at least 1.
            times: seconds of each interaction beside it; needed when the model's histogram fades with time.
            filter_seen: leave out the items of the history itself, all of them.
            candidates: ids to choose from, one list for all or one list a history; None takes the whole catalogue.
            on_unknown: what ids do that the model does not know: raise, warn (and leave them out), or skip (silently).

        Returns:
            One recommendation a history, in their order; empty where warn or skip leave no item in a history.

        Raises:
            UsageError: an argument is wrong, an id unknown under raise, or a history empty under raise.
        """
        read = read_histories(self.ids, histories, times, on_unknown)
        self._check_times(times is not None)
        empty = [n for n, history in enumerate(read) if not len(history.items)]
        if empty and on_unknown == "raise":
            raise UsageError(f"history {empty[0]} is empty: there is nothing to recommend from; leave it out")
        filled = [n for n, history in enumerate(read) if len(history.items)]
        chosen = [read[n] for n in filled]
        groups = self._candidates(candidates, len(read), on_unknown)
        seen = [history.items for history in chosen] if filter_seen else None
        found = self.best(self.encode(chosen), k, seen, groups and [groups[n] for n in filled]) if chosen else []
        answers = [Recommendation([], [])] * len(read)
        for n, answer in zip(filled, found, strict=True):
            answers[n] = answer
        return answers

    def start(self, history: Sequence[Any] = (), times: Sequence[float] | None = None) -> Session:
        """Begin a session after a history of any length; see `Session`.

        Args:
            history: ids, oldest first.
            times: seconds of each; needed when the model's histogram fades with time.

        Raises:
            UsageError: an id is unknown, or the model has no state of constant size.
        """
        return self.start_many([history], None if times is None else [times])[0]

    def start_many(self, histories: Sequence[Any], times: Sequence[Any] | None = None) -> SessionBatch:
        """Begin one session a history, all in one batch; arguments and errors as in start."""
        return SessionBatch.start(self, read_histories(self.ids, histories, times, "raise"))

    def from_bytes(self, data: bytes) -> Session:
        """Continue a session where `Session.to_bytes` left it, to the bit.

        Raises:
            UsageError: the bytes are damaged, of another version or of another model.
        """
        return SessionBatch.from_bytes(self, [data])[0]

    def encode(self, histories: Sequence[History]) -> Tensor:
        """Hidden states (N, D) after the newest window of each history, none of them empty."""
        hidden = torch.empty(
            len(histories), self.bundle.hidden_size, dtype=self.network.position_embedding.weight.dtype
        )
        by_length = np.argsort([len(history.items) for history in histories], kind="stable")
        for start in range(0, len(by_length), BATCH):
            batch = by_length[start : start + BATCH]
            sequences, view = self.sequences([histories[n] for n in batch], self.max_length)
            hidden[batch] = self.network.encode_last(sequences, view).hidden
        return hidden

    def sequences(self, histories: Sequence[History], longest: int | None = None) -> tuple[Sequences, ItemView]:
        """Histories as the encoder takes them: N right-padded sequences and the view of their distinct items.

        Args:
            histories: none of them empty.
            longest: how many items of each to keep at most, the newest; None keeps all.
        """
        self._check_times(histories[0].times is not None)
        keep = [min(len(history.items), longest or len(history.items)) for history in histories]
        items = np.zeros((len(histories), max(keep)), dtype=np.int64)
        gaps = np.zeros(items.shape, dtype=np.float32)
        for n, (history, length) in enumerate(zip(histories, keep, strict=True)):
            items[n, :length] = history.items[-length:]
            if history.times is not None:
                gaps[n, :length] = np.diff(history.times, prepend=history.times[:1])[-length:]
        valid = torch.arange(items.shape[1]) < torch.tensor(keep).unsqueeze(1)
        distinct, index = np.unique(items, return_inverse=True)
        time_gaps = torch.from_numpy(gaps) / self.bundle.time_unit if self.needs_times else None
        sequences = Sequences(torch.from_numpy(index.reshape(items.shape)), valid, time_gaps)
        return sequences, self.network.items.view(torch.from_numpy(distinct))

    def best(
        self, hidden: Tensor, k: int, left_out: Sequence[Numbers] | None, candidates: Sequence[Numbers] | None = None
    ) -> list[Recommendation]:
        """Rank items for hidden states.

        Args:
            hidden: (N, D).
            k: at least 1.
            left_out: item numbers that each must not get.
            candidates: sorted item numbers that each may get, the same object where they are the same; None for all.

        Raises:
            UsageError: k is below 1.
        """
        if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
            raise UsageError(f"k must be a whole number of at least 1, got {k!r}")
        targets = self.network.items.targets
        if candidates is None:
            return self._named(*rank(targets, hidden, int(k), left_out))
        answers = [Recommendation([], [])] * len(hidden)
        groups: dict[int, list[int]] = {}
        for n, own in enumerate(candidates):
            groups.setdefault(id(own), []).append(n)
        for rows in groups.values():
            allowed = candidates[rows[0]]
            if not len(allowed):
                continue
            own_left_out = None if left_out is None else [positions_of(left_out[n], allowed) for n in rows]
            numbers = torch.from_numpy(allowed)
            scores, columns = rank(targets.take(numbers), hidden[rows], int(k), own_left_out)
            for n, answer in zip(rows, self._named(scores, numbers[columns]), strict=True):
                answers[n] = answer
        return answers

    def numbers(self, raw: Sequence[Any], on_unknown: str, where: str) -> Numbers:
        """Numbers of raw ids under a policy, those of unknown ids left out; see `numbers_of`."""
        return numbers_of(self.ids, raw, on_unknown, where)[0]

    def _candidates(self, candidates: Sequence[Any] | None, n: int, on_unknown: str) -> list[Numbers] | None:
        if candidates is None:
            return None
        given = listed(candidates, "candidates")
        if not any(isinstance(one, list | tuple | set | np.ndarray) for one in given):
            return [np.unique(self.numbers(given, on_unknown, "candidates"))] * n
        if len(given) != n:
            raise UsageError(
                f"candidates must be one list of ids, or one for each of the {n} histories: got {len(given)}"
            )
        return [np.unique(self.numbers(c, on_unknown, f"candidates {i}")) for i, c in enumerate(given)]

    def _named(self, scores: Tensor, numbers: Tensor) -> list[Recommendation]:
        answers = []
        for row_scores, row in zip(scores.tolist(), numbers.tolist(), strict=True):
            found = sum(score > float("-inf") for score in row_scores)
            answers.append(Recommendation([self.ids.raw(number) for number in row[:found]], row_scores[:found]))
        return answers

    def _check_times(self, given: bool) -> None:
        if self.needs_times and not given:
            raise UsageError(
                "this model's histogram fades with time (histogram_decay: time): give the times in seconds"
            )
