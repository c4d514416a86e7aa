"""The work of the model, off the event loop: a thread of its own, and sessions as bytes in and out."""

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import torch

from recbole_lisa.errors import UsageError
from recbole_lisa.serving import Recommendation, Recommender
from recbole_lisa.serving.http.bodies import Ids, Recommend, RecommendSession, Start, Times, Update
from recbole_lisa.serving.http.limits import RefusalError, invalid

Answer = dict[str, Any]
Result = TypeVar("Result")


class Changed(NamedTuple):
    """A session after a request: its bytes, and what the caller is told."""

    data: bytes
    answer: Answer


class Worker:
    """Runs calls of the model one after the other in a thread, while the event loop goes on.

    Args:
        most_waiting: Calls that wait or run.
        threads: Of torch.
    """

    def __init__(self, most_waiting: int, threads: int) -> None:
        self.most_waiting, self.waiting = most_waiting, 0
        # torch counts threads for each thread that calls it.
        self._executor = ThreadPoolExecutor(1, "model", initializer=functools.partial(torch.set_num_threads, threads))

    async def run(self, call: Callable[[], Result]) -> Result:
        """Wait for a call.

        Raises:
            RefusalError: 503, too many are waiting; 422, the call raised a UsageError.
        """
        if self.waiting >= self.most_waiting:
            raise RefusalError(503, "busy", f"{self.waiting} requests are waiting for the model; try again")
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, call)
        except UsageError as error:
            raise invalid(str(error)) from error
        finally:
            self.waiting -= 1

    def close(self) -> None:
        """End the thread after the call that runs."""
        self._executor.shutdown()


class Engine:
    """What each request asks of the model. All methods block.

    Args:
        recommender: The model.

    Attributes:
        has_sessions: Whether the model can keep a history at constant size.
    """

    def __init__(self, recommender: Recommender) -> None:
        self.recommender = recommender
        try:
            recommender.start()
            self.has_sessions = True
        except UsageError:
            self.has_sessions = False

    def recommend(self, asked: Recommend) -> Answer:
        """Lists for histories; under the policy warn also the ids that were left out."""
        answers = self.recommender.recommend(
            asked.histories,
            asked.k,
            times=asked.times,
            filter_seen=asked.filter_seen,
            candidates=asked.candidates,
            on_unknown="raise" if asked.on_unknown == "raise" else "skip",
        )
        told: Answer = {"recommendations": [_shown(answer) for answer in answers]}
        if asked.on_unknown == "warn":
            told["unknown"] = [self._unknown(history) for history in asked.histories]
            told.update(self._unknown_candidates(asked.candidates))
        return told

    def start(self, asked: Start) -> Changed:
        """A new session."""
        history, times, unknown = self._known(asked.history, asked.times, asked.on_unknown)
        session = self.recommender.start(history, times)
        return Changed(session.to_bytes(), _told(len(session), unknown, asked.on_unknown))

    def update(self, asked: Update, data: bytes) -> Changed:
        """A session after more items, all of them or none.

        Raises:
            RefusalError: 409, the session has not the expected length.
        """
        session = self.recommender.from_bytes(data)
        if asked.expected_length not in (None, len(session)):
            raise RefusalError(
                409, "other_length", f"the session has {len(session)} items, not the expected {asked.expected_length}"
            )
        items, times, unknown = self._known(asked.items, asked.times, asked.on_unknown)
        for n, item in enumerate(items):
            session.update(item, None if times is None else times[n])
        return Changed(session.to_bytes(), _told(len(session), unknown, asked.on_unknown))

    def recommend_session(self, asked: RecommendSession, data: bytes) -> Answer:
        """A list for a session."""
        session = self.recommender.from_bytes(data)
        found = session.recommend(
            asked.k,
            filter_seen=asked.filter_seen,
            candidates=asked.candidates,
            on_unknown="raise" if asked.on_unknown == "raise" else "skip",
        )
        told = self._unknown_candidates(asked.candidates) if asked.on_unknown == "warn" else {}
        return {**_shown(found), "length": len(session), **told}

    def describe(self, data: bytes) -> Answer:
        """The length of a session, and the codeword histogram (B, W) of each layer of LISA."""
        session = self.recommender.from_bytes(data)
        return {"length": len(session), "histograms": [layer[0].tolist() for layer in session.batch.histograms]}

    def search(self, text: str, most: int) -> Answer:
        """Item ids that contain a text."""
        return {"items": self.recommender.ids.search(text, most)}

    def _known(self, items: Ids, times: Times | None, on_unknown: str) -> tuple[Ids, Times | None, Ids]:
        """Items, their times, and the unknown ones, which the first two lack unless the policy is raise."""
        if on_unknown == "raise":
            return items, times, []
        kept = (self.recommender.ids.numbers(items) >= 0).nonzero()[0].tolist()
        return [items[n] for n in kept], times if times is None else [times[n] for n in kept], self._unknown(items)

    def _unknown(self, items: Ids) -> Ids:
        known = (self.recommender.ids.numbers(items) >= 0).tolist()
        return [item for item, is_known in zip(items, known, strict=True) if not is_known]

    def _unknown_candidates(self, candidates: Ids | list[Ids] | None) -> Answer:
        """What is told of candidates under the policy warn, in their own shape."""
        if not candidates:
            return {}
        nested = [one if isinstance(one, list) else [one] for one in candidates]
        unknown = [self._unknown(one) for one in nested]
        flat = not isinstance(candidates[0], list)
        return {"unknown_candidates": [item for one in unknown for item in one] if flat else unknown}


def _shown(answer: Recommendation) -> Answer:
    return {"items": answer.items, "scores": answer.scores}


def _told(length: int, unknown: Ids, on_unknown: str) -> Answer:
    return {"length": length, **({"unknown": unknown} if on_unknown == "warn" else {})}
