"""From rows of text to the atomic file, piece by piece: memory grows with the distinct ids, not with the text.

Only what tells repeated rows stays of each row: a hash of 8 bytes. Two different rows of 25 million share one
with a probability of 2e-5.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pandas as pd
from tqdm import tqdm

from recbole_lisa.datasets import tables
from recbole_lisa.datasets.cells import Ids, number_cells, read_ratings, read_times
from recbole_lisa.datasets.layouts import Layout
from recbole_lisa.datasets.report import ConversionReport
from recbole_lisa.datasets.source import RawFile, open_raw, text_start
from recbole_lisa.errors import UsageError
from recbole_lisa.files import atomic_writer, check_output, new_folder, tidy_termination

_HEADER = "user_id:token\titem_id:token\t{rating}timestamp:float\n"


def convert(
    source: Path, output: Path, layout: Layout, *, overwrite: bool = False, show_progress: bool = False
) -> ConversionReport:
    """Write `<output>/<name of output>.inter`, whole or not at all.

    Rows keep their order, so that equal times stay in the order of the raw file. A row without a user, an item
    or a readable time is left out; of rows that are equal in every column the first one stays. See `Ids` and
    `read_times` for what a cell means.

    Args:
        source: The raw file, its archive, or the folder of its archive.
        output: The folder of the data set; its name becomes the data set's.
        layout: How to read the raw file.
        overwrite: Replace a file that is there.
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
    with open_raw(source, layout.members) as (raw, buffered):
        if raw.name != source.name:
            report.name = f"{source.name} ({raw.name})"
        # None hides the bar where stderr is no terminal.
        bar = tqdm(total=raw.total, unit="B", unit_scale=True, desc=raw.name, disable=None if show_progress else True)
        with bar:
            for piece in _pieces(raw, buffered, layout):
                conversion.add(piece)
                bar.update(raw.position - bar.n)
        report.notes["bom"], report.notes["crlf"] = int(raw.has_bom), int(raw.has_crlf)
    conversion.finish()
    return report


def _pieces(raw: RawFile, stream: io.BufferedReader, layout: Layout) -> Iterator[tables.Piece]:
    """Read the file as its name says: parquet, JSON lines, or delimited text."""
    kind = Path(raw.name).suffix.lower()
    if kind in tables.PARQUET_SUFFIXES:
        if raw.path is None:
            raise UsageError(f"{raw.name} is a parquet file inside an archive: unpack it first")
        return tables.read_parquet(raw.path, layout.table)
    encoding, head = text_start(raw, stream, layout.encoding)
    if kind in tables.LINE_SUFFIXES:
        return tables.read_lines(stream, raw.name, layout.lines or layout.table, encoding=encoding)
    return tables.read_table(
        stream,
        raw.name,
        layout.table,
        separator=layout.separator or tables.find_separator(head, layout.table),
        header=layout.header,
        quoted=layout.quoted,
        encoding=encoding,
    )


class _Conversion:
    """The state between two pieces."""

    def __init__(self, layout: Layout, report: ConversionReport, stream: BinaryIO) -> None:
        self._unit = layout.time_unit
        self._repeats = None if layout.keeps_repeated else RepeatedRows()
        self._report, self._stream = report, stream
        self._users, self._items = Ids(), Ids()
        self._read = self._written = 0
        has_rating = "rating" in layout.table
        stream.write(_HEADER.format(rating="rating:float\t" if has_rating else "").encode())

    def add(self, piece: tables.Piece) -> None:
        """Write the rows of a piece that can be used, and count the others."""
        notes = self._report.notes
        users, items = self._users.codes(piece["user"]), self._items.codes(piece["item"])
        times = read_times(piece["time"], self._unit, notes)
        columns: list[npt.NDArray[Any]] = [users, items, times]
        if "rating" in piece:
            columns.append(read_ratings(piece["rating"], notes))
        kept = self._usable(users, items, times, piece["time"])
        if self._repeats is not None:
            kept = kept[self._repeats.new_rows([column[kept] for column in columns])]
            self._report.left_out["repeated"] = self._repeats.count
        self._write([column[kept] for column in columns])
        self._read += len(users)
        self._written += len(kept)

    def _usable(
        self,
        users: npt.NDArray[np.int64],
        items: npt.NDArray[np.int64],
        times: npt.NDArray[np.float64],
        texts: npt.NDArray[np.object_],
    ) -> npt.NDArray[np.int64]:
        """Positions of the rows with a user, an item and a time; the others are counted under the first lack."""
        lacks = {"no user": users < 0, "no item": items < 0, "no time": texts == "", "odd time": np.isnan(times)}
        left = np.zeros(len(users), dtype=bool)
        for reason, lacking in lacks.items():
            self._report.left_out[reason] += int((lacking & ~left).sum())
            left |= lacking
        return np.flatnonzero(~left)

    def _write(self, columns: list[npt.NDArray[Any]]) -> None:
        users, items, times, *ratings = columns
        if not len(users):
            return
        texts = [self._users.written(users), self._items.written(items), *map(number_cells, [*ratings, times])]
        self._stream.write("".join(["\n".join(map("\t".join, zip(*texts, strict=True))), "\n"]).encode())

    def finish(self) -> None:
        """Complete the report.

        Raises:
            UsageError: There is no row.
        """
        report, users, items = self._report, self._users, self._items
        report.rows = (self._read, self._written)
        report.users, report.items = (len(users), users.n_written), (len(items), items.n_written)
        for ids in (users, items):
            report.notes.update(ids.counts)
        if not self._written:
            reasons = "; ".join(report.lines()[1:-1]) or "it holds no rows"
            raise UsageError(f"no row of {report.name} can be used: {reasons}")


class RepeatedRows:
    """Remembers which rows have been, by a 64-bit hash of each.

    Attributes:
        count: Rows that were there before.
    """

    def __init__(self) -> None:
        self.count = 0
        self._runs: list[npt.NDArray[np.uint64]] = []

    def new_rows(self, columns: list[npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
        """Positions of the rows that have not been, ascending; from now on they have.

        Args:
            columns: (rows,) numbers each; NaN equals NaN.
        """
        hashes = pd.util.hash_pandas_object(pd.DataFrame(dict(enumerate(columns))), index=False).to_numpy()
        distinct, first = np.unique(hashes, return_index=True)
        new = np.ones(len(distinct), dtype=bool)
        for run in self._runs:
            at = np.searchsorted(run, distinct)
            new &= run[np.minimum(at, len(run) - 1)] != distinct
        self.count += len(hashes) - int(new.sum())
        self._remember(distinct[new])
        return np.sort(first[new])

    def _remember(self, hashes: npt.NDArray[np.uint64]) -> None:
        """Keep sorted runs, each more than twice as long as the next, so that there are few."""
        if len(hashes):
            self._runs.append(hashes)
        while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
            merged = np.concatenate([self._runs.pop(), self._runs.pop()])
            merged.sort(kind="stable")
            self._runs.append(merged)
