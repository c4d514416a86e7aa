"""Reading raw files piece by piece: delimited text, JSON lines and parquet, all as columns of text."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from recbole_lisa.datasets.layouts import Columns
from recbole_lisa.errors import UsageError, did_you_mean

Piece = dict[str, npt.NDArray[np.object_]]
"""Some rows: role (`user`, `item`, `time`, `rating`) -> (rows,) texts, empty where there is nothing."""

PIECE_ROWS = 2**18
LINE_SUFFIXES = (".jsonl", ".json", ".ndjson")
PARQUET_SUFFIXES = (".parquet", ".pq")
_SEPARATORS = (",", "\t", ";", "|", "::")


def find_separator(head: str, columns: Columns) -> str:
    """The separator of a delimited file: the one that finds all named columns, else the most frequent one.

    Args:
        head: The first line.
        columns: The columns to find.
    """

    def rank(separator: str) -> tuple[bool, int]:
        names = [name.strip().strip('"') for name in head.split(separator)]
        return all(column in names for column in columns.values()), len(names)

    return max(_SEPARATORS, key=rank)


def read_table(
    stream: io.BufferedReader, name: str, columns: Columns, *, separator: str, header: bool, quoted: bool, encoding: str
) -> Iterator[Piece]:
    """Read delimited text.

    Args:
        stream: The bytes.
        name: Name of the file, for messages.
        columns: What to read.
        separator: One character, or `::`.
        header: Whether the first line names the columns.
        quoted: Whether double quotes enclose cells.
        encoding: Text encoding.

    Yields:
        The rows, in file order.

    Raises:
        UsageError: A column is missing, a line has more cells than the first, or the text is not in this encoding.
    """
    # The fast parser takes separators of one character; with ":" every second column of "1::2" is empty.
    step = len(separator)
    options: dict[str, Any] = {
        **{"sep": separator[0], "header": 0 if header else None, "quoting": 0 if quoted else 3},
        **{"dtype": str, "keep_default_na": False, "index_col": False, "low_memory": False},
        **{"encoding": encoding, "chunksize": PIECE_ROWS},
    }
    chosen: dict[str, Any] = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # a first row longer than the header
            with pd.read_csv(stream, **options) as pieces:
                for piece in pieces:
                    chosen = chosen or _choose(name, list(piece.columns), columns, header, step)
                    yield {role: piece[label].fillna("").to_numpy(object) for role, label in chosen.items()}
    except pd.errors.EmptyDataError as error:
        raise UsageError(f"{name} is empty") from error
    except pd.errors.ParserError as error:
        reason = str(error).strip().removeprefix("Error tokenizing data. C error: ")
        raise UsageError(f"{name} is no table separated by {separator!r}: {reason}") from error
    except pd.errors.ParserWarning as error:
        raise UsageError(
            f"{name} is no table separated by {separator!r}: its first line has fewer cells than the lines below it"
        ) from error
    except UnicodeError as error:
        raise UsageError(f"{name} is not text in the encoding {encoding} ({error}): name it with --encoding") from error


def _choose(name: str, labels: list[str | int], columns: Columns, header: bool, step: int) -> dict[str, str | int]:
    """Role -> label of its column in the frame that pandas made."""
    if header:
        by_name: dict[str, str | int] = {}
        for label in labels:
            by_name.setdefault(str(label).strip(), label)
        return {role: by_name[_known(name, role, column, by_name)] for role, column in columns.items()}
    chosen: dict[str, str | int] = {}
    for role, column in columns.items():
        if not isinstance(column, int) or not 0 <= column * step < len(labels):
            count = -(-len(labels) // step)
            raise UsageError(
                f"{name} has {count} columns and no header: --{role} is {column}, it must be below {count}"
            )
        chosen[role] = labels[column * step]
    return chosen


def _known(name: str, role: str, column: str | int, known: dict[str, Any]) -> str:
    if column not in known:
        listed = ", ".join(list(known)[:20]) or "none"
        hint = did_you_mean(str(column), known)
        raise UsageError(
            f"{name} has no column '{column}' for the {role}; it has {listed}.{hint} With the format csv, --{role} "
            "names it"
        )
    return str(column)


def read_lines(stream: io.BufferedReader, name: str, columns: Columns, *, encoding: str) -> Iterator[Piece]:
    """Read JSON lines, one object a line; arguments and errors as `read_table`."""
    roles = columns
    lines = enumerate(io.TextIOWrapper(stream, encoding=encoding, newline="\n"), start=1)
    try:
        while rows := [_parsed(line, number, name) for number, line in islice(lines, PIECE_ROWS) if line.strip()]:
            for role, column in roles.items():
                if not any(column in row for row in rows):
                    _known(name, role, column, dict.fromkeys(map(str, rows[0])))
            yield {role: _texts(name, key, [row.get(key) for row in rows]) for role, key in roles.items()}
    except UnicodeError as error:
        raise UsageError(f"{name} is not text in the encoding {encoding} ({error}): name it with --encoding") from error


# Numbers stay as they are written: an id such as 1.10 or of many digits is a text like any other.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=lambda _: None)


def _parsed(line: str, number: int, name: str) -> dict[str | int, Any]:
    try:
        row = _DECODER.decode(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"line {number} of {name} is no JSON: {error}") from error
    if not isinstance(row, dict):
        raise UsageError(
            f"line {number} of {name} is no JSON object, it is {line.strip()[:40]!r}: write one object a line"
        )
    return row


def _texts(name: str, key: str | int, values: list[Any]) -> npt.NDArray[np.object_]:
    """Values of JSON as texts, empty where there is none."""
    odd = next((value for value in values if isinstance(value, dict | list)), None)
    if odd is not None:
        raise UsageError(f"{name} has {str(odd)[:40]} as its '{key}', which must be a text or a number")
    return np.array([_JSON_WORDS.get(value, value) for value in values], dtype=object)


_JSON_WORDS = {None: "", True: "true", False: "false"}


def read_parquet(path: Path, columns: Columns) -> Iterator[Piece]:
    """Read a parquet file; dates and times become seconds or dates as text.

    Raises:
        UsageError: pyarrow is missing, or the file is no parquet file or lacks a column.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UsageError(
            f"{path} is a parquet file, which takes pyarrow to read: pip install 'recbole-lisa[parquet]'"
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            known = dict.fromkeys(file.schema_arrow.names)
            names = {role: _known(path.name, role, column, known) for role, column in columns.items()}
            for batch in file.iter_batches(PIECE_ROWS, columns=list(dict.fromkeys(names.values()))):
                places = {role: batch.schema.names.index(name) for role, name in names.items()}
                yield {role: _arrow_text(batch.column(place)) for role, place in places.items()}
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(f"{path} cannot be read as parquet: {error}") from error


def _arrow_text(column: Any) -> npt.NDArray[np.object_]:
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pyarrow.types.is_floating(column.type):  # whole numbers become floats where a cell is empty
        return np.array([_number(value) for value in column.to_pylist()], dtype=object)
    texts: npt.NDArray[np.object_] = column.cast(pyarrow.string()).fill_null("").to_numpy(zero_copy_only=False)
    return texts


def _number(value: float | None) -> str:
    if value is None or value != value:
        return ""
    return str(int(value)) if value.is_integer() else repr(value)
