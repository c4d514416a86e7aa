"""One row on its own: does it fit, how long does it take, how much memory."""

from dataclasses import replace
from typing import NamedTuple

import torch

from benchmarks.machine import Limits
from benchmarks.measure import TimeLimitError, in_fresh_process, is_out_of_memory, peak_of_call
from benchmarks.problem import Problem
from benchmarks.rows import rows_of

OUT_OF_MEMORY = "out of memory"
WARM_UP_SEQUENCES, WARM_UP_LENGTH = 20, 32
"""Of the first call: few, so that it hides no memory, and enough for all of a row's code to be compiled."""


class Probe(NamedTuple):
    """A first call.

    seconds; extra_mb, the peak above what was held before, output included; held_mb of inputs and parameters;
    output_mb; and the row's note.
    """

    seconds: float
    extra_mb: float
    held_mb: float
    output_mb: float
    note: str

    @property
    def peak_mb(self) -> float:
        """Everything: inputs, parameters, and what the call takes."""
        return self.held_mb + self.extra_mb


def probe_here(row: str, problem: Problem, threads: int, memory_mb: float | None) -> Probe:
    """Build a row and call it once, in this process."""
    torch.set_num_threads(threads)
    build = rows_of(problem.part, backward=problem.backward)[row]
    build(replace(problem, n=WARM_UP_SEQUENCES, length=WARM_UP_LENGTH))()  # libraries load their own buffers
    case = build(problem)
    peak = peak_of_call(case, problem.device, memory_mb)
    output = problem.n * problem.length * problem.width * problem.dtype.itemsize / 2**20
    return Probe(peak.seconds, peak.extra_mb, case.held_mb, output, case.note)


def probe(row: str, problem: Problem, limits: Limits) -> tuple[str, Probe | None]:
    """Probe a row; on the CPU in a fresh process and within both limits.

    Args:
        row: Its name.
        problem: What it solves.
        limits: Its limits.

    Returns:
        The status ("ok", "out of memory", "skipped (over N s)" or "failed (why)"), and the probe if it came to an end.
    """
    try:
        if problem.device.type == "cuda":
            found = probe_here(row, problem, limits.threads, None)
        else:
            words = (row, problem, limits.threads, limits.memory_mb)
            found = in_fresh_process(probe_here, *words, seconds=limits.seconds)
    except Exception as error:
        return status_of(error, limits), None
    return ("ok" if found.seconds <= limits.seconds else limits.over_time), found


def status_of(error: Exception, limits: Limits) -> str:
    """What stands in a table for a row that raised."""
    if isinstance(error, TimeLimitError):
        return limits.over_time
    why = str(error).partition("\n")[0]
    return OUT_OF_MEMORY if is_out_of_memory(error) else f"failed ({why})"
