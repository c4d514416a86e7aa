"""One thread that runs the model, while the event loop goes on."""

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import anyio
import torch

from recbole_lisa.serving import Recommendation, Recommender
from recbole_lisa.serving.http.bodies import Limits, Recommend
from recbole_lisa.serving.http.refusals import RefusalError

Result = TypeVar("Result")


class _Job(NamedTuple):
    """A request for recommendations, and its lists or its error once it has run."""

    body: Recommend
    lists: asyncio.Future[list[Recommendation]]


_Answers = list[tuple[_Job, list[Recommendation] | Exception]]


class ModelThread:
    """Runs calls of the model one after the other; requests for lists that wait together share a batch."""

    def __init__(self, recommender: Recommender, limits: Limits, threads: int) -> None:
        self.recommender, self.limits, self.waiting = recommender, limits, 0
        # torch counts threads for each thread that calls it.
        self._executor = ThreadPoolExecutor(1, "model", initializer=functools.partial(torch.set_num_threads, threads))
        self._queue: deque[_Job] = deque()
        self.unanswered, self._change = 0, asyncio.Event()
        self._batches: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Wait for the call that runs and drop those that wait; their requests have been refused."""
        self._queue.clear()
        self._executor.shutdown(cancel_futures=True)

    async def run(self, call: Callable[[], Result]) -> Result:
        """Wait for a call; status 503 where too many wait."""
        with self._counted():
            return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    async def recommend(self, body: Recommend) -> list[Recommendation]:
        """Wait for the lists of a request."""
        with self._counted():
            job = _Job(body, asyncio.get_running_loop().create_future())
            self._queue.append(job)
            self._change.set()
            if self._batches is None or self._batches.done():
                self._batches = asyncio.create_task(self._run_batches())
            return await job.lists

    @contextlib.contextmanager
    def in_flight(self) -> Iterator[None]:
        """Count a request for lists from its head to its answer: a batch waits for it, within the bound."""
        self.unanswered += 1
        try:
            yield
        finally:
            self.unanswered -= 1
            self._change.set()

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        if self.waiting >= self.limits.waiting:
            raise RefusalError(503, "busy", f"{self.waiting} requests wait for the model; try again")
        self.waiting += 1
        try:
            yield
        except asyncio.CancelledError as error:  # of uvicorn, after stop_seconds
            raise RefusalError(503, "stopping", "the service stops; try again") from error
        finally:
            self.waiting -= 1

    async def _run_batches(self) -> None:
        """Answer batches until the queue is empty; the model's thread is called once for a batch."""
        while self._queue:
            await self._wait_for_others()
            call = asyncio.get_running_loop().run_in_executor(self._executor, self._answer_queue)
            for job, answer in await call:
                if job.lists.done():  # its client has left
                    continue
                if isinstance(answer, Exception):
                    job.lists.set_exception(answer)
                else:
                    job.lists.set_result(answer)

    async def _wait_for_others(self) -> None:
        """Wait at most batch_wait_ms while a request in flight may still join; a lone request does not wait."""
        if self.limits.batch_wait_ms and len(self._queue) < min(self.unanswered, self.limits.batch):
            with anyio.move_on_after(self.limits.batch_wait_ms / 1000):
                while len(self._queue) < min(self.unanswered, self.limits.batch):
                    self._change.clear()
                    await self._change.wait()

    def _answer_queue(self) -> _Answers:
        groups: dict[tuple[object, ...], list[_Job]] = {}
        for _ in range(min(len(self._queue), self.limits.batch)):
            job = self._queue.popleft()
            body = job.body
            alone = None if body.times is None and body.candidates is None else id(job)
            groups.setdefault((body.k, body.filter_seen, body.policy, body.at, alone), []).append(job)
        return [answer for jobs in groups.values() for answer in self._answer(jobs)]

    def _answer(self, jobs: Sequence[_Job]) -> _Answers:
        """Answer requests with equal options."""
        histories = [history for job in jobs for history in job.body.histories]
        try:
            lists = iter(self.recommender.recommend(histories, **jobs[0].body.options))
        except Exception as error:
            # One of several is wrong: answer each alone.
            return [(jobs[0], error)] if len(jobs) == 1 else [one for job in jobs for one in self._answer([job])]
        return [(job, [next(lists) for _ in job.body.histories]) for job in jobs]
