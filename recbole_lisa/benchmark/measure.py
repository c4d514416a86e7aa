"""How every benchmark measures: warm-up, median and spread of time, peak memory in a fresh process."""

import multiprocessing
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import psutil
import torch

from recbole_lisa.environment import peak_memory_mb


class Timing(NamedTuple):
    """Seconds: median, fastest and slowest of the timed calls."""

    median: float
    low: float
    high: float


def time_calls(call: Callable[[], object], *, repeats: int, warm_up: int = 1) -> Timing:
    """Time a call.

    Args:
        call: what to time.
        repeats: timed calls.
        warm_up: calls before.

    Returns:
        Timing in seconds.
    """
    for _ in range(warm_up):
        call()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return Timing(statistics.median(seconds), min(seconds), max(seconds))


def peak_memory(prepare: Callable[..., Callable[[], object]], *args: Any) -> float:
    """Peak resident memory that a call adds, in a fresh process.

    Args:
        prepare: picklable function that builds everything and returns the call.
        *args: picklable arguments of prepare.

    Returns:
        MB above what the process held before the call.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_in_this_process, (prepare, args))


def _peak_in_this_process(prepare: Callable[..., Callable[[], object]], args: tuple[Any, ...]) -> float:
    torch.set_num_threads(1)
    call = prepare(*args)
    before = psutil.Process().memory_info().rss / 2**20
    call()
    return float(peak_memory_mb() - before)


def header() -> str:
    """One line that says what ran where."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return f"{device}, {torch.get_num_threads()} threads, torch {torch.__version__}, command: {' '.join(sys.argv)}"
