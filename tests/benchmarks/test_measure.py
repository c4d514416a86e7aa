import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks import measure
from benchmarks.measure import TimeLimitError, in_fresh_process, limit_memory, peak_of_call, time_calls, time_in_turns
from recbole_lisa.environment import make_allocation_cheap

MEGABYTE = 2**20
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def allocate(megabytes: int) -> float:
    """Peak of a call that fills so many MB in two halves."""
    torch.ones(MEGABYTE)  # loads code and starts threads, which must not count
    size = megabytes * MEGABYTE // 8
    return peak_of_call(lambda: (torch.ones(size), torch.ones(size))).extra_mb


def allocate_after_freeing() -> float:
    """Peak of a call for which there is room in what was freed just before."""
    make_allocation_cheap()
    freed = torch.ones(6 * MEGABYTE)
    del freed
    return peak_of_call(lambda: torch.ones(5 * MEGABYTE)).extra_mb


def page_faults(megabytes: int, variable: str) -> int:
    """Page faults of filling a tensor, in a process whose allocation is cheap."""
    import resource  # Windows has no such module

    if variable:
        os.environ["THP_MEM_ALLOC_ENABLE"] = variable
    else:
        os.environ.pop("THP_MEM_ALLOC_ENABLE", None)
    make_allocation_cheap()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(megabytes * MEGABYTE // 4)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def allocate_beyond_the_limit() -> None:
    limit_memory(50)
    torch.ones(200 * MEGABYTE)


def test_peak_of_call_is_the_most_that_the_call_holds() -> None:
    assert in_fresh_process(allocate, 64) == pytest.approx(64, rel=0.1)
    if sys.platform == "linux":  # the only system on which freed memory is returned
        assert in_fresh_process(allocate_after_freeing, seconds=60) == pytest.approx(20, rel=0.1)


@pytest.mark.skipif(not HUGE_PAGES.is_file(), reason="the system has no huge pages")
def test_large_tensors_lie_in_huge_pages() -> None:
    if "[never]" not in HUGE_PAGES.read_text():
        assert in_fresh_process(page_faults, 64, "", seconds=60) < 64 * MEGABYTE / 2**12 / 10
    if "[always]" not in HUGE_PAGES.read_text():
        assert in_fresh_process(page_faults, 64, "0", seconds=60) >= 64 * MEGABYTE / 2**12


def test_a_fresh_process_returns_or_raises_what_its_function_does() -> None:
    assert in_fresh_process(os.getpid) != os.getpid()
    with pytest.raises(ZeroDivisionError):
        in_fresh_process(divmod, 1, 0)
    with pytest.raises(MemoryError, match="the process was killed"):
        in_fresh_process(signal.raise_signal, signal.SIGKILL, seconds=60)
    with pytest.raises(RuntimeError, match="allocate memory") as raised:
        in_fresh_process(allocate_beyond_the_limit)
    assert measure.status_of(raised.value, 1.0) == "out of memory"


def test_a_process_past_its_limit_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.measure.START_SECONDS", 0.2)
    start = time.monotonic()
    with pytest.raises(TimeLimitError):
        in_fresh_process(time.sleep, 600, seconds=0.1)
    assert time.monotonic() - start < 60


def test_calls_are_timed_in_turns_and_a_failure_ends_its_own_row_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.measure.SAMPLE_SECONDS", 0.0)
    order: list[str] = []

    def sleeper(name: str, seconds: float) -> Callable[[], Callable[[], None]]:
        def call() -> None:
            order.append(name)
            time.sleep(seconds)

        return lambda: call

    def fail() -> Callable[[], None]:
        raise ValueError("broken")

    builders = {"a": sleeper("a", 0.01), "b": sleeper("b", 0.06), "c": fail, "d": sleeper("d", 0.3)}
    records = time_in_turns(builders, repeats=3, seconds=0.25)
    assert "".join(order) == "aabbdd" + "aba" + "a", "two warm-up calls; b has used up its time after one sample"
    a, b, c, d = records.values()
    assert (a["status"], a["samples"], b["samples"]) == ("ok", 3, 1)
    assert 0.01 <= a["low"] <= a["median"] <= a["high"]
    assert b["low"] >= 0.06
    assert (c["status"], d["status"]) == ("failed (broken)", "skipped (over 0.25 s)")


def test_a_short_call_runs_untimed_when_others_ran_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.measure._warm_up", lambda call, *_: (call, 2 if call is short else 1))
    order: list[str] = []

    def short() -> None:
        order.append("s")

    time_calls({"short": short, "long": lambda: order.append("l")}, repeats=2)
    assert "".join(order) == "ssslsssl"


def test_short_calls_are_repeated_inside_a_sample_and_a_failure_is_raised() -> None:
    calls: list[int] = []
    timing = time_calls({"short": lambda: calls.append(0)}, repeats=2)["short"]
    assert timing["samples"] == 2
    assert len(calls) > 100
    assert timing["median"] < 1e-3 < measure.SAMPLE_SECONDS
    with pytest.raises(RuntimeError, match="bad: failed"):
        time_calls({"bad": lambda: 1 / 0}, repeats=1)
