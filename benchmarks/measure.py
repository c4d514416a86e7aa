"""Time and peak memory of calls: samples in turns, fresh processes, limits."""

import contextlib
import gc
import math
import multiprocessing
import signal
import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil
import torch

from recbole_lisa.environment import glibc, peak_memory_mb

SAMPLE_SECONDS = 0.1  # least duration of a sample: short calls are repeated inside it
MAX_CALLS_PER_SAMPLE = 2000
SAMPLES_FRACTION = 0.2  # of the time limit of one call, for all samples of a row
START_SECONDS = 60  # added to a limit, for a fresh process to start and to build its inputs
CPU = torch.device("cpu")
OUT_OF_MEMORY = "out of memory"
Call = Callable[[], object]
Record = dict[str, Any]
Name = TypeVar("Name", bound=Hashable)
T = TypeVar("T")


class CheckError(RuntimeError):
    """What is timed computes a wrong result, or is slower than its limit."""


class TimeLimitError(RuntimeError):
    """A call ran past its limit."""


class Peak(NamedTuple):
    """Seconds of one call, and MB that it took at most above what was held before."""

    seconds: float
    extra_mb: float


def time_in_turns(
    builders: Mapping[Name, Callable[[], Call]], *, repeats: int, device: torch.device = CPU, seconds: float = math.inf
) -> dict[Name, Record]:
    """Time several calls in turns, so that a busy machine slows all of them alike.

    Before a sample of a short call the call runs once untimed, because the calls in between have emptied the caches.
    A builder makes the inputs and returns the call. A call that is slow against its limit of `seconds` has fewer
    samples, at least 1. A record holds a status, see `status_of`; if it is "ok", also median, low and high (seconds a
    call) and samples.
    """
    records: dict[Name, Record] = {name: {"status": "ok"} for name in builders}
    calls: dict[Name, tuple[Call, int]] = {}
    samples: dict[Name, list[float]] = {name: [] for name in builders}
    for turn in range(repeats + 1):
        for name, build in builders.items():
            if records[name]["status"] != "ok":
                continue
            try:
                if not turn:
                    calls[name] = _warm_up(build(), device, seconds)
                    continue
                call, n_calls = calls[name]
                if sum(samples[name]) * n_calls < SAMPLES_FRACTION * seconds:
                    if n_calls > 1 and len(calls) > 1:
                        call()
                    samples[name].append(seconds_of(call, n_calls, device))
            except Exception as error:
                records[name]["status"] = status_of(error, seconds)
    for name, record in records.items():
        if record["status"] == "ok":
            times = samples[name]
            record |= {"median": statistics.median(times), "low": min(times), "high": max(times), "samples": len(times)}
    return records


def _warm_up(call: Call, device: torch.device, limit: float) -> tuple[Call, int]:
    """Run a call twice, and choose the number of calls in a sample from the second run."""
    call()
    seconds = max(seconds_of(call, 1, device), 1e-9)
    if seconds > limit:
        raise TimeLimitError
    return call, max(1, min(MAX_CALLS_PER_SAMPLE, round(SAMPLE_SECONDS / seconds)))


def time_calls(calls: Mapping[Name, Call], *, repeats: int, device: torch.device = CPU) -> dict[Name, Record]:
    """`time_in_turns` for calls that exist; a call that fails raises a RuntimeError."""
    builders = {name: partial(calls.__getitem__, name) for name in calls}
    records = time_in_turns(builders, repeats=repeats, device=device)
    for name, record in records.items():
        if record["status"] != "ok":
            raise RuntimeError(f"{name}: {record['status']}")
    return records


def seconds_of(call: Call, n_calls: int, device: torch.device) -> float:
    """Seconds of one of several calls in a row; waits for a GPU."""
    synchronize: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    synchronize()
    start = time.perf_counter()
    for _ in range(n_calls):
        call()
    synchronize()
    return (time.perf_counter() - start) / n_calls


def peak_of_call(call: Call, device: torch.device = CPU) -> Peak:
    """Call once and measure the memory that it takes: of torch's allocator on a GPU, else of this process.

    On the CPU, use it in a fresh process: memory that earlier calls freed would hide the peak.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        seconds = seconds_of(call, 1, device)
        return Peak(seconds, (torch.cuda.max_memory_allocated(device) - before) / 2**20)
    libc = glibc()
    if libc is not None:
        libc.malloc_trim(0)  # returns the memory of freed tensors to the system
    with contextlib.suppress(OSError):  # Linux restarts the peak; elsewhere it includes building the inputs
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    resident = psutil.Process().memory_info().rss / 2**20
    seconds = seconds_of(call, 1, device)
    return Peak(seconds, max(peak_memory_mb() - resident, 0.0))


def status_of(error: Exception, seconds: float) -> str:
    """Text of a table for a row that raised: "out of memory", "skipped (over N s)" or "failed (why)"."""
    if isinstance(error, TimeLimitError):
        return f"skipped (over {seconds:g} s)"
    # torch's CPU allocator raises a plain RuntimeError.
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error):
        return OUT_OF_MEMORY
    return f"failed ({str(error).partition(chr(10))[0][:80]})"


def free_memory_mb() -> float:
    """MB that a row may take on the CPU: 70% of what is free."""
    return 0.7 * float(psutil.virtual_memory().available) / 2**20


def limit_memory(extra_mb: float) -> None:
    """Let allocations fail, instead of filling the machine, when this process takes `extra_mb` more than now."""
    import resource  # Windows has no such module

    limit = psutil.Process().memory_info().vms + int(extra_mb * 2**20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def in_fresh_process(function: Callable[..., T], *args: Any, seconds: float | None = None) -> T:
    """Call a function at the top of a module in its own process; what it raises is raised here.

    Raises TimeLimitError past `seconds` and START_SECONDS, and MemoryError if the system kills the process.
    """
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if "forkserver" in methods:  # the server imports the module once, for all processes
        context.set_forkserver_preload([function.__module__])
    limit = None if seconds is None else math.ceil(seconds + START_SECONDS)
    start = time.monotonic()
    # The signal of the alarm ends the process; 0 s means no alarm.
    with ProcessPoolExecutor(1, mp_context=context, initializer=signal.alarm, initargs=(limit or 0,)) as pool:
        try:
            return pool.submit(function, *args).result()
        except BrokenProcessPool as error:
            if limit is not None and time.monotonic() - start >= limit:
                raise TimeLimitError from error
            raise MemoryError("the process was killed") from error
