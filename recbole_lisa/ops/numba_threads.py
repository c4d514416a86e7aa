"""Compiles Numba kernels and divides their work among torch's threads.

A kernel is a function of a range and of one named tuple; it writes into arrays of the tuple:

    @over_range
    def double(first: int, end: int, op: Operands) -> None:
        for i in range(first, end):
            op.out[i] = op.x[i] + op.x[i]

    double(len(x), Operands(**arrays(x=x), **writable(out=out)))

A loop that sums must not write to an array. The compiler adds the terms of such a loop in one order if its arrays lie
close together in memory, and in another order if not, so the last bit of the sum would depend on addresses.

Numba reads and writes beyond an array without an error. So every function that calls a kernel first checks shapes,
types and ranges of all its operands. Modules that define kernels import Numba; they are imported at their first call,
so the package starts quickly.
"""

import os
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from recbole_lisa.ops.checks import INTEGERS, can_read

REORDERED = {"reassoc", "contract", "arcp", "nsz"}
"""Floating-point rules that a kernel may break: sums in any order. NaN and infinity keep their meaning."""


def numba_serves(*operands: Tensor) -> bool:
    """Whether kernels can do the work: all operands are float32 or all are float64, on the CPU."""
    dtype = operands[0].dtype
    alike = all(x.device.type == "cpu" and x.dtype == dtype for x in operands)
    return alike and dtype in (torch.float32, torch.float64)


def array(x: Tensor) -> Any:
    """A CPU tensor as a contiguous NumPy array; no copy of a contiguous tensor."""
    return x.detach().contiguous().numpy()


def arrays(**tensors: Tensor | None) -> dict[str, Any]:
    """Array of each that is not None, by name, for the named tuple of a kernel."""
    return {name: array(x) for name, x in tensors.items() if x is not None}


def writable(**tensors: Tensor | None) -> dict[str, Any]:
    """As arrays, for tensors that a kernel writes to; a ValueError where it would write to a copy."""
    for name, x in tensors.items():
        if x is not None and not x.is_contiguous():
            raise ValueError(f"a kernel writes to contiguous tensors only, got {name} with strides {x.stride()}")
    return arrays(**tensors)


def cut_rows(n_rows: int, width: int, most: int) -> list[slice]:
    """Blocks of rows of at most `most` entries. They do not depend on the number of threads, so no sum does."""
    size = max(most // width, 1)
    return [slice(first, min(first + size, n_rows)) for first in range(0, n_rows, size)]


def check_rows(index: Tensor, n: int, name: str = "rows") -> None:
    """Refuse an index of any shape that is not in 0..n-1; on a GPU this would wait, so its range is not checked.

    Raises:
        ValueError: the index is not of an integer type.
        IndexError: an entry is below 0 or not below n.
    """
    if index.dtype not in INTEGERS:
        raise ValueError(f"{name} must be integers, got {index.dtype}")
    can_be_outside = index.dtype.is_signed or torch.iinfo(index.dtype).max >= n
    if index.numel() and can_be_outside and can_read(index):
        low, high = (int(x) for x in index.aminmax())
        if low < 0 or high >= n:
            raise IndexError(f"{name} must lie in 0..{n - 1}, got {low}..{high}")


def compiled(function: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    """Compile a function at its first call with each set of types; kept on disk. It holds no lock while it runs."""
    import numba

    options: dict[str, Any] = {"nogil": True, "fastmath": REORDERED, "error_model": "numpy", **more}
    try:
        kernel: Any = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder for the cache can be written
        return numba.njit(**options)(function)  # type: ignore[no-any-return]  # numba has no types
    save = kernel._cache.save_overload

    def save_if_possible(*arguments: Any) -> None:
        with suppress(OSError):  # a full disk: the kernel is compiled again in the next process
            save(*arguments)

    kernel._cache.save_overload = save_if_possible
    return kernel  # type: ignore[no-any-return]  # numba has no types


class over_range:  # noqa: N801  # used as a decorator
    """A kernel function(first, end, operands), compiled for one thread and for several that each take a part."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._alone = compiled(function)
        self._in_parts = compiled(_copy_for(function, self._alone), parallel=True)

    def __call__(self, n: int, operands: Any) -> None:
        """Run over 0..n-1 with as many of torch's threads as there is work for."""
        workers = min(_team.size(), n)
        if workers > 1:
            _team.run(self._in_parts, n, workers, operands)
        else:
            self._alone(0, n, operands)


def _call_in_parts(n: int, workers: int, operands: Any) -> None:
    for i in prange(workers):  # type: ignore[name-defined]  # noqa: F821  # _copy_for sets prange and kernel
        kernel(n * i // workers, n * (i + 1) // workers, operands)  # type: ignore[name-defined]  # noqa: F821  # too


def _copy_for(function: Callable[..., None], compiled_kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of _call_in_parts that calls one kernel."""
    import numba

    # Numba's cache on disk names a function by its file, line and qualified name: the copy takes those of the kernel.
    own, name = function.__code__, f"{function.__qualname__}_in_parts"
    code = _call_in_parts.__code__.replace(co_filename=own.co_filename, co_firstlineno=own.co_firstlineno, co_name=name)
    copy = FunctionType(code, {"prange": numba.prange, "kernel": compiled_kernel}, name)
    copy.__qualname__, copy.__module__ = name, function.__module__
    return copy


class _Team:
    """Numba's threads: on Linux torch's OpenMP threads, which wait busily and would compete with another pool."""

    def __init__(self) -> None:
        self._process: int | None = None
        self._one_at_a_time = threading.Lock()
        self._is_safe = False

    def size(self) -> int:
        """Torch's number of threads; 1 in a process that was forked after the threads started."""
        import numba

        if self._process not in (None, os.getpid()):
            return 1  # OpenMP's threads do not outlive a fork, and Numba would end the process
        return min(torch.get_num_threads(), int(numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]  # numba has no types

    def run(self, kernel_in_parts: Callable[..., Any], n: int, workers: int, operands: Any) -> None:
        """Call kernel_in_parts(n, workers, operands) with as many threads as workers."""
        import numba

        # The first call starts the threads; some threading layers serve one caller at a time.
        with nullcontext() if self._is_safe else self._one_at_a_time:
            torch_threads, before = torch.get_num_threads(), numba.get_num_threads()
            numba.set_num_threads(workers)
            try:
                kernel_in_parts(n, workers, operands)
            finally:
                numba.set_num_threads(before)
            if self._process is None:
                torch.set_num_threads(torch_threads)  # starting them has set OpenMP's number to that of all cores
                self._process = os.getpid()
                self._is_safe = numba.threading_layer() in ("omp", "tbb")  # type: ignore[attr-defined]  # numba has no types


_team = _Team()
