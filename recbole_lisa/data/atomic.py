"""Reading RecBole's atomic files fast: ids as categories, exact times.

Ids are read as categories (each distinct token once, small integers per row): 25 million rows take a few hundred
megabytes, not the ten gigabytes of one Python string per cell. Cells are not quoted, as RecBole's writers make them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from logging import getLogger
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import union_categoricals

from recbole_lisa.datasets.cells import MISSING
from recbole_lisa.datasets.layouts import Layout
from recbole_lisa.datasets.reader import read_pieces
from recbole_lisa.datasets.source import open_raw
from recbole_lisa.errors import UsageError, check_header

FIELD_TYPES = ("token", "float", "token_seq", "float_seq")
_SEPARATORS = ("\t", ",", ";", "|", " ", "::")
Stored = Literal["category", "object"]
"""How token columns are stored."""


class Reading(NamedTuple):
    """How atomic files are written, and whether bars show the reading."""

    separator: str  # of columns
    encoding: str
    seq_separator: str = " "  # of the parts of a sequence
    show_progress: bool = False


def read_header(path: Path, separator: str, encoding: str) -> dict[str, str]:
    """Read the first line, `name:type` per column: field name to one of `FIELD_TYPES`, in file order.

    Raises:
        UsageError: The first line is not such a header, or names a column twice.
    """
    with open_raw(path) as raw:
        line = re.split("[\r\n]", raw.start(encoding)[1].lstrip("\r\n"), maxsplit=1)[0]
    fields = _fields(line, separator)
    several = next((other for other in _SEPARATORS if len(_fields(line, other) or ()) > 1), None)
    if fields is None or (len(fields) == 1 and several):
        hint = f": it looks separated by {several!r}, set field_separator" if several else ""
        raise UsageError(
            f"{path}: the first line must name each column as name:type, separated by {separator!r}, with a type "
            f"of {', '.join(FIELD_TYPES)}; got {line[:80]!r}{hint}"
        )
    check_header(path, [name for name, _ in fields])
    return dict(fields)


def _fields(line: str, separator: str) -> list[tuple[str, str]] | None:
    """Names and types of a header, or None where a cell is no `name:type`."""
    parts = [cell.rpartition(":") for cell in line.split(separator)]
    if all(name and kind in FIELD_TYPES for name, _, kind in parts):
        return [(name, kind) for name, _, kind in parts]
    return None


def read_columns(path: Path, fields: dict[str, str], reading: Reading, *, tokens: Stored) -> pd.DataFrame:
    """Read some columns of an atomic file, as `read_header` gives them; floats are float64, sequences are arrays.

    Raises:
        UsageError: A cell cannot be read, or a line has more cells than the header.
    """
    frame = joined(list(read_parts(path, fields, reading, tokens=tokens)))
    for name, kind in fields.items():
        if kind.endswith("_seq"):
            try:
                frame[name] = pd.Series(_split_cells(frame[name], kind, reading.seq_separator), dtype=object)
            except ValueError as error:
                raise UsageError(f"{path} cannot be read: {error}") from error
    return frame


def read_parts(
    path: Path, fields: dict[str, str], reading: Reading, *, tokens: Stored = "category"
) -> Iterator[pd.DataFrame]:
    """As `read_columns`, part by part, with sequences as text."""
    labels = {name: f"{name}:{kind}" for name, kind in fields.items()}
    numbers = tuple(name for name, kind in fields.items() if kind == "float")
    form: dict[str, Any] = {"separator": reading.separator, "encoding": reading.encoding, "quoted": False}
    layout = Layout((), {**labels}, **form, numbers=numbers, advice="")
    categories = [name for name, kind in fields.items() if kind == "token" and tokens == "category"]
    try:
        with open_raw(path) as raw:
            n_before: int | None = 0
            is_checked = False
            for piece in read_pieces(raw, layout, show_progress=reading.show_progress):
                if not is_checked and any(piece[name].dropna().isin((0, 1)).all() for name in numbers):
                    is_checked = True  # pandas reads a column of True and False as 1 and 0
                    if odd := _odd_number(path, layout):
                        raise UsageError(odd)
                for name in categories:  # not left to the reader, which would take 7 and 007 for one category
                    piece[name] = pd.Categorical.from_codes(*pd.factorize(piece[name]))
                if n_before is not None:  # nothing is named yet
                    n_before = None if _name_blanks(path, piece[categories], n_before) else n_before + len(piece)
                yield piece.reset_index(drop=True)
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(_odd_number(path, layout) or f"{path} cannot be read: {error}") from error


def _name_blanks(path: Path, piece: pd.DataFrame, n_before: int) -> bool:
    """Warn of the first id with a blank at an end, which is another id than the one without; whether there is one."""
    for name in piece:
        ids = piece[name].cat.categories
        joined_ids = "\0".join(["", *ids, ""])
        if "\0 " in joined_ids or " \0" in joined_ids:
            code = next(code for code, text in enumerate(ids) if text != text.strip(" "))
            line = n_before + 2 + int((piece[name].cat.codes == code).argmax())
            getLogger().warning(
                f"{path}, line {line}: the {name} {ids[code]!r} has a blank at its end, and is another id than "
                f"{ids[code].strip(' ')!r}; remove such blanks if they are a mistake"
            )
            return True
    return False


def _odd_number(path: Path, layout: Layout) -> str | None:
    """The message for the first cell that should be a number and is not; the file is read again."""
    line = 2  # after the header
    with open_raw(path) as raw:
        for piece in read_pieces(raw, replace(layout, numbers=())):
            for name in layout.numbers:
                cells = piece[name].where(~piece[name].isin(MISSING))
                odd = np.flatnonzero(cells.notna() & pd.to_numeric(cells, errors="coerce").isna())
                if len(odd):
                    cell = cells.iloc[odd[0]]  # by position: the index goes on from piece to piece
                    return (
                        f"{path}, line {line + odd[0]}: the column {name} must hold numbers, got {cell!r}; "
                        "`recbole-lisa convert csv` reads dates and writes them as numbers"
                    )
            line += len(piece)
    return None


def joined(pieces: list[pd.DataFrame]) -> pd.DataFrame:
    """One frame; categories stay categories, which `pandas.concat` would turn into strings."""
    first = pieces[0]
    if len(pieces) == 1:
        return first
    columns: dict[str, Any] = {}
    for name, dtype in zip(map(str, first.columns), first.dtypes, strict=True):
        parts = [piece.pop(name) for piece in pieces]  # so that the pieces shrink while the result grows
        is_category = isinstance(dtype, pd.CategoricalDtype)
        columns[name] = union_categoricals(parts) if is_category else pd.concat(parts, ignore_index=True)
    joined: pd.DataFrame = pd.DataFrame(columns)
    return joined


def _split_cells(column: pd.Series[Any], kind: str, separator: str) -> list[npt.NDArray[np.generic]]:
    parts = (filter(None, cell.split(separator)) for cell in column.fillna(""))
    if kind == "float_seq":
        return [np.array([float(part) for part in cell], dtype=np.float64) for cell in parts]
    return [np.array(list(cell), dtype=object) for cell in parts]
