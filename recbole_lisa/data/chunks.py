"""Delimited text in pieces of typed columns: pandas' fast parser, and plain splitting for longer separators."""

from __future__ import annotations

import codecs
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

# What may stand for a number that is missing; of a token only nothing does, NA and null are names like others.
_NOT_A_NUMBER = ["", "#N/A", "<NA>", "N/A", "n/a", "NA", "NULL", "null", "None", "NaN", "nan", "-NaN", "-nan"]
_BLOCK_BYTES = 2**20


def markless(encoding: str) -> str:
    """The encoding, with a byte-order mark skipped where Windows programs write one."""
    return "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding


def read_chunks(
    path: Path, numbers: dict[str, bool], *, separator: str, encoding: str, rows: int
) -> Iterator[pd.DataFrame]:
    """Read some columns of a delimited file with a header.

    A cell in double quotes may hold the separator when it is one character. Lines may lack their last cells.

    Args:
        path: The file.
        numbers: Column -> whether it holds numbers (float64) or text (str); an empty cell is NaN in both.
        separator: Between columns.
        encoding: Of the text.
        rows: Most rows in a piece.

    Yields:
        The columns, in file order; at least one piece.

    Raises:
        ValueError, ParserError, ParserWarning: A cell is no number, a line has too many cells, or the file is no
            text in this encoding.
    """
    _check_text(path, encoding)
    if len(separator) > 1:
        yield from _split_lines(path, numbers, separator, encoding, rows)
        return
    options: dict[str, Any] = {
        **{"sep": separator, "encoding": markless(encoding), "engine": "c", "low_memory": False, "chunksize": rows},
        **{"dtype": {name: "float64" if number else "str" for name, number in numbers.items()}, "index_col": False},
        **{"na_values": {name: _NOT_A_NUMBER if number else [""] for name, number in numbers.items()}},
        "keep_default_na": False,
    }
    if tuple(int(part) for part in pd.__version__.split(".")[:2]) < (3, 1):
        # Before 3.1 the default parser may be one unit off, which can reorder two times.
        options["float_precision"] = "round_trip"
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # a first line longer than the header
        # All columns are read: told to skip some, pandas would not notice a line with too many cells.
        with pd.read_csv(path, **options) as pieces:
            for piece in pieces:
                yield piece[list(numbers)].copy()


def _check_text(path: Path, encoding: str) -> None:
    """Refuse NUL bytes, at which pandas ends a cell without a word."""
    if b"\0" in "a".encode(encoding):
        return
    with path.open("rb") as stream:
        position = 0
        while block := stream.read(_BLOCK_BYTES):
            if b"\0" in block:
                raise ValueError(
                    f"it has a NUL byte at position {position + block.index(0)}, which no text has: it is damaged, "
                    "or in an encoding such as utf-16"
                )
            position += len(block)


def _split_lines(
    path: Path, numbers: dict[str, bool], separator: str, encoding: str, rows: int
) -> Iterator[pd.DataFrame]:
    """Pandas takes a longer separator for a pattern, and strips the lines."""
    with path.open(encoding=markless(encoding)) as stream:
        numbered = enumerate((line.rstrip("\n") for line in stream), start=1)
        lines = ((at, line) for at, line in numbered if line)
        header = next(lines)[1].split(separator)
        places = {name: header.index(name) for name in numbers}
        first = True
        while (
            cells := [_cells(line, at, separator, len(header)) for at, line in islice(lines, rows) if line]
        ) or first:
            first = False
            columns = {name: [row[place] for row in cells] for name, place in places.items()}
            yield pd.DataFrame({name: _typed(column, numbers[name]) for name, column in columns.items()})


def _cells(line: str, number: int, separator: str, count: int) -> list[str]:
    cells = line.split(separator)
    if len(cells) > count:
        raise ValueError(f"expected {count} cells in line {number}, found {len(cells)}")
    return cells + [""] * (count - len(cells))


def _typed(column: list[str], number: bool) -> pd.Series[Any]:
    texts = pd.Series(column, dtype=object)
    if not number:
        return texts.mask(texts == "")
    return pd.to_numeric(texts.mask(texts.isin(_NOT_A_NUMBER))).astype("float64")
