"""What the compiled loops have in common: how they are compiled, see tensors and share the cores."""

import os
import threading
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

REORDERED = {"reassoc", "contract", "arcp", "nsz"}
"""Floating-point liberties: sums in any order, but NaN and infinity stay what they are."""


@cache
def numba_is_there() -> bool:
    """Whether Numba can be imported; it is not, yet."""
    return find_spec("numba") is not None


def loops_serve(*operands: Tensor) -> bool:
    """Whether compiled loops can do the work: all is on the CPU and of one type, float32 or float64, with Numba."""
    dtype = operands[0].dtype
    alike = all(x.device.type == "cpu" and x.dtype == dtype for x in operands)
    return alike and dtype in (torch.float32, torch.float64) and numba_is_there()


def trains_eagerly() -> bool:
    """Whether gradients are recorded and operations run as they are written: no autocast on the CPU, no torch.compile.

    Without gradients there is nothing to keep for a backward pass, and torch's own operations are faster.
    """
    return torch.is_grad_enabled() and not (torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling())


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a loop at its first call for the types it is called with, and remember the result on disk.

    Args:
        function: Takes NumPy arrays and numbers, and writes into the arrays.

    Returns:
        The compiled function; it holds no lock, so that threads can share the work.
    """
    return _compile(function)


def in_parts(function: Callable[..., Any]) -> Callable[..., Any]:
    """As compiled, for a function whose prange loop Numba's threads share: see share."""
    return _compile(function, parallel=True)


def _compile(function: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    import numba

    options: dict[str, Any] = {"nogil": True, "fastmath": REORDERED, "error_model": "numpy", **more}
    try:
        return numba.njit(cache=True, **options)(function)  # type: ignore[no-any-return]  # numba has no types
    except RuntimeError:  # no folder for the cache can be written
        return numba.njit(**options)(function)  # type: ignore[no-any-return]  # numba has no types


def array(x: Tensor) -> Any:
    """A CPU tensor as a contiguous NumPy array, without a copy where it is one."""
    return x.detach().contiguous().numpy()


def arrays(*tensors: Tensor) -> list[Any]:
    """array of each."""
    return [array(x) for x in tensors]


def targets(*tensors: Tensor) -> list[Any]:
    """As arrays, for what a loop writes to.

    Raises:
        ValueError: a tensor is not contiguous: a copy would be written to, and nobody would see it.
    """
    for x in tensors:
        if not x.is_contiguous():
            raise ValueError(f"a loop can write to contiguous tensors only, got strides {x.stride()} of {x.shape}")
    return arrays(*tensors)


def cut_rows(n_rows: int, width: int, most: int) -> list[slice]:
    """Blocks of rows of at most `most` entries; never by the number of threads, on which no sum may hang."""
    size = max(most // width, 1)
    return [slice(first, min(first + size, n_rows)) for first in range(0, n_rows, size)]


def check_rows(index: Tensor, n: int) -> None:
    """Compiled loops read whatever memory they are told to: refuse rows that are not there.

    Args:
        index: Rows, any shape.
        n: How many there are.

    Raises:
        IndexError: a row below 0 or not below n.
    """
    if index.numel():
        low, high = (int(x) for x in index.aminmax())
        if low < 0 or high >= n:
            raise IndexError(f"rows must lie in 0..{n - 1}, got {low}..{high}")


class _Team:
    """Numba's threads as torch's: on Linux both are those of the one OpenMP library that torch has loaded.

    A pool of our own would fight for the cores with torch's threads, which wait busily after each operation.
    """

    def __init__(self) -> None:
        self._process: int | None = None
        self._one_at_a_time = threading.Lock()
        self._is_safe = False

    def size(self) -> int:
        """Threads that may share work: torch's number; 1 in a process forked from one that shared work."""
        import numba

        if self._process not in (None, os.getpid()):
            return 1  # OpenMP's threads do not outlive a fork, and Numba would end the process
        return min(torch.get_num_threads(), int(numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]  # numba has no types

    def run(self, loop_in_parts: Callable[..., Any], n: int, workers: int, args: tuple[Any, ...]) -> None:
        """Call loop_in_parts(n, workers, args) with as many threads as workers."""
        import numba

        if self._is_safe:
            self._run(numba, loop_in_parts, n, workers, args)
            return
        with self._one_at_a_time:  # the first call starts the threads; some kinds serve one caller at a time
            torch_threads = torch.get_num_threads()
            self._run(numba, loop_in_parts, n, workers, args)
            if self._process is None:
                torch.set_num_threads(torch_threads)  # starting them has set OpenMP's number to that of all cores
                self._process = os.getpid()
                self._is_safe = numba.threading_layer() in ("omp", "tbb")  # type: ignore[attr-defined]  # numba has no types

    @staticmethod
    def _run(numba: Any, loop_in_parts: Callable[..., Any], n: int, workers: int, args: tuple[Any, ...]) -> None:
        before = numba.get_num_threads()
        numba.set_num_threads(workers)
        try:
            loop_in_parts(n, workers, args)
        finally:
            numba.set_num_threads(before)


_team = _Team()


def share(loop: Callable[..., Any], loop_in_parts: Callable[..., Any], n: int, *args: Any) -> None:
    """Call loop(first, end, *args) over ranges that make up 0 .. n, one for each of torch's threads, at the same time.

    Args:
        loop: Runs over a range.
        loop_in_parts: Called with (n, workers, args), calls the loop for the range of each worker.
        n: How many there are in all.
        *args: What both are given.
    """
    workers = min(_team.size(), n)
    if workers > 1:
        _team.run(loop_in_parts, n, workers, args)
    else:
        loop(0, n, *args)
