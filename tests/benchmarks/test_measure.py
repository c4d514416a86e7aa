import os
import sys
import time
from collections.abc import Callable

import pytest
import torch

from benchmarks.measure import (
    SAMPLE_SECONDS,
    TimeLimitError,
    in_fresh_process,
    is_out_of_memory,
    memory_limit,
    peak_of_call,
    time_calls,
    time_in_turns,
)
from recbole_lisa.environment import keep_freed_memory

CPU = torch.device("cpu")
MEGABYTE = 2**20


def allocate(megabytes: int) -> float:
    """What peak_of_call sees of a call that fills so many MB and drops half of them."""

    def call() -> None:
        first = torch.ones(megabytes * MEGABYTE // 8)
        second = torch.ones(megabytes * MEGABYTE // 8)
        assert len(first) == len(second)

    return peak_of_call(call, CPU, memory_mb=4 * megabytes).extra_mb


def allocate_beyond_the_limit() -> None:
    peak_of_call(lambda: torch.ones(200 * MEGABYTE), CPU, memory_mb=50)


def allocate_again() -> float:
    """What peak_of_call sees of a call for which there would be room in what was freed just before."""
    keep_freed_memory()
    freed = torch.ones(6 * MEGABYTE)
    del freed
    return peak_of_call(lambda: torch.ones(5 * MEGABYTE), CPU).extra_mb


@pytest.mark.skipif(sys.platform != "linux", reason="freed memory is returned on Linux only")
def test_what_was_freed_before_does_not_hide_a_peak() -> None:
    assert in_fresh_process(allocate_again, seconds=60) == pytest.approx(20, rel=0.1)


def test_peak_of_call_is_what_the_call_holds_at_most() -> None:
    assert in_fresh_process(allocate, 64) == pytest.approx(64, rel=0.1)


def test_memory_limit_makes_an_allocation_fail_and_is_lifted_after() -> None:
    with memory_limit(50), pytest.raises(RuntimeError, match="allocate memory") as raised:
        torch.ones(200 * MEGABYTE)
    assert is_out_of_memory(raised.value)
    assert len(torch.ones(20 * MEGABYTE)) == 20 * MEGABYTE


def test_a_fresh_process_reports_an_allocation_that_failed_as_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="allocate memory"):
        in_fresh_process(allocate_beyond_the_limit)


def test_a_fresh_process_hands_back_what_its_function_returns_or_raises() -> None:
    assert in_fresh_process(os.getpid) != os.getpid()
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        in_fresh_process(divmod, 1, 0)


def test_a_process_that_dies_is_told_from_one_that_the_system_killed() -> None:
    with pytest.raises(RuntimeError, match="status 7"):
        in_fresh_process(os._exit, 7)
    with pytest.raises(MemoryError, match="status -9"):
        in_fresh_process(kill_itself)


def kill_itself() -> None:
    os.kill(os.getpid(), 9)


def test_a_process_past_its_limit_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.measure.START_SECONDS", 0.2)
    in_fresh_process(os.getpid)  # the server that forks is there
    begun = time.monotonic()
    with pytest.raises(TimeLimitError, match="still running after 0 s"):
        in_fresh_process(time.sleep, 600, seconds=0.1)
    assert time.monotonic() - begun < 60


def test_calls_are_timed_in_turns_and_a_failure_ends_its_own_row_only() -> None:
    order: list[str] = []

    def call(name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            order.append(name)
            time.sleep(seconds)

        return run

    def fail() -> None:
        raise ValueError("broken")

    calls = {"a": call("a", 0.03), "b": call("b", 0.06), "c": fail}
    samples = {"a": 3, "b": 2, "c": 3}
    found = time_in_turns(calls, samples, device=CPU, seconds=dict.fromkeys(calls, 1.0))
    assert order == ["a", "b", "a", "b", "a"]
    a, b, c = (found[name] for name in "abc")
    assert not isinstance(a, Exception) and not isinstance(b, Exception)
    assert (a.samples, b.samples) == (3, 2)
    assert 0.03 <= a.low <= a.median <= a.high
    assert b.low >= 0.06
    assert isinstance(c, ValueError)


def test_a_short_call_runs_untimed_before_each_sample_when_others_ran_in_between() -> None:
    order: list[str] = []
    calls = {"short": lambda: order.append("s"), "long": lambda: order.append("l")}
    seconds = {"short": SAMPLE_SECONDS / 2, "long": 2 * SAMPLE_SECONDS}
    time_in_turns(calls, {"short": 2, "long": 2}, device=CPU, seconds=seconds)
    assert "".join(order) == "ssslsssl"


def test_short_calls_are_repeated_inside_a_sample() -> None:
    calls: list[int] = []
    timing = time_calls(lambda: calls.append(0), repeats=2)
    assert timing.samples == 2
    assert len(calls) > 100
    assert timing.median < 1e-3
