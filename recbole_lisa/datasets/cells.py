"""What a cell means: ids of any text, times in any of the usual notations, ratings."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from recbole_lisa.datasets.layouts import AUTO_UNIT, TIME_UNITS

# Least sizes of milli-, micro- and nanoseconds: years beyond 5000 in the coarser unit, 1973 in the finer one.
_LEAST = (1e11, 1e14, 1e17)
# What pandas, and so RecBole's own loader, reads as a missing cell.
_MISSING_WORDS = frozenset(
    ["#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>"]
    + ["N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"]
)
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {9: "\\t", 10: "\\n", 13: "\\r"}


class Ids:
    r"""The distinct ids of one column, numbered from 0 in order of appearance.

    Any text is an id and stays as it is, blanks and quotes included. Only what a line of the atomic file cannot
    hold is replaced: control characters (tabs and line breaks among them) and halves of surrogate pairs become an
    escape such as `\t`.

    Args:
        counts: The number of ids that were `escaped`, are words that RecBole reads as `missing`, or are the `padding`
            word is added here.

    Attributes:
        cells: The ids as the cells of the atomic file, by number.
        written: Numbers of the ids that went into the atomic file.
    """

    def __init__(self, counts: Counter[str]) -> None:
        self.cells: list[str] = []
        self.written: set[int] = set()
        self._counts = counts
        self._numbers: dict[str, int] = {}

    def codes(self, column: pd.Series[Any]) -> npt.NDArray[np.int64]:
        """Number the ids of a column: (rows,) texts -> (rows,) numbers, -1 where there is none."""
        rows, texts = pd.factorize(column)
        return np.array([*map(self._number, texts), -1], dtype=np.int64)[rows]

    def write(self, codes: npt.NDArray[np.int64]) -> list[str]:
        """The cells of rows that go into the atomic file, by their numbers."""
        self.written.update(np.unique(codes).tolist())
        return list(map(self.cells.__getitem__, codes.tolist()))

    def _number(self, text: str) -> int:
        number = self._numbers.get(text)
        if number is None:
            cell = text if text.isprintable() else _escaped(text)
            number = self._numbers.setdefault(cell, len(self.cells))
            if number == len(self.cells):
                self.cells.append(cell)
                self._counts["missing"] += cell in _MISSING_WORDS
                self._counts["padding"] += cell == "[PAD]"
            self._counts["escaped"] += cell != text
            self._numbers[text] = number
        return number


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES).encode("utf-8", "backslashreplace").decode("utf-8")


def read_times(column: pd.Series[Any], unit: str, counts: Counter[str]) -> npt.NDArray[np.float64]:
    """Read times as seconds since 1970.

    A number is in `unit`; with `auto` its size decides: from 1e11 on it is milliseconds, from 1e14 on microseconds,
    from 1e17 on nanoseconds, and seconds below. Any other text must be an ISO 8601 date, with or without a time of
    day; without a zone it is UTC.

    Args:
        column: (rows,) texts.
        unit: A key of `TIME_UNITS`, or `auto`.
        counts: The number of cells in each finer unit, and of `iso` dates, is added here.

    Returns:
        (rows,) seconds, NaN where the cell is empty or unreadable.
    """
    seconds = _numbers(column)
    numbers = np.flatnonzero(np.isfinite(seconds))
    units = list(TIME_UNITS)
    if unit == AUTO_UNIT:
        kinds = np.digitize(np.abs(seconds[numbers]), _LEAST)
    else:
        kinds = np.full(len(numbers), units.index(unit))
    seconds[numbers] /= np.array(list(TIME_UNITS.values()))[kinds]
    sizes = dict(zip(units, np.bincount(kinds, minlength=len(units)).tolist(), strict=True))
    counts.update({name: size for name, size in sizes.items() if size and name != "s"})
    texts = np.flatnonzero(np.isnan(seconds))
    if len(texts):
        dates = pd.to_datetime(column.iloc[texts], format="ISO8601", utc=True, errors="coerce")
        seconds[texts] = (dates - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)
        counts["iso"] += int(dates.notna().sum())
    return seconds


def read_ratings(column: pd.Series[Any], counts: Counter[str]) -> npt.NDArray[np.float64]:
    """Read ratings as numbers, NaN where a cell holds none; texts are counted as `odd rating`."""
    ratings = _numbers(column)
    counts["odd rating"] += int((np.isnan(ratings) & column.notna().to_numpy()).sum())
    return ratings


def _numbers(column: pd.Series[Any]) -> npt.NDArray[np.float64]:
    """The finite numbers of a column, NaN for all other cells; a new array."""
    values: npt.NDArray[np.float64] = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, copy=True)
    values[~np.isfinite(values)] = np.nan
    return values


def number_cells(values: npt.NDArray[np.float64]) -> list[str]:
    """Numbers as text that reads back to the same number: whole ones without a point, NaN as an empty cell."""
    whole = values == np.floor(values)
    if whole.all() and (np.abs(values) < 2**62).all():
        return list(map(str, values.astype(np.int64).tolist()))
    numbers = values.tolist()
    return ["" if number != number else f"{number!r}".removesuffix(".0") for number in numbers]
