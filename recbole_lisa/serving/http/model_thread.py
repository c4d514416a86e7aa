"""One thread that runs the model, while the event loop goes on."""

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from recbole_lisa.serving import Recommendation, Recommender
from recbole_lisa.serving.http.bodies import Recommend
from recbole_lisa.serving.http.refusals import RefusalError

Result = TypeVar("Result")
MAX_TOGETHER = 32
"""Requests for recommendations in one batch."""


@dataclass
class _Job:
    """A request for recommendations, and its lists or its error once it has run."""

    body: Recommend
    lists: list[Recommendation] = field(default_factory=list)
    error: Exception | None = None

    def key(self) -> tuple[object, ...]:
        """Requests with equal keys share a batch; one with times or candidates has a batch of its own."""
        alone = id(self) if self.body.times is not None or self.body.candidates is not None else None
        return self.body.k, self.body.filter_seen, self.body.on_unknown == "raise", alone


class ModelThread:
    """Runs calls of the model one after the other; requests for lists that wait together share a batch.

    Args:
        recommender: The model.
        most_waiting: Calls that wait or run.
        threads: Threads of torch.
    """

    def __init__(self, recommender: Recommender, most_waiting: int, threads: int) -> None:
        self.recommender, self.most_waiting, self.waiting = recommender, most_waiting, 0
        # torch counts threads for each thread that calls it.
        self._executor = ThreadPoolExecutor(1, "model", initializer=functools.partial(torch.set_num_threads, threads))
        self._queue: deque[_Job] = deque()

    async def run(self, call: Callable[[], Result]) -> Result:
        """Wait for a call.

        Raises:
            RefusalError: 503, too many calls wait.
        """
        if self.waiting >= self.most_waiting:
            raise RefusalError(503, "busy", f"{self.waiting} requests wait for the model; try again")
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, call)
        finally:
            self.waiting -= 1

    async def recommend(self, body: Recommend) -> list[Recommendation]:
        """Wait for lists for histories."""
        job = _Job(body)

        def work() -> None:
            self._answer_queue()

        self._queue.append(job)
        await self.run(work)
        if job.error is not None:
            raise job.error
        return job.lists

    def close(self) -> None:
        """End the thread after the call that runs."""
        self._executor.shutdown()

    def _answer_queue(self) -> None:
        """Answer the waiting requests for lists; their own calls then find an empty queue."""
        groups: dict[tuple[object, ...], list[_Job]] = {}
        for _ in range(min(len(self._queue), MAX_TOGETHER)):
            job = self._queue.popleft()
            groups.setdefault(job.key(), []).append(job)
        for group in groups.values():
            self._answer_group(group)

    def _answer_group(self, jobs: Sequence[_Job]) -> None:
        body = jobs[0].body
        try:
            lists = self.recommender.recommend(
                [history for job in jobs for history in job.body.histories],
                body.k,
                times=body.times,
                filter_seen=body.filter_seen,
                candidates=body.candidates,
                on_unknown="raise" if body.on_unknown == "raise" else "skip",
            )
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].error = error
            else:  # one of the requests is wrong
                for job in jobs:
                    self._answer_group([job])
            return
        for job in jobs:
            n = len(job.body.histories)
            job.lists, lists = lists[:n], lists[n:]
