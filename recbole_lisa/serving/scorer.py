"""A trained model that encodes histories and ranks items, as recommendations and sessions need it."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recbole_lisa.errors import UsageError, shown
from recbole_lisa.layers.item_store import CodedTargets, Targets
from recbole_lisa.layers.query_time import TIMES, Query
from recbole_lisa.layers.sequence_encoder import ItemView, Sequences
from recbole_lisa.ops.top_k import Best, best_of_row, merge
from recbole_lisa.serving.bundle import Bundle, Network
from recbole_lisa.serving.export import fingerprint_of
from recbole_lisa.serving.inputs import History, Numbers, seconds_of

BATCH = 128  # histories encoded together
_OTHER_UNIT = 100  # times so many times larger or smaller than those of the data set have another unit
INDEXED_ITEMS = 10**5  # coded items from which an index makes rankings faster
MAX_QUERIES = 64  # hidden states scored together: with more, the look-up tables of LISA's codebooks leave the cache
BLOCK_SCORES = 2**19  # scores that exist at once


class Recommendation(NamedTuple):
    """Items for one user, best first, with their scores; fewer than k where no more are left."""

    items: list[str]
    scores: list[float]


class Scorer:
    """Histories of item numbers to hidden states to ranked items; `fingerprint` names the model in sessions."""

    def __init__(self, bundle: Bundle, fingerprint: str | None = None) -> None:
        self.bundle = bundle
        self.ids = bundle.ids
        self.network = Network(bundle)
        self.max_length: int = bundle.encoder["max_length"]
        self.window = None if self.network.any_length else self.max_length  # newest items that encode() reads
        self.reads_query_time = self.network.query_time is not None
        self.needs_times = self.reads_query_time or any(layer.needs_time_gaps for layer in self.network.layers())
        self._fingerprint = fingerprint
        targets = self.network.items.targets
        if isinstance(targets, CodedTargets) and len(targets) >= INDEXED_ITEMS:
            targets.build_index()

    def __deepcopy__(self, _: Any) -> "Scorer":
        """Itself, as it never changes: copies of a session stay sessions of one recommender."""
        return self

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all that the model consists of, as hexadecimal digits."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint_of(self.bundle)
        return self._fingerprint

    def encode(self, histories: Sequence[History]) -> Tensor:
        """Hidden states (N, D) after the newest window of each history, none of them empty, or after the whole one.

        `network.at` adds the time of a question.
        """
        dtype = next(self.network.parameters()).dtype
        hidden = torch.empty(len(histories), self.bundle.hidden_size, dtype=dtype)
        by_length = np.argsort([len(history.items) for history in histories], kind="stable")
        for start in range(0, len(by_length), BATCH):
            batch = by_length[start : start + BATCH]
            sequences, view = self.sequences([histories[n] for n in batch], self.window)
            hidden[batch] = self.network.encode_last(sequences, view).hidden
        return hidden

    def query(self, at: Any, newest: Sequence[float] | npt.NDArray[np.float64]) -> Query | None:
        """The times of questions to N histories, for `network.at`; None for a model without query_time.

        at is seconds since 1970 or a date (UTC where it names no zone), one or one for each history; None is now, or
        the newest item where that is later. newest (N,) are the seconds of the newest items. A UsageError where at is
        before one, or not read.
        """
        if not self.reads_query_time:
            if at is not None:
                raise UsageError(f"at is {at!r}, but this model reads no time of a question (query_time): leave it out")
            return None
        newest = np.asarray(newest, dtype=np.float64)
        if at is None:
            at = np.maximum(time.time(), newest)
        is_one = isinstance(at, str | bytes) or not isinstance(at, Iterable) or getattr(at, "ndim", 1) == 0
        times = seconds_of([at] * len(newest) if is_one else at, "at")
        if times.shape != newest.shape:
            raise UsageError(f"at must be one number, or one for each of {len(newest)} histories, got {len(times)}")
        has_time = np.isneginf(newest) | (newest >= TIMES[0])  # an empty history has no newest item
        right = has_time & (times >= np.maximum(newest, TIMES[0])) & (times <= TIMES[1])
        if not right.all():
            n = int(right.argmin())
            raise UsageError(
                f"at is {times[n]:.15g}, the newest item has {newest[n]:.15g}: both must be seconds since 1970, from "
                "1973 to 2103, and at must not be before the item"
            )
        return Query(torch.from_numpy((times - newest).astype(np.float32)), torch.from_numpy(times))

    def sequences(self, histories: Sequence[History], longest: int | None = None) -> tuple[Sequences, ItemView]:
        """N histories, none empty, as the encoder reads them; longest keeps only so many newest items of each."""
        self.check_times(histories[0].times is not None)
        lengths = [min(len(history.items), longest or len(history.items)) for history in histories]
        items = np.zeros((len(histories), max(lengths)), dtype=np.int64)
        gaps = np.zeros(items.shape, dtype=np.float32)
        for n, (history, length) in enumerate(zip(histories, lengths, strict=True)):
            items[n, :length] = history.items[-length:]
            if history.times is not None:
                gaps[n, :length] = np.diff(history.times, prepend=history.times[:1])[-length:]
        valid = torch.arange(items.shape[1]) < torch.tensor(lengths).unsqueeze(1)
        distinct, index = np.unique(items, return_inverse=True)
        time_gaps = torch.from_numpy(gaps) / self.bundle.time_unit if self.needs_times else None
        sequences = Sequences(torch.from_numpy(index.reshape(items.shape)), valid, time_gaps)
        return sequences, self.network.items.view(torch.from_numpy(distinct))

    def best(
        self, hidden: Tensor, k: int, left_out: Sequence[Numbers] | None, candidates: Sequence[Numbers] | None = None
    ) -> list[Recommendation]:
        """Rank items for hidden states (N, D), k at least 1.

        left_out are item numbers that each must not get, candidates sorted numbers that each may get, the same object
        where they are the same; None for all.
        """
        if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
            raise UsageError(f"k must be a whole number of at least 1, got {shown(k)}")
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

    def check_times(self, given: bool) -> None:
        """Refuse a call without times where the model needs them."""
        if self.needs_times and not given:
            setting = "query_time" if self.reads_query_time else "histogram_decay: time"
            raise UsageError(f"this model reads the times of items ({setting}): give the times in seconds")

    def check_unit(self, times: npt.NDArray[np.float64]) -> None:
        """Refuse times (K,) of another unit than the data set has, such as milliseconds for seconds."""
        newest, latest = float(times.max(initial=0)), self.bundle.latest_time or 0
        # Times may count from any start, so small ones pass, unless they are dates since 1970.
        if 0 < latest < newest / _OTHER_UNIT or TIMES[0] <= newest < latest / _OTHER_UNIT:
            raise UsageError(
                f"the newest time is {newest:.15g}, the latest of the data set {self.bundle.dataset} is {latest:.15g}: "
                "both must have the same unit (seconds)"
            )

    def _named(self, scores: Tensor, numbers: Tensor) -> list[Recommendation]:
        answers = []
        if not bool((scores < float("inf")).all()):  # NaN is not
            raise UsageError(f"the scores of this {self.bundle.model} are no finite numbers: train it again")
        for row_scores, row in zip(scores.tolist(), numbers.tolist(), strict=True):
            n = sum(score > float("-inf") for score in row_scores)
            answers.append(Recommendation([self.ids.raw(number) for number in row[:n]], row_scores[:n]))
        return answers


def rank(targets: Targets, hidden: Tensor, k: int, left_out: Sequence[Numbers] | None = None) -> Best:
    """Find the k best of V items for every hidden state (N, D), without those that are left_out for it.

    Scores and ids are (N, min(k, V)); a score of -inf stands for no item.
    """
    k = min(k, len(targets))
    parts = [Best(hidden.new_empty(0, k), torch.empty(0, k, dtype=torch.int64))]
    for start in range(0, len(hidden), MAX_QUERIES):
        queries = slice(start, start + MAX_QUERIES)
        parts.append(_rank_together(targets, hidden[queries], k, left_out and left_out[queries]))
    return Best(torch.cat([part.scores for part in parts]), torch.cat([part.ids for part in parts]))


def positions_of(items: Numbers, catalogue: Numbers) -> Numbers:
    """Positions of items in a sorted catalogue; items that it lacks are left out."""
    at = np.searchsorted(catalogue, items).clip(max=len(catalogue) - 1)
    positions: Numbers = at[catalogue[at] == items]
    return positions


def _pairs(left_out: Sequence[Numbers]) -> tuple[Tensor, Tensor]:
    """Rows (E,) and items (E,) to leave out, by item."""
    rows = np.repeat(np.arange(len(left_out)), [len(items) for items in left_out])
    items = np.concatenate([*left_out, np.empty(0, dtype=np.int64)]).astype(np.int64)
    order = np.argsort(items, kind="stable")
    return torch.from_numpy(rows[order]), torch.from_numpy(items[order])


def _rank_together(targets: Targets, hidden: Tensor, k: int, left_out: Sequence[Numbers] | None) -> Best:
    query, size = targets.query(hidden), BLOCK_SCORES // len(hidden)
    ids = targets.shortlist(query, k, left_out)
    if ids is None:
        return _in_blocks(targets, query, k, left_out, size)
    left_out = left_out and [positions_of(items, ids.numpy()) for items in left_out]
    best = _in_blocks(targets.take(ids), query, k, left_out, size)
    return Best(best.scores, ids[best.ids])


def _in_blocks(targets: Targets, query: Any, k: int, left_out: Sequence[Numbers] | None, size: int) -> Best:
    """Rank all targets, size at once."""
    blocks, pairs = [], _pairs(left_out) if left_out else None
    for start in range(0, len(targets), size):
        stop = min(start + size, len(targets))
        scores = targets.scores(query, start, stop)  # (N, m)
        if pairs is not None:
            rows, items = pairs
            low, high = torch.searchsorted(items, torch.tensor([start, stop])).tolist()
            scores[rows[low:high], items[low:high] - start] = float("-inf")
        best = best_of_row(scores, min(k, stop - start))
        blocks.append(Best(best.scores, best.ids + start))
    return blocks[0] if len(blocks) == 1 else merge(blocks, k)
