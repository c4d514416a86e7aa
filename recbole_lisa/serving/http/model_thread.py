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
        self.close = self._executor.shutdown
        self._queue: deque[_Job] = deque()

    async def run(self, call: Callable[[], Result], job: _Job | None = None) -> Result:
        """Wait for a call; status 503 where too many wait."""
        if self.waiting >= self.most_waiting:
            raise RefusalError(503, "busy", f"{self.waiting} requests wait for the model; try again")
        self.waiting += 1
        if job is not None:
            self._queue.append(job)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, call)
        finally:
            self.waiting -= 1

    async def recommend(self, body: Recommend) -> list[Recommendation]:
        """Wait for the lists of a request. One call answers all that wait; the others then find an empty queue."""
        job = _Job(body)
        await self.run(self._answer_queue, job)
        if job.error is not None:
            raise job.error
        return job.lists

    def _answer_queue(self) -> None:
        groups: dict[tuple[object, ...], list[_Job]] = {}
        for _ in range(min(len(self._queue), MAX_TOGETHER)):
            job = self._queue.popleft()
            body = job.body
            alone = None if body.times is None and body.candidates is None else id(job)
            groups.setdefault((body.k, body.filter_seen, body.on_unknown == "raise", alone), []).append(job)
        for jobs in groups.values():
            self._answer(jobs)

    def _answer(self, jobs: Sequence[_Job]) -> None:
        """Answer requests with equal options."""
        body, histories = jobs[0].body, [history for job in jobs for history in job.body.histories]
        options = {"times": body.times, "filter_seen": body.filter_seen, "candidates": body.candidates}
        policy = "raise" if body.on_unknown == "raise" else "skip"
        try:
            lists = self.recommender.recommend(histories, body.k, on_unknown=policy, **options)  # type: ignore[arg-type]  # the dict mixes types
        except Exception as error:
            jobs[0].error = error
            for job in jobs if len(jobs) > 1 else ():  # one of them is wrong: answer each alone
                job.error = None
                self._answer([job])
            return
        for job in jobs:
            n = len(job.body.histories)
            job.lists, lists = lists[:n], lists[n:]
