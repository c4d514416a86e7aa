"""One thread that runs the model, while the event loop goes on."""

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import torch

from recbole_lisa.serving import Recommendation, Recommender
from recbole_lisa.serving.http.bodies import Recommend
from recbole_lisa.serving.http.refusals import RefusalError

Result = TypeVar("Result")
MAX_TOGETHER = 32  # requests for recommendations in one batch


class _Job(NamedTuple):
    """A request for recommendations, and its lists or its error once it has run."""

    body: Recommend
    lists: Future[list[Recommendation]]


class ModelThread:
    """Runs calls of the model one after the other; requests for lists that wait together share a batch."""

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
        job = _Job(body, Future())
        await self.run(self._answer_queue, job)
        return job.lists.result(timeout=0)

    def _answer_queue(self) -> None:
        groups: dict[tuple[object, ...], list[_Job]] = {}
        for _ in range(min(len(self._queue), MAX_TOGETHER)):
            job = self._queue.popleft()
            body = job.body
            alone = None if body.times is None and body.candidates is None else id(job)
            groups.setdefault((body.k, body.filter_seen, body.policy, alone), []).append(job)
        for jobs in groups.values():
            self._answer(jobs)

    def _answer(self, jobs: Sequence[_Job]) -> None:
        """Answer requests with equal options."""
        histories = [history for job in jobs for history in job.body.histories]
        try:
            lists = self.recommender.recommend(histories, **jobs[0].body.options)
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].lists.set_exception(error)
                return
            for job in jobs:  # one of them is wrong: answer each alone
                self._answer([job])
            return
        for job in jobs:
            n = len(job.body.histories)
            job.lists.set_result(lists[:n])
            lists = lists[n:]
