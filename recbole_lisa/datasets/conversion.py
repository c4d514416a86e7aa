"""From rows of text to the atomic file, piece by piece: memory grows with the distinct ids, not with the text.

Of each row only a hash of 8 bytes stays, to recognise repeated rows. Two different rows of 25 million have the same
hash with a probability of 2e-5.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pandas as pd

from recbole_lisa.datasets.cells import Ids, number_cells, read_numbers, read_times
from recbole_lisa.datasets.layouts import Layout
from recbole_lisa.datasets.reader import PARQUET_SUFFIXES, read_pieces
from recbole_lisa.datasets.source import open_raw
from recbole_lisa.errors import UsageError
from recbole_lisa.files import atomic_writer, check_output, locked, new_folder, resolved, tidy_termination

_DECIMAL = re.compile(r"-?\d+\.0")
_LEFT_OUT = {
    "no user": "without a user",
    "no item": "without an item",
    "no time": "without a time",
    "odd time": "with a time that is neither a number up to the year 9999 nor an ISO date",
    "repeated": "equal to an earlier row in every column",
}
_NOTES = {
    "ms": "times in milliseconds, written as seconds",
    "us": "times in microseconds, written as seconds",
    "ns": "times in nanoseconds, written as seconds",
    "basic": "times such as 20260301, read as seconds since 1970; write a date as 2026-03-01",
    "serial": "times from 20000 to 80000, read as seconds of 1970; write the days of a spreadsheet as 2026-03-01",
    "iso": "times as dates, written as seconds since 1970 (UTC where no zone is named)",
    "odd rating": "ratings that are no number, left empty",
    "bom": "byte-order mark, skipped",
    "crlf": "file with Windows line ends, read like any other",
    "escaped": "ids with tabs, line breaks or other control characters, written as escapes such as \\t",
    "blank": "ids with a blank at an end, kept; they are other ids than those without",
    "decimal": "ids such as 1.0 in a whole column, kept; they are other ids than 1",
    "missing": "ids such as NA or null, kept; RecBole's own loader would drop them as missing",
    "padding": "id spelled [PAD], kept apart from the padding",
}


def convert(
    source: Path, output: Path, layout: Layout, *, overwrite: bool = False, show_progress: bool = False
) -> "Conversion":
    """Write `<output>/<name of output>.inter`, whole or not at all.

    Rows keep their order, so equal times stay in the order of the raw file. A row without a user, an item or a
    readable time is left out; of rows that are equal in every column the first one stays. See `Ids` and `read_times`
    for what a cell means. `source` is the raw file, its archive, or the folder of its archive; the name of the folder
    `output` becomes the data set's.

    Raises:
        UsageError: No row of the raw file can be read or used, the result cannot be written, or another process writes
            it.
    """
    name = resolved(output).name
    if not name:
        raise UsageError(f"the output is '{output}', whose name names no data set: give a folder such as dataset/mine")
    target = output / f"{name}.inter"
    try:
        check_output(target, overwrite=overwrite, source=source)
        with (
            tidy_termination(),
            new_folder(output),
            locked(target.with_suffix(".lock"), f"another process writes '{target}': wait for its end"),
            atomic_writer(target, overwrite=overwrite) as stream,
            open_raw(source, layout.members) as raw,
        ):
            member = "" if raw.name == source.name else f" ({raw.name})"
            conversion = Conversion(source.name + member, target, layout, stream)
            if not raw.name.lower().endswith(PARQUET_SUFFIXES):
                encoding, start = raw.start(layout.encoding)
                conversion.notes.update(bom=int(encoding != layout.encoding), crlf=int("\r\n" in start))
            for piece in read_pieces(raw, layout, show_progress=show_progress):
                conversion.add(piece)
            if not conversion.rows[1]:
                reasons = "; ".join(conversion.lines()[1:-1]) or "it holds no rows"
                raise UsageError(f"no row of {conversion.name} can be used: {reasons}")
            return conversion
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error


class Conversion:
    """Writes pieces of a raw file to an atomic file, and counts.

    rows, users and items are numbers read and written, of distinct users and items; left_out counts rows by reason,
    and notes what else occurred.
    """

    def __init__(self, name: str, target: Path, layout: Layout, stream: BinaryIO) -> None:
        self.name = name
        self.rows = self.users = self.items = (0, 0)
        self.left_out: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()
        self._odd = ""  # the first time that cannot be read
        self._target, self._stream, self._unit = target, stream, layout.time_unit
        self._repeats = None if layout.keeps_repeated else RepeatedRows()
        self._users, self._items = Ids(self.notes), Ids(self.notes)
        rating = "rating:float\t" if "rating" in layout.table else ""
        stream.write(f"user_id:token\titem_id:token\t{rating}timestamp:float\n".encode())

    def add(self, piece: pd.DataFrame) -> None:
        """Write the rows of a piece that can be used, and count the others."""
        users, items = self._users.codes(piece["user"]), self._items.codes(piece["item"])
        times = read_times(piece["time"], self._unit, self.notes)
        columns: list[npt.NDArray[Any]] = [users, items, times]
        if "rating" in piece:
            ratings = read_numbers(piece["rating"])
            self.notes["odd rating"] += int((np.isnan(ratings) & piece["rating"].notna()).sum())
            columns.append(ratings)
        no_time = piece["time"].isna().to_numpy()
        lacks = {"no user": users < 0, "no item": items < 0, "no time": no_time, "odd time": np.isnan(times)}
        if not self._odd and (odd := np.flatnonzero(np.isnan(times) & ~no_time)).size:
            self._odd = f" (row {self.rows[0] + odd[0] + 1} below the header: {str(piece['time'].iloc[odd[0]])[:40]!r})"
        usable = np.ones(len(users), dtype=bool)
        for reason, lacking in lacks.items():  # a row counts under the first reason
            self.left_out[reason] += int((lacking & usable).sum())
            usable &= ~lacking
        kept = np.flatnonzero(usable)
        if self._repeats is not None:
            kept = kept[self._repeats.new_rows([column[kept] for column in columns])]
            self.left_out["repeated"] = self._repeats.count
        self.rows = (self.rows[0] + len(users), self.rows[1] + len(kept))
        if len(kept):
            users, items, times, *rating = (column[kept] for column in columns)
            cells = [self._users.write(users), self._items.write(items), *map(number_cells, [*rating, times])]
            self._stream.write("".join(["\n".join(map("\t".join, zip(*cells, strict=True))), "\n"]).encode())
        self.users, self.items = ((len(ids.cells), len(ids.written)) for ids in (self._users, self._items))

    def lines(self) -> list[str]:
        """The counts as text, a line for each that is not 0."""
        (read, written), (users, kept_users), (items, kept_items) = self.rows, self.users, self.items
        left, odd = self.left_out, self._odd
        decimal = (len(ids.cells) for ids in (self._users, self._items) if all(map(_DECIMAL.fullmatch, ids.cells)))
        self.notes["decimal"] = sum(decimal)
        return [
            f"read {self.name}: {read:,} rows, {users:,} users, {items:,} items",
            *(f"rows left out {_LEFT_OUT[key]}: {n:,}{odd * (key == 'odd time')}" for key, n in left.items() if n),
            *(f"noted: {text}: {self.notes[key]:,}" for key, text in _NOTES.items() if self.notes[key]),
            f"wrote {self._target}: {written:,} rows, {kept_users:,} users, {kept_items:,} items",
        ]


class RepeatedRows:
    """Recognises repeated rows by a 64-bit hash of each; `count` is the number of rows that repeat an earlier one."""

    def __init__(self) -> None:
        self.count = 0
        self._known = np.empty(0, dtype=np.uint64)  # ascending

    def new_rows(self, columns: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
        """Positions of the rows that are new, ascending, from columns of (rows,) numbers; NaN equals NaN."""
        hashes = pd.util.hash_pandas_object(pd.DataFrame(dict(enumerate(columns))), index=False).to_numpy()
        distinct, first = np.unique(hashes, return_index=True)
        at = np.asarray(np.searchsorted(self._known, distinct))
        new = at == np.searchsorted(self._known, distinct, side="right")
        self._known = np.insert(self._known, at[new], distinct[new])
        self.count += len(hashes) - int(new.sum())
        return np.sort(first[new])
