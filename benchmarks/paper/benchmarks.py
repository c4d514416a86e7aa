"""`reproduce speed|memory|online`: the benchmarks at the paper's sizes; every option of theirs can be given."""

from collections.abc import Sequence
from pathlib import Path

import benchmarks

_LENGTHS = [str(2**power) for power in range(7, 17)]
_SPEED = ("--lengths", *_LENGTHS, "--widths", "128", "1024")
_MEMORY = ("--lengths", *_LENGTHS[2:8], "--width", "128")
_ONLINE = ("--lengths", "2048", "65536", "1048576")


def speed(argv: Sequence[str]) -> int:
    """A forward pass of every attention from 128 to 65536 positions, D 128 and 1024, at a fixed number of tokens.

    Args:
        argv: options of `python -m benchmarks attention`, stronger than the paper's.

    Returns:
        0, or 1 when what was to be timed computes something wrong.

    Raises:
        UsageError: an option is wrong.
    """
    return _run("attention", "speed", _SPEED, argv)


def memory(argv: Sequence[str]) -> int:
    """Peak memory from 512 to 16384 positions, D 128, as ratios to the Transformer; see `speed`."""
    return _run("memory", "memory", _MEMORY, argv)


def online(argv: Sequence[str]) -> int:
    """One step of a session after 2K, 64K and 1024K items; see `speed`."""
    return _run("online", "online", _ONLINE, argv)


def _run(name: str, page: str, sizes: Sequence[str], argv: Sequence[str]) -> int:
    return benchmarks.run_benchmark([name, *sizes, "--output", str(Path("results", page)), *argv])
