"""What one cell means: ids of any text, times in any of the usual spellings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from recbole_lisa.datasets.layouts import AUTO_UNIT, TIME_UNITS

# Least sizes of milli-, micro- and nanoseconds: years beyond 5000 in the coarser unit, 1973 in the finer one.
_LEAST = (1e11, 1e14, 1e17)

# What pandas, and so RecBole's own loader, takes for a missing cell.
MISSING_WORDS = frozenset(
    ["#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>"]
    + ["N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"]
)
PADDING_WORD = "[PAD]"
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {9: "\\t", 10: "\\n", 13: "\\r"}


class Ids:
    r"""The distinct ids of one column, numbered from 0 in order of appearance.

    Any text is an id and stays as it is, blanks around it included. Only what a line of the atomic file cannot
    hold is written otherwise: control characters (tabs and line breaks among them) and halves of surrogate
    pairs become an escape such as `\t`.

    Attributes:
        cells: The ids as the cells of the atomic file, by number.
        counts: How many ids were `escaped`, are words that RecBole reads as `missing`, or are the `padding` word.
    """

    def __init__(self) -> None:
        self.cells: list[str] = []
        self.counts: Counter[str] = Counter()
        self._numbers: dict[str, int] = {}
        self._is_written = bytearray()

    def __len__(self) -> int:
        """Number of distinct ids."""
        return len(self.cells)

    def codes(self, column: npt.NDArray[np.object_]) -> npt.NDArray[np.int64]:
        """Number the ids of a column.

        Args:
            column: (rows,) texts.

        Returns:
            (rows,) numbers, -1 where the text is empty.
        """
        rows, texts = pd.factorize(column)
        numbers = np.array([self._number(text) for text in texts], dtype=np.int64)
        return numbers[rows] if len(texts) else np.full(len(rows), -1)

    def written(self, codes: npt.NDArray[np.int64]) -> Iterator[str]:
        """The cells of rows that go into the atomic file.

        Args:
            codes: (rows,) numbers, at least 0.
        """
        self._is_written.extend(bytes(len(self.cells) - len(self._is_written)))
        np.frombuffer(self._is_written, dtype=np.uint8)[codes] = 1
        return map(self.cells.__getitem__, codes.tolist())

    @property
    def n_written(self) -> int:
        """Distinct ids among those that `written` was asked for."""
        return self._is_written.count(1)

    def _number(self, text: str) -> int:
        if not text:
            return -1
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = self._add(text)
        return number

    def _add(self, text: str) -> int:
        plain = text if text.isprintable() else _escaped(text)
        if plain != text:
            self.counts["escaped"] += 1
            if plain in self._numbers:
                return self._numbers[plain]
            self._numbers[plain] = len(self.cells)
        self.counts["missing"] += plain in MISSING_WORDS
        self.counts["padding"] += plain == PADDING_WORD
        self.cells.append('"' + plain.replace('"', '""') + '"' if '"' in plain else plain)
        return len(self.cells) - 1


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES).encode("utf-8", "backslashreplace").decode("utf-8")


def read_times(column: npt.NDArray[np.object_], unit: str, counts: Counter[str]) -> npt.NDArray[np.float64]:
    """Times as seconds since 1970.

    A number is in `unit`; with `auto` its size says which: from 1e11 on it is milliseconds, from 1e14 on
    microseconds, from 1e17 on nanoseconds, and seconds below. Any other text must be an ISO 8601 date, with or
    without a time of day; without a zone it is UTC.

    Args:
        column: (rows,) texts.
        unit: A key of `TIME_UNITS`, or `auto`.
        counts: How many cells were in each finer unit or were an `iso` date is added here.

    Returns:
        (rows,) seconds, NaN where the text is empty or cannot be read.
    """
    seconds = _numbers(column)
    numbers = np.flatnonzero(np.isfinite(seconds))
    units = list(TIME_UNITS)
    if unit == AUTO_UNIT:
        kinds = np.digitize(np.abs(seconds[numbers]), _LEAST)
    else:
        kinds = np.full(len(numbers), units.index(unit))
    seconds[numbers] /= np.array(list(TIME_UNITS.values()))[kinds]
    found = dict(zip(units, np.bincount(kinds, minlength=len(units)).tolist(), strict=True))
    counts.update({name: count for name, count in found.items() if count and name != "s"})
    words = np.flatnonzero(np.isnan(seconds))
    if len(words):
        dates = _iso_seconds(column[words])
        counts["iso"] += int(np.isfinite(dates).sum())
        seconds[words] = dates
    return seconds


def _iso_seconds(texts: npt.NDArray[np.object_]) -> npt.NDArray[np.float64]:
    dates = pd.to_datetime(pd.Series(texts), format="ISO8601", utc=True, errors="coerce")
    since = (dates - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)
    seconds: npt.NDArray[np.float64] = since.to_numpy(np.float64)
    return seconds


def read_ratings(column: npt.NDArray[np.object_], counts: Counter[str]) -> npt.NDArray[np.float64]:
    """Ratings as numbers, NaN where a cell is empty or holds none; the latter are counted as `odd rating`."""
    rows, texts = pd.factorize(column)
    values = _numbers(texts)
    odd = np.isnan(values) & (texts != "")
    counts["odd rating"] += int(odd[rows].sum())
    ratings: npt.NDArray[np.float64] = values[rows]
    return ratings


def _numbers(texts: npt.NDArray[np.object_]) -> npt.NDArray[np.float64]:
    """A new array of the finite numbers among some texts, NaN for all others."""
    numbers = pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce")
    values: npt.NDArray[np.float64] = numbers.to_numpy(np.float64, copy=True)
    values[~np.isfinite(values)] = np.nan
    return values


def number_cells(values: npt.NDArray[np.float64]) -> list[str]:
    """Numbers as text that reads back to the same number: whole ones without a point, NaN as an empty cell."""
    whole = values == np.floor(values)
    if whole.all() and (np.abs(values) < 2**62).all():
        return list(map(str, values.astype(np.int64).tolist()))
    numbers: list[Any] = values.tolist()
    return [_number_cell(number) for number in numbers]


def _number_cell(number: float) -> str:
    if number != number:
        return ""
    return str(int(number)) if number.is_integer() else repr(number)
