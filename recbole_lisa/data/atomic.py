"""Reading RecBole's atomic files fast, and the interaction-count filter, without RecBole.

Ids are read as categories (each distinct token once, small integers per row) by pandas' C reader, so that 25 million
rows take a few hundred megabytes and not the ten gigabytes of one Python string per cell.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import union_categoricals

from recbole_lisa.config.data_checks import Interval
from recbole_lisa.data.chunks import markless, read_chunks
from recbole_lisa.errors import UsageError

_CHUNK_ROWS = 2**20
FIELD_TYPES = ("token", "float", "token_seq", "float_seq")


def read_header(path: Path, separator: str, encoding: str) -> dict[str, str]:
    """Field names and types from the first line, `name:type` per column.

    Args:
        path: an atomic file.
        separator: column separator.
        encoding: text encoding.

    Returns:
        Field name to one of `FIELD_TYPES`, in file order.

    Raises:
        UsageError: the first line is not such a header, names a column twice, or is not in this encoding.
    """
    try:
        with path.open(encoding=markless(encoding)) as stream:
            cells = stream.readline().rstrip("\r\n").split(separator)
    except UnicodeError as error:
        raise UsageError(f"{path} is not text in the encoding {encoding}: {error}") from error
    fields = {}
    for cell in cells:
        name, _, kind = cell.rpartition(":")
        if not name or kind not in FIELD_TYPES:
            raise UsageError(
                f"{path}: the first line must name each column as name:type, separated by {separator!r}, with a type "
                f"of {', '.join(FIELD_TYPES)}; got {cell[:80]!r}"
            )
        if name in fields:
            raise UsageError(f"{path}: the first line names the column {name} twice: give each a name of its own")
        fields[name] = kind
    return fields


def read_columns(
    path: Path,
    fields: dict[str, str],
    *,
    separator: str,
    encoding: str,
    seq_separator: str,
    tokens: Literal["category", "object"],
) -> pd.DataFrame:
    """Read some columns of an atomic file.

    Args:
        path: an atomic file.
        fields: the columns to read, as in `read_header`.
        separator: column separator.
        encoding: text encoding.
        seq_separator: separator inside a cell of a sequence column.
        tokens: how token columns are stored.

    Returns:
        One column per field: tokens as asked, floats as float64, sequences as arrays.

    Raises:
        UsageError: a cell cannot be read, or a line has more cells than the header.
    """
    headed = {f"{name}:{kind}": name for name, kind in fields.items()}
    numbers = {label: fields[name] == "float" for label, name in headed.items()}
    try:
        chunks = read_chunks(path, numbers, separator=separator, encoding=encoding, rows=_CHUNK_ROWS)
        frame = _joined([_compact(chunk.rename(columns=headed), fields, tokens) for chunk in chunks])
    except (ValueError, pd.errors.ParserError, pd.errors.ParserWarning) as error:
        raise UsageError(f"{path} cannot be read: {str(error).strip()}") from error
    for name, kind in fields.items():
        if kind.endswith("_seq"):
            frame[name] = pd.Series(_split_cells(frame[name], kind, seq_separator), dtype=object)
    return frame


def _compact(chunk: pd.DataFrame, fields: dict[str, str], tokens: str) -> pd.DataFrame:
    """Tokens as asked. Not left to the reader, which would take 7 and 007 for one category."""
    for name, kind in fields.items():
        if kind == "token" and tokens == "category":
            codes, texts = pd.factorize(chunk[name])
            _check_one_line(name, texts)
            chunk[name] = pd.Categorical.from_codes(codes, texts)
        elif kind == "token":
            chunk[name] = chunk[name].astype(object)
    return chunk


def _check_one_line(name: str, texts: pd.Index[Any]) -> None:
    """Refuse a token with a line break: a quote that is never closed swallows the lines up to the next one."""
    broken = next((text for text in texts if "\n" in text or "\r" in text), None)
    if broken is not None:
        raise ValueError(
            f"column {name} holds a value that runs over lines, {broken[:40]!r}: a value that begins with a double "
            'quote must end in one, and write every quote inside it twice ("")'
        )


def _joined(chunks: list[pd.DataFrame]) -> pd.DataFrame:
    """One frame; categories stay categories, which `pandas.concat` would turn into strings."""
    first = chunks[0]
    if len(chunks) == 1:
        return first
    columns: dict[str, Any] = {}
    for name, dtype in zip(map(str, first.columns), first.dtypes, strict=True):
        parts = [chunk.pop(name) for chunk in chunks]  # so that the chunks shrink while the result grows
        is_category = isinstance(dtype, pd.CategoricalDtype)
        columns[name] = union_categoricals(parts) if is_category else pd.concat(parts, ignore_index=True)
    joined: pd.DataFrame = pd.DataFrame(columns)
    return joined


def _split_cells(column: pd.Series, kind: str, separator: str) -> list[npt.NDArray[np.generic]]:
    parts = (filter(None, cell.split(separator)) for cell in column.fillna(""))
    if kind == "float_seq":
        return [np.array([float(part) for part in cell], dtype=np.float64) for cell in parts]
    return [np.array(list(cell), dtype=object) for cell in parts]


def core_rows(
    users: npt.NDArray[np.integer[Any]],
    items: npt.NDArray[np.integer[Any]],
    user_intervals: list[Interval],
    item_intervals: list[Interval],
) -> npt.NDArray[np.int64]:
    """Drop users and items outside the intervals until none is left (k-core for `[k,inf)`).

    Args:
        users: (rows,) small non-negative integers.
        items: (rows,) small non-negative integers.
        user_intervals: allowed interactions per user; empty means any.
        item_intervals: allowed interactions per item; empty means any.

    Returns:
        The positions of the rows that stay, ascending.
    """
    kept = np.arange(len(users))
    while True:
        dropped = _outside(users, user_intervals)[users] | _outside(items, item_intervals)[items]
        if not dropped.any():
            return kept
        stay = ~dropped
        users, items, kept = users[stay], items[stay], kept[stay]


def _outside(ids: npt.NDArray[np.integer[Any]], intervals: list[Interval]) -> npt.NDArray[np.bool_]:
    """(largest id + 1,) True for ids whose number of rows lies in none of the intervals."""
    counts = np.bincount(ids)
    if not intervals:
        return np.zeros(len(counts), dtype=bool)
    inside: npt.NDArray[np.bool_] = np.any([interval.contains(counts) for interval in intervals], axis=0)
    return ~inside
