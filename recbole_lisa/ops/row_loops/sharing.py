"""What the compiled loops have in common: how they are compiled, see tensors and share the cores."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a loop at its first call for the types it is called with, and remember the result on disk.

    Args:
        function: Takes NumPy arrays, numbers and None, and writes into the arrays.

    Returns:
        The compiled function; it holds no lock, so that threads can share the work.
    """
    import numba

    options: dict[str, Any] = {"nogil": True, "fastmath": REORDERED, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)  # type: ignore[no-any-return]  # numba has no types
    except RuntimeError:  # no folder for the cache can be written
        return numba.njit(**options)(function)  # type: ignore[no-any-return]  # numba has no types


def array(x: Tensor | None) -> Any:
    """A CPU tensor as a contiguous NumPy array, without a copy where it is one; None stays None."""
    return None if x is None else x.detach().contiguous().numpy()


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


@cache
def _threads(process: int, n: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n, thread_name_prefix="row-loops")


def share(work: Callable[[int, int], None], n: int) -> None:
    """Call work(first, end) over ranges that make up 0 .. n, one for each of torch's threads, at the same time.

    Args:
        work: Runs a loop over a range.
        n: How many there are in all.
    """
    workers = min(torch.get_num_threads(), n)
    if workers <= 1:
        work(0, n)
        return
    ends = [n * i // workers for i in range(workers + 1)]
    pool = _threads(os.getpid(), workers - 1)  # threads do not outlive a fork: each process has its own
    others = [pool.submit(work, first, end) for first, end in zip(ends[1:-1], ends[2:], strict=True)]
    try:
        work(ends[0], ends[1])
    finally:
        for other in others:
            other.result()
