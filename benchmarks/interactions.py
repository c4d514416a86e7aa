"""Writes interactions of any number in the order of time, block by block: power laws of items and of history lengths.

User or item k is drawn in proportion to k^-s, in a scrambled order. At regular distances each item has one row and each
user up to `_LEAST`, so that all of them occur. One seed gives one file.
"""

import argparse
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt

from benchmarks.options import add_number
from recbole_lisa.errors import UsageError
from recbole_lisa.files import atomic_writer, check_output

Numbers = npt.NDArray[np.int64]
_BLOCK_ROWS, _LEAST = 2**17, 4
_SCRAMBLE = 2_654_435_761  # a prime above all numbers of users and items


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `interactions`."""
    add_number(parser, "users", 300_000, "users U")
    add_number(parser, "items", 200_000, "items V")
    add_number(parser, "rows", 5_000_000, "interactions, at least as many as users and as items")
    parser.add_argument("--seed", type=int, default=0, help="start of the random numbers (default 0)")
    parser.add_argument("--output", type=Path, required=True, help="the file, such as dataset/large/large.inter")
    parser.add_argument("--overwrite", action="store_true", help="replace a file that exists")


def run(options: argparse.Namespace) -> None:
    """Run `python -m benchmarks interactions`."""
    if options.rows < max(options.users, options.items):
        raise UsageError(f"--rows is {options.rows}: each user and each item needs a row")
    check_output(options.output, overwrite=options.overwrite)
    rng, started = np.random.default_rng(options.seed), perf_counter()
    least = min(_LEAST, options.rows // options.users)
    with atomic_writer(options.output, overwrite=options.overwrite) as stream:
        stream.write(b"user_id:token\titem_id:token\ttimestamp:float\n")
        for start in range(0, options.rows, _BLOCK_ROWS):
            row = np.arange(start, min(start + _BLOCK_ROWS, options.rows))
            users = _numbers(row, options.users, options.rows, 0.5, least, rng)
            items = _numbers(row, options.items, options.rows, 0.7, 1, rng)
            stream.write(_lines(users, items, 1_600_000_000 + row // 3))
    seconds = perf_counter() - started
    print(f"{options.rows:,} rows written to {options.output} in {seconds:.1f} s, {options.rows / seconds:,.0f} rows/s")


def _numbers(row: Numbers, n: int, n_rows: int, s: float, least: int, rng: np.random.Generator) -> Numbers:
    """Numbers from 1 to n for a run of rows; each number is in at least `least` of all n_rows rows."""
    drawn = (n * rng.random(len(row)) ** (1 / (1 - s))).astype(np.int64)
    turn = row * (n * least) // n_rows  # grows by one where a row is that of a number in turn
    drawn = np.where(turn > (row - 1) * (n * least) // n_rows, turn % n, drawn)
    return 1 + drawn * _SCRAMBLE % n


def _lines(*columns: Numbers) -> bytes:
    """Columns of positive numbers as tab-separated lines."""
    cells = []
    for column in columns:
        places = 10 ** np.arange(len(str(column.max())))[::-1]
        digits = column[:, None] // places
        cells += [np.where(digits > 0, digits % 10 + ord("0"), 0), np.full((len(column), 1), ord("\t"))]
    cells[-1][:] = ord("\n")
    table = np.concatenate([cell.astype(np.uint8) for cell in cells], axis=1)
    return table[table > 0].tobytes()
