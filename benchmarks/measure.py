"""How every benchmark measures: warm-up, median and spread of time, peak memory, limits on both."""

import contextlib
import gc
import multiprocessing
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil
import torch
from tqdm import tqdm

from recbole_lisa.environment import give_back_freed_memory, peak_memory_mb

try:
    import resource
except ImportError:  # Windows has no such module
    resource = None  # type: ignore[assignment]

SAMPLE_SECONDS = 0.1
"""A sample lasts at least this long: short calls are repeated inside it, so that clock and launch cost little.

Such a call also runs once before each sample, untimed: in between other calls have emptied the caches.
"""
MAX_CALLS_PER_SAMPLE = 2000
START_SECONDS = 60.0
"""What a fresh process may take to start and to build its inputs, beyond the time for its call."""
Call = Callable[[], object]
Name = TypeVar("Name", bound=Hashable)
CPU = torch.device("cpu")


class Timing(NamedTuple):
    """Seconds of one call: median, fastest and slowest of the samples, and how many samples there are."""

    median: float
    low: float
    high: float
    samples: int


class Peak(NamedTuple):
    """One call on its own: seconds, and MB that it took at most above what was held before."""

    seconds: float
    extra_mb: float


class TimeLimitError(RuntimeError):
    """A call ran past its limit and was stopped."""


def time_calls(call: Call, *, repeats: int, device: torch.device = CPU) -> Timing:
    """Time one call: one warm-up, then `repeats` samples.

    Raises:
        Exception: What the call raises.
    """
    call()
    found = time_in_turns({"call": call}, {"call": repeats}, device=device)["call"]
    if isinstance(found, Exception):
        raise found
    return found


def time_in_turns(
    calls: Mapping[Name, Call],
    samples: Mapping[Name, int],
    *,
    device: torch.device,
    seconds: Mapping[Name, float] | None = None,
    title: str = "timing",
) -> dict[Name, Timing | Exception]:
    """Time several calls in turns, so that a machine that slows down for a while slows them all.

    Args:
        calls: What to time, by name; warmed up already.
        samples: How often each is timed, at least 1.
        device: Where the calls run; a GPU is waited for.
        seconds: About how long each call takes; without it one more call of each tells.
        title: What the progress bar says in front.

    Returns:
        A Timing for every name, or what its call raised.
    """
    inside: dict[Name, int] = {}
    found: dict[Name, list[float]] = {name: [] for name in calls}
    failed: dict[Name, Exception] = {}
    for turn in tqdm(range(max(samples.values(), default=0)), desc=title, ncols=100, disable=None, leave=False):
        for name, call in calls.items():
            if name in failed or turn >= samples[name]:
                continue
            try:
                if name not in inside:
                    inside[name] = _calls_per_sample(seconds[name] if seconds else seconds_of(call, 1, device))
                if inside[name] > 1 < len(calls):
                    call()
                found[name].append(seconds_of(call, inside[name], device))
            except Exception as error:
                failed[name] = error
    timings = {name: _timing(x) for name, x in found.items() if name not in failed}
    return {**timings, **failed}


def _timing(seconds: list[float]) -> Timing:
    return Timing(statistics.median(seconds), min(seconds), max(seconds), len(seconds))


def _calls_per_sample(seconds: float) -> int:
    return max(1, min(MAX_CALLS_PER_SAMPLE, round(SAMPLE_SECONDS / max(seconds, 1e-9))))


def seconds_of(call: Call, times: int, device: torch.device) -> float:
    """Seconds of one of `times` calls in a row; a GPU is waited for."""
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        start.record()
        for _ in range(times):
            call()
        end.record()
        torch.cuda.synchronize(device)
        return float(start.elapsed_time(end)) / 1e3 / times
    begun = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begun) / times


def as_cuda_graph(call: Call) -> Call:
    """Record a call once, so that it can be replayed without Python and the launch of each kernel.

    Args:
        call: Runs on the GPU without waiting for it.

    Returns:
        The replay.

    Raises:
        RuntimeError: The call waits for the GPU, which no graph can hold.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what is made on the first calls must not be recorded
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = call()

    def replay() -> object:
        graph.replay()
        return kept

    return replay


def peak_of_call(call: Call, device: torch.device, memory_mb: float | None = None) -> Peak:
    """Call once and see how much memory it takes: the allocator's on a GPU, else this process's resident memory.

    Args:
        call: What to call. On the CPU this should be a fresh process, or what earlier calls freed hides the peak.
        device: Where it runs.
        memory_mb: On the CPU, what it may take at most.
    """
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        seconds = seconds_of(call, 1, device)
        return Peak(seconds, (torch.cuda.max_memory_allocated(device) - before) / 2**20)
    gc.collect()
    give_back_freed_memory()
    _forget_peak()
    resident = psutil.Process().memory_info().rss / 2**20
    with memory_limit(memory_mb):
        seconds = seconds_of(call, 1, device)
    return Peak(seconds, max(peak_memory_mb() - resident, 0.0))


def _forget_peak() -> None:
    """Let Linux restart the peak from the present size; elsewhere the peak of building the inputs stays in it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


@contextlib.contextmanager
def memory_limit(extra_mb: float | None) -> Iterator[None]:
    """Let allocations fail, instead of filling the machine, once this process takes `extra_mb` more than now."""
    if extra_mb is None or resource is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = psutil.Process().memory_info().vms + int(extra_mb * 2**20)
    resource.setrlimit(resource.RLIMIT_AS, (limit if soft == resource.RLIM_INFINITY else min(limit, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: on a GPU, in Python, or in torch's CPU allocator, which has no class for it."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)


def in_fresh_process(call: Callable[..., Any], *args: Any, seconds: float | None = None) -> Any:
    """Call a function in a process of its own.

    Args:
        call: A function at the top of a module.
        *args: What can be pickled.
        seconds: Limit; the start of the process is not counted strictly (START_SECONDS come on top).

    Returns:
        What the function returns.

    Raises:
        TimeLimitError: It ran past the limit and was stopped.
        MemoryError: The process was killed by the system.
        Exception: Whatever the function raises.
    """
    methods = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if "forkserver" in methods:  # what the first function needs is then imported once, not in every process
        context.set_forkserver_preload([call.__module__])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, call, args), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(None if seconds is None else seconds + START_SECONDS):
            raise TimeLimitError(f"still running after {seconds:.0f} s")
        answer, error = receiver.recv()
    except EOFError:
        process.join()
        kind = MemoryError if process.exitcode == -9 else RuntimeError
        raise kind(f"the process ended with status {process.exitcode} and no answer") from None
    finally:
        process.kill()
        process.join()
        receiver.close()
    if error is not None:
        raise error
    return answer


def _answer(sender: Connection, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
    answer: tuple[Any, Exception | None]
    try:
        answer = call(*args), None
    except Exception as error:
        # A class with a constructor of its own may not travel; its text does.
        kind = MemoryError if is_out_of_memory(error) else RuntimeError
        answer = None, kind(f"{type(error).__name__}: {error}")
    sender.send(answer)
