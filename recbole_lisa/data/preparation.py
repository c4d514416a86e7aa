"""Prepare a data set that does not fit in memory: read, filter and sort its rows part by part.

1. The text is read part by part. Tokens become numbers (`tokens.py`), and a row becomes a record in a file.
2. The filters read the records block by block and change a mask of rows. Users and items are numbered by appearance.
3. Rows go to files of some users each. Each of these fits in memory, is sorted by user and time, and is appended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pandas as pd
from recbole.utils import FeatureSource, FeatureType

from recbole_lisa.config.data_checks import parse_intervals
from recbole_lisa.data import atomic
from recbole_lisa.data.filtering import INTERVAL_KEYS, outside, run_filters, value_filters
from recbole_lisa.data.histories import Histories, Index
from recbole_lisa.data.loading import PART, check_times, choose_columns, reading_of, register, register_part
from recbole_lisa.data.tokens import Numbering, Tokens
from recbole_lisa.datasets.obtain import interaction_files
from recbole_lisa.errors import UsageError
from recbole_lisa.progress import progress_bar

ROLES = ("user", "item")
Records = npt.NDArray[np.void]

_ROW = np.dtype([("user", "<i4"), ("item", "<i4"), ("time", "<f8"), ("passes", "?"), ("part", "|u1"), ("place", "<i8")])
_BLOCK_ROWS, _MOST_FILES = 2**21, 64
_LAST = np.iinfo(np.int64).max


class _Rows:
    """Records of rows in a file; the mask `kept` (rows,) marks those that the filters leave."""

    def __init__(self, path: Path, n_rows: int, n_tokens: list[int], show_progress: bool) -> None:
        self.path, self.kept, self._n_tokens = path, np.ones(n_rows, dtype=bool), n_tokens
        self._bar = partial(progress_bar, total=n_rows, unit=" rows", show_progress=show_progress)
        self._sizes: list[Index] | None = None

    def n_kept(self) -> int:
        return int(np.count_nonzero(self.kept))

    def blocks(self) -> Iterator[Records]:
        """The records that are kept, in the order of the file."""
        with self.path.open("rb") as stream, self._bar(description="filtering") as bar:
            for start in range(0, len(self.kept), _BLOCK_ROWS):
                records = np.fromfile(stream, _ROW, count=_BLOCK_ROWS)
                yield records[self.kept[start : start + _BLOCK_ROWS]]
                bar.update(len(records))

    def sizes(self) -> list[Index]:
        """How often each user and each item occurs in the rows that are kept."""
        if self._sizes is None:
            self._sizes = [np.zeros(n, dtype=np.int64) for n in self._n_tokens]
            for records in self.blocks():
                for sizes, role in zip(self._sizes, ROLES, strict=True):
                    sizes += np.bincount(records[role][records[role] >= 0], minlength=len(sizes))
        return self._sizes

    def keep(self, choose: Callable[[Records], npt.NDArray[np.bool_]]) -> None:
        """Keep only the rows that `choose` marks in each block."""
        n_before = self.n_kept()
        for records in self.blocks():
            self.kept[records["place"]] = choose(records)
        self._sizes = self._sizes if self.n_kept() == n_before else None

    def by_user(self, order: Index) -> Iterator[Records]:
        """The records that are kept in parts of users, by an `order` of users; a part has the order of the file."""
        starts = np.cumsum(self.sizes()[0][order]) - self.sizes()[0][order]
        file_of = np.zeros(self._n_tokens[0], dtype=np.uint8)
        file_of[order] = starts // max(_BLOCK_ROWS, self.n_kept() // _MOST_FILES + 1)
        paths = [self.path.with_name(f"part-{number}") for number in range(file_of.max(initial=0) + 1)]
        with ExitStack() as stack:
            streams = [stack.enter_context(path.open("wb")) for path in paths]
            for records in self.blocks():
                files = file_of[records["user"]]
                records = records[np.argsort(files, kind="stable")]
                ends = np.cumsum(np.bincount(files, minlength=len(paths)))
                for stream, part in zip(streams, np.split(records, ends[:-1]), strict=True):
                    stream.write(part.tobytes())
        with self._bar(description="sorting", total=self.n_kept()) as bar:
            for path in paths:
                records = np.fromfile(path, _ROW)
                yield records
                bar.update(len(records))
                path.unlink()

    def drop_repeated(self, keep: str) -> None:
        """Keep the `first` or `last` row in time of each user and item; equal times have the order of the file."""
        kept = np.zeros_like(self.kept)
        for part in self.by_user(np.arange(self._n_tokens[0])):
            part = part[np.lexsort((part["time"], part["item"], part["user"]))]
            new = np.ones(len(part) + 1, dtype=bool)
            new[1:-1] = (np.diff(part["user"]) != 0) | (np.diff(part["item"]) != 0)
            kept[part["place"][new[:-1] if keep == "first" else new[1:]]] = True
        self.kept, self._sizes = kept, None

    def first_appearances(self, by_time: bool) -> list[Index]:
        """The numbers of users and items that are kept, as they first appear in the file, or in time."""
        if not by_time and self.kept.all():
            return [np.arange(n) for n in self._n_tokens]
        firsts = [(np.full(n, np.inf), np.full(n, _LAST)) for n in self._n_tokens]
        for records in self.blocks():
            records["time"] = np.where(np.isnan(records["time"]), np.inf, records["time"]) if by_time else 0.0
            records = records[np.argsort(records["time"], kind="stable")]
            for role, (time, place) in zip(ROLES, firsts, strict=True):
                numbers, at = np.unique(records[role], return_index=True)
                earlier = (records["time"][at] < time[numbers]) | (place[numbers] == _LAST)
                numbers, at = numbers[earlier], at[earlier]
                time[numbers], place[numbers] = records["time"][at], records["place"][at]
        return [np.lexsort((place, time))[: np.count_nonzero(place < _LAST)] for time, place in firsts]

    def mean_time(self, dataset: Any, by_time: bool) -> float:
        """The mean of the times that are kept, for rows without a time; 0 where every row has one."""
        missing = sum(int(np.isnan(records["time"]).sum()) for records in self.blocks())
        if not missing:
            return 0.0
        dataset.logger.warning(f"{missing} rows without {dataset.time_field} are ordered as if at the mean time")
        times = np.concatenate([records["time"] for records in self.blocks()])
        mean = float(pd.Series(np.sort(times) if by_time else times).mean())  # the sum depends on the order
        if np.isnan(mean):
            raise UsageError(f"column {dataset.time_field} of {dataset.dataset_name} holds no number")
        return mean


def write_arrays(dataset: Any, folder: Path) -> None:
    """Write the arrays of a data set, whose settings are read and whose files are not, into a folder.

    Raises:
        UsageError: Something in the files or in the settings is wrong.
    """
    started = perf_counter()
    rows, tokens = _read(dataset, folder / "rows")
    run_filters(dataset, _filters(dataset, rows), rows.n_kept, rows.sizes)
    by_time = bool(dataset.config["rm_dup_inter"] and dataset.time_field)
    orders = rows.first_appearances(by_time)
    _sort(dataset, rows, orders, folder, by_time)
    rows.path.unlink()
    for role, table, order in zip(ROLES, tokens, orders, strict=True):
        begins = np.append(0, table.ends[:-1])[order]
        ends = np.cumsum(table.ends[order] - begins)
        np.save(folder / f"{role}_ends.npy", ends)
        with _npy(folder / f"{role}_text.npy", "|u1", ends[-1]) as stream:
            for places in np.array_split(np.arange(len(order)), len(order) // _BLOCK_ROWS + 1):
                sizes = table.ends[order[places]] - begins[places]
                shifts = begins[places] - np.cumsum(sizes) + sizes
                stream.write(table.text[np.repeat(shifts, sizes) + np.arange(sizes.sum())].data)
    seconds = perf_counter() - started
    dataset.logger.info(f"{len(rows.kept):,} rows prepared in {seconds:.1f} s, {len(rows.kept) / seconds:,.0f} rows/s")


def _read(dataset: Any, path: Path) -> tuple[_Rows, list[Tokens]]:
    """Write the records of the files of interactions to `path`; also the tokens of users and items."""
    files, time = interaction_files(dataset.config), dataset.time_field
    columns = [choose_columns(dataset, source, FeatureSource.INTERACTION) for source in files]
    register_part(dataset, files, columns)
    for name, kind in columns[0].items():
        register(dataset, pd.DataFrame(), name, FeatureType(kind), FeatureSource.INTERACTION)
    dataset.field2source |= {dataset.uid_field: FeatureSource.USER_ID, dataset.iid_field: FeatureSource.ITEM_ID}
    filters, numberings = value_filters(dataset), [Numbering() for _ in ROLES]
    n_rows = 0
    with path.open("wb") as stream:
        for number, part in _parts(dataset, files, columns[0]):
            records = np.zeros(len(part), _ROW)
            for role, field, numbering in zip(ROLES, (dataset.uid_field, dataset.iid_field), numberings, strict=True):
                column = part[field].cat
                numbers = np.append(numbering.numbers(column.categories.to_numpy(object)), np.int32(-1))
                records[role] = numbers[column.codes]
            if time is not None:
                records["time"] = part[time]
            records["passes"] = np.logical_and.reduce([keeps(part[field]) for field, keeps in filters.items()])
            records["part"], records["place"] = number, np.arange(n_rows, n_rows + len(part))
            stream.write(records.tobytes())
            n_rows += len(part)
    tokens = [numbering.tokens() for numbering in numberings]
    n_tokens, show_progress = [numbering.n for numbering in numberings], bool(dataset.config["show_progress"])
    return _Rows(path, n_rows, n_tokens, show_progress), tokens


def _parts(dataset: Any, files: list[Path], fields: dict[str, str]) -> Iterator[tuple[int, pd.DataFrame]]:
    """The number of each file with the rows of the file, part by part."""
    for number, file in enumerate(files):
        n_before = 0
        for part in atomic.read_parts(file, fields, reading_of(dataset.config)):
            if dataset.time_field is not None:
                check_times(file, part[dataset.time_field], n_before)
            yield number, part
            n_before += len(part)


def _filters(dataset: Any, rows: _Rows) -> list[Callable[[], None]]:
    """The steps of `run_filters`."""
    config = dataset.config
    repeated, intervals = config["rm_dup_inter"], [parse_intervals(key, config[key]) for key in INTERVAL_KEYS]

    def drop_missing() -> None:
        rows.keep(lambda records: (records["user"] >= 0) & (records["item"] >= 0))
        if missing := len(rows.kept) - rows.n_kept():
            names = f"{dataset.uid_field} or {dataset.iid_field}"
            dataset.logger.warning(f"inter_feat: {missing} rows without {names} left out")

    def filter_counts() -> None:
        n_before = -1
        while rows.n_kept() != n_before:
            n_before, odd = rows.n_kept(), [outside(*pair) for pair in zip(rows.sizes(), intervals, strict=True)]
            rows.keep(partial(_is_inside, odd))

    return [
        drop_missing,
        lambda: rows.drop_repeated(repeated) if repeated else None,
        lambda: rows.keep(lambda records: records["passes"]) if config["val_interval"] else None,
        lambda: None,  # no features are loaded
        filter_counts,
    ]


def _is_inside(odd: list[npt.NDArray[np.bool_]], records: Records) -> npt.NDArray[np.bool_]:
    kept: npt.NDArray[np.bool_] = ~(odd[0][records["user"]] | odd[1][records["item"]])
    return kept


def _sort(dataset: Any, rows: _Rows, orders: list[Index], folder: Path, by_time: bool) -> None:
    """Write the arrays of `Histories`, the times, and of pre-split files the number of the file."""
    mean, ranks = rows.mean_time(dataset, by_time), [np.zeros(len(sizes), dtype=np.int32) for sizes in rows.sizes()]
    for rank, order in zip(ranks, orders, strict=True):
        rank[order] = np.arange(1, len(order) + 1)
    np.save(folder / "offsets.npy", np.append(0, np.cumsum(rows.sizes()[0][orders[0]])))
    kinds = {"items": "<i4", "gaps": "<f4", "times": "<f8", **({"parts": "|u1"} if PART in dataset.field2type else {})}
    with ExitStack() as stack:
        files = [_npy(folder / f"{name}.npy", kind, rows.n_kept()) for name, kind in kinds.items()]
        streams = [stack.enter_context(file) for file in files]
        for part in rows.by_user(orders[0]):
            users, missing = ranks[0][part["user"]], np.isnan(part["time"])
            times = np.where(missing, mean, part["time"])
            # Removing repeated rows has sorted them, rows without a time last.
            order = np.lexsort((missing & by_time, times, users))
            users, times = users[order], times[order]
            if dataset.time_field is None:
                times = np.arange(len(users), dtype=np.float64) - np.searchsorted(users, users)
            histories = Histories.from_sorted(users, ranks[1][part["item"][order]], times)
            arrays = (histories.items, histories.gaps, times, part["part"][order])
            for stream, array in zip(streams, arrays, strict=False):
                stream.write(array.data)


@contextmanager
def _npy(path: Path, kind: str, n: int) -> Iterator[BinaryIO]:
    """A new .npy file of n numbers, which are written one after the other."""
    with path.open("wb") as stream:
        header = {"descr": kind, "fortran_order": False, "shape": (int(n),)}
        np.lib.format.write_array_header_1_0(stream, header)  # type: ignore[no-untyped-call]  # numpy has no types here
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
