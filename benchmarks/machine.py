"""Where a benchmark runs, and how much of the machine it may take."""

from dataclasses import dataclass

import psutil
import torch

from recbole_lisa.environment import keep_freed_memory
from recbole_lisa.errors import UsageError

MEMORY_SHARE = 0.7


@dataclass(frozen=True)
class Limits:
    """What one row may take.

    Attributes:
        seconds: of one call, and about of all its timed calls.
        memory_mb: on the CPU, MB above what it holds; None on a GPU, whose allocator says when it is full.
        repeats: timed samples, fewer for a row that would run past `seconds`.
        threads: of torch.
        cuda_graph: time the replay of a recorded call, on a GPU.
    """

    seconds: float
    memory_mb: float | None
    repeats: int
    threads: int
    cuda_graph: bool = False

    @property
    def over_time(self) -> str:
        """What stands in a table for a row past `seconds`."""
        return f"skipped (over {self.seconds:g} s)"


def set_up_device(name: str, threads: int | None) -> torch.device:
    """The device that the options name, and torch's threads.

    Args:
        name: cpu or cuda.
        threads: of torch; None keeps its own number.

    Raises:
        UsageError: No CUDA device is there.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device=cuda, but torch sees no CUDA device here: write --device=cpu")
    if threads:
        torch.set_num_threads(threads)
    keep_freed_memory()  # as a run does
    return torch.device(name)


def memory_budget(memory_mb: float | None, device: torch.device) -> float | None:
    """MB that a row may take on the CPU: what was asked for, else most of what is free now; None on a GPU."""
    if device.type == "cuda":
        return None
    return memory_mb or MEMORY_SHARE * psutil.virtual_memory().available / 2**20
