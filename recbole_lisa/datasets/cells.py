"""What a cell means: ids of any text, times in any of the usual notations, ratings."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from recbole_lisa.datasets.layouts import AUTO_UNIT, TIME_UNITS

MISSING = frozenset(
    ["", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>"]
    + ["N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"]
)
"""Texts that pandas, and so RecBole's own loader, reads as a missing cell. Of ids only the empty text is missing."""

# Least sizes of milli-, micro- and nanoseconds: years beyond 5000 in the coarser unit, 1973 in the finer one.
_LEAST = (1e11, 1e14, 1e17)
_SERIAL_DAYS = (2e4, 8e4)
"""The years from 1954 to 2119 as days since 1899-12-30, which spreadsheets write; no data set is of one day in 1970."""
_NANOSECONDS_OF_YEAR_10000 = 253402300800e9
# What a line of text in UTF-8 cannot hold: control characters and halves of surrogate pairs.
_CONTROL = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


class Ids:
    r"""The distinct ids of one column, numbered from 0 in order of appearance.

    Any text is an id and stays as it is, blanks and quotes included. Only control characters (tabs and line breaks
    among them) and halves of surrogate pairs are replaced by an escape such as `\t`.

    `cells` has the ids as cells of the atomic file, by number, and `written` the numbers that went into it. `counts`
    grows by ids that are escaped, end in a blank, look missing to RecBole or are spelled like the padding.
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
        if text not in self._numbers:
            cell = _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
            if cell not in self._numbers:
                self._numbers[cell] = len(self.cells)
                self.cells.append(cell)
                self._counts["missing"] += cell in MISSING
                self._counts["padding"] += cell == "[PAD]"
            self._counts["escaped"] += cell != text
            self._counts["blank"] += text != text.strip()
            self._numbers[text] = self._numbers[cell]
        return self._numbers[text]


def read_times(column: pd.Series[Any], unit: str, counts: Counter[str]) -> npt.NDArray[np.float64]:
    """Read times as seconds since 1970: (rows,) texts -> (rows,) seconds, NaN where a cell is empty or unreadable.

    A number is in `unit`; with `auto` its size decides: from 1e11 on it is milliseconds, from 1e14 on microseconds,
    from 1e17 to the year 9999 nanoseconds, and seconds below. Any other text must be an ISO 8601 date, with or without
    a time of day; without a zone it is UTC. The number of cells in each finer unit, and of `iso` dates, is added to
    `counts`.
    """
    seconds = read_numbers(column)
    if unit == AUTO_UNIT:
        seconds[np.abs(seconds) >= _NANOSECONDS_OF_YEAR_10000] = np.nan
        month, day = seconds // 100 % 100, seconds % 100
        is_day = (seconds >= 19700101) & (seconds < 21000101) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
        counts["basic"] += int(is_day.sum())
        numbers = seconds[~np.isnan(seconds)]
        if ((numbers >= _SERIAL_DAYS[0]) & (numbers < _SERIAL_DAYS[1])).all():
            counts["serial"] += len(numbers)
    is_number = np.isfinite(seconds)
    kinds = np.digitize(np.abs(seconds), _LEAST)
    if unit != AUTO_UNIT:
        kinds[:] = list(TIME_UNITS).index(unit)
    seconds /= np.array(list(TIME_UNITS.values()))[kinds]
    sizes = np.bincount(kinds[is_number], minlength=len(TIME_UNITS)).tolist()
    counts.update(dict(zip(("ms", "us", "ns"), sizes[1:], strict=True)))
    texts = np.flatnonzero(~is_number)
    if len(texts):
        dates = pd.to_datetime(column.iloc[texts], format="ISO8601", utc=True, errors="coerce")
        seconds[texts] = (dates - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)
        counts["iso"] += int(dates.notna().sum())
    return seconds


def read_numbers(column: pd.Series[Any]) -> npt.NDArray[np.float64]:
    """The finite numbers of a column (rows,) of texts, NaN for all other cells; a new array."""
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
