"""From rows of text to the atomic file, piece by piece: memory grows with the distinct ids, not with the text.

Of each row only a hash of 8 bytes stays, to recognise repeated rows. Two different rows of 25 million have the same
hash with a probability of 2e-5.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pandas as pd
from tqdm import tqdm

from recbole_lisa.datasets.cells import Ids, number_cells, read_ratings, read_times
from recbole_lisa.datasets.layouts import Layout
from recbole_lisa.datasets.reader import PARQUET_SUFFIXES, read_pieces
from recbole_lisa.datasets.report import ConversionReport
from recbole_lisa.datasets.source import open_raw
from recbole_lisa.errors import UsageError
from recbole_lisa.files import atomic_writer, check_output, new_folder, tidy_termination


def convert(
    source: Path, output: Path, layout: Layout, *, overwrite: bool = False, show_progress: bool = False
) -> ConversionReport:
    """Write `<output>/<name of output>.inter`, whole or not at all.

    Rows keep their order, so equal times stay in the order of the raw file. A row without a user, an item or a
    readable time is left out; of rows that are equal in every column the first one stays. See `Ids` and `read_times`
    for what a cell means.

    Args:
        source: The raw file, its archive, or the folder of its archive.
        output: The folder of the data set; its name becomes the data set's.
        layout: How to read the raw file.
        overwrite: Replace an existing file.
        show_progress: Draw a bar on a terminal.

    Returns:
        The counts.

    Raises:
        UsageError: The raw file is missing, damaged or not of this layout, no row of it can be used, or the
            result cannot be written.
    """
    name = output.resolve().name
    if not name:
        raise UsageError(f"the output is '{output}', whose name names no data set: give a folder such as dataset/mine")
    target = output / f"{name}.inter"
    try:
        check_output(target, overwrite=overwrite)
        with tidy_termination(), new_folder(output), atomic_writer(target) as stream:
            return _convert(source, target, stream, layout, show_progress)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error


def _convert(source: Path, target: Path, stream: BinaryIO, layout: Layout, show_progress: bool) -> ConversionReport:
    report = ConversionReport(source.name, target)
    conversion = _Conversion(layout, report, stream)
    with open_raw(source, layout.members) as raw:
        if raw.name != source.name:
            report.name = f"{source.name} ({raw.name})"
        if not raw.name.lower().endswith(PARQUET_SUFFIXES):
            encoding, start = raw.start(layout.encoding)
            report.notes["bom"], report.notes["crlf"] = int(encoding != layout.encoding), int("\r\n" in start)
        # None hides the bar where stderr is no terminal.
        bar = tqdm(total=raw.size, unit="B", unit_scale=True, desc=raw.name, disable=None if show_progress else True)
        with bar:
            for piece in read_pieces(raw, layout):
                conversion.add(piece)
                bar.update(raw.position() - bar.n)
    conversion.finish()
    return report


class _Conversion:
    """The state between two pieces."""

    def __init__(self, layout: Layout, report: ConversionReport, stream: BinaryIO) -> None:
        self._unit = layout.time_unit
        self._repeats = None if layout.keeps_repeated else RepeatedRows()
        self._report, self._stream = report, stream
        self._users, self._items = Ids(), Ids()
        self._written_users: set[int] = set()
        self._written_items: set[int] = set()
        self._read = self._written = 0
        rating = "rating:float\t" if "rating" in layout.table else ""
        stream.write(f"user_id:token\titem_id:token\t{rating}timestamp:float\n".encode())

    def add(self, piece: pd.DataFrame) -> None:
        """Write the rows of a piece that can be used, and count the others."""
        report = self._report
        users, items = self._users.codes(piece["user"]), self._items.codes(piece["item"])
        times = read_times(piece["time"], self._unit, report.notes)
        columns: list[npt.NDArray[Any]] = [users, items, times]
        if "rating" in piece:
            columns.append(read_ratings(piece["rating"], report.notes))
        no_time = piece["time"].isna().to_numpy()
        lacks = {"no user": users < 0, "no item": items < 0, "no time": no_time, "odd time": np.isnan(times)}
        usable = np.ones(len(users), dtype=bool)
        for reason, lacking in lacks.items():  # a row counts under the first reason
            report.left_out[reason] += int((lacking & usable).sum())
            usable &= ~lacking
        kept = np.flatnonzero(usable)
        if self._repeats is not None:
            kept = kept[self._repeats.new_rows([column[kept] for column in columns])]
            report.left_out["repeated"] = self._repeats.count
        self._read += len(users)
        if len(kept):
            self._write([column[kept] for column in columns])

    def _write(self, columns: list[npt.NDArray[Any]]) -> None:
        users, items, times, *ratings = columns
        self._written += len(users)
        self._written_users.update(np.unique(users).tolist())
        self._written_items.update(np.unique(items).tolist())
        texts = [
            map(self._users.cells.__getitem__, users.tolist()),
            map(self._items.cells.__getitem__, items.tolist()),
            *map(number_cells, [*ratings, times]),
        ]
        self._stream.write("".join(["\n".join(map("\t".join, zip(*texts, strict=True))), "\n"]).encode())

    def finish(self) -> None:
        """Complete the report.

        Raises:
            UsageError: There is no row.
        """
        report = self._report
        report.rows = (self._read, self._written)
        report.users = (len(self._users.cells), len(self._written_users))
        report.items = (len(self._items.cells), len(self._written_items))
        for ids in (self._users, self._items):
            report.notes.update(ids.counts)
        if not self._written:
            reasons = "; ".join(report.lines()[1:-1]) or "it holds no rows"
            raise UsageError(f"no row of {report.name} can be used: {reasons}")


class RepeatedRows:
    """Recognises repeated rows by a 64-bit hash of each.

    Attributes:
        count: Rows that repeated an earlier one.
    """

    def __init__(self) -> None:
        self.count = 0
        self._known = np.empty(0, dtype=np.uint64)  # ascending

    def new_rows(self, columns: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
        """Positions of the rows that have not occurred before, ascending; from now on they have.

        Args:
            columns: (rows,) numbers each; NaN equals NaN.
        """
        hashes = pd.util.hash_pandas_object(pd.DataFrame(dict(enumerate(columns))), index=False).to_numpy()
        distinct, first = np.unique(hashes, return_index=True)
        at = np.asarray(np.searchsorted(self._known, distinct))
        new = np.ones(len(distinct), dtype=bool)
        inside = at < len(self._known)
        new[inside] = self._known[at[inside]] != distinct[inside]
        self._known = np.insert(self._known, at[new], distinct[new])
        self.count += len(hashes) - int(new.sum())
        return np.sort(first[new])
