"""Histories from a table of interactions, recommendations to one; csv, tsv and parquet, without pandas."""

import csv
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recbole_lisa.errors import UsageError, did_you_mean
from recbole_lisa.files import atomic_writer, check_output

SEPARATORS = {".csv": ",", ".tsv": "\t", ".inter": "\t"}
COLUMNS = ("user_id", "rank", "item_id", "score")
_BATCH_ROWS = 2**16


class UserHistory(NamedTuple):
    """One user: id, items oldest first, and their times in seconds, or None where the table has no times."""

    user: str
    items: list[str]
    times: list[float] | None


def check_table(path: Path, *, overwrite: bool) -> None:
    """Refuse an output that is neither csv, tsv nor parquet, or that `check_output` refuses.

    Raises:
        UsageError: With what would be right.
    """
    if path.suffix not in (*SEPARATORS, ".parquet"):
        raise UsageError(f"'{path}' must end in .csv, .tsv or .parquet")
    if path.suffix == ".parquet":
        _pyarrow(path)
    check_output(path, overwrite=overwrite)


def read_user_histories(path: Path, *, user: str, item: str, time: str) -> list[UserHistory]:
    """Read interactions, one a row, and group them by user.

    Args:
        path: .csv, .tsv, RecBole's .inter, or .parquet, with named columns; a name may carry RecBole's type (`:token`).
        user: column of the user.
        item: column of the item.
        time: column of the time in seconds; without such a column the order of the rows counts.

    Returns:
        Users in the order of their first row, items ordered by time (equal times as in the file). Empty lines of a text
        count for nothing.

    Raises:
        UsageError: The file or a column is missing, the file cannot be read, a user or an item is null, or a time is no
            finite number.
    """
    rows = _parquet_rows(path) if path.suffix == ".parquet" else _text_rows(path)
    names = next(rows)
    for wanted in (user, item):
        if wanted not in names:
            raise UsageError(
                f"'{path}' has no column '{wanted}', only {', '.join(names)}.{did_you_mean(wanted, names)}"
            )
    at_user, at_item = names.index(user), names.index(item)
    at_time = names.index(time) if time in names else None
    users: dict[str, UserHistory] = {}
    for number, row in enumerate(rows, start=1):
        if len(row) != len(names):
            raise UsageError(f"'{path}', row {number}: {len(row)} cells, but the header names {len(names)} columns")
        if row[at_user] is None or row[at_item] is None:
            raise UsageError(f"'{path}', row {number}: there is no {user if row[at_user] is None else item}")
        history = users.setdefault(
            str(row[at_user]), UserHistory(str(row[at_user]), [], None if at_time is None else [])
        )
        history.items.append(str(row[at_item]))
        if at_time is not None and history.times is not None:
            history.times.append(_seconds(row[at_time], path, number))
    if not users:
        raise UsageError(f"'{path}' holds no interactions, only a header")
    return [_ordered(history) for history in users.values()]


def _ordered(history: UserHistory) -> UserHistory:
    if history.times is None:
        return history
    order = np.argsort(history.times, kind="stable")
    return UserHistory(history.user, [history.items[i] for i in order], [history.times[i] for i in order])


def _seconds(cell: Any, path: Path, number: int) -> float:
    try:
        seconds = float(cell)
    except (TypeError, ValueError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise UsageError(f"'{path}', row {number}: the time {cell!r} is no number of seconds")
    return seconds


def _text_rows(path: Path) -> Iterator[list[Any]]:
    if path.suffix not in SEPARATORS:
        raise UsageError(f"'{path}' must end in .csv, .tsv, .inter or .parquet")
    try:
        with open(path, encoding="utf-8-sig", newline="") as stream:
            rows = csv.reader(stream, delimiter=SEPARATORS[path.suffix])
            header = next(rows, None)
            if header is None:
                raise UsageError(f"'{path}' is empty: it needs a header and a row for each interaction")
            yield [name.partition(":")[0] for name in header]
            yield from filter(None, rows)
    except csv.Error as error:
        raise UsageError(f"'{path}', line {rows.line_num}: {error}") from error
    except OSError as error:
        raise UsageError(f"cannot read '{path}': {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"'{path}' is not utf-8: {error}") from error


def _parquet_rows(path: Path) -> Iterator[list[Any]]:
    parquet = _pyarrow(path)
    try:
        file = parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read '{path}': {error}") from error
    yield [name.partition(":")[0] for name in file.schema_arrow.names]
    batches = file.iter_batches(_BATCH_ROWS)
    while (batch := _next_batch(batches, path)) is not None:
        yield from map(list, zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _next_batch(batches: Iterator[Any], path: Path) -> Any:
    try:
        return next(batches, None)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read '{path}': {error}") from error


def _pyarrow(path: Path) -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(f"'{path}' needs pyarrow: pip install 'recbole-lisa[parquet]', or use .csv") from error
    return pyarrow.parquet


def read_ids(path: Path) -> list[str]:
    """Read ids, one a line; empty lines count for nothing.

    Raises:
        UsageError: The file cannot be read.
    """
    try:
        return [line for line in path.read_text(encoding="utf-8-sig").split("\n") if line]
    except OSError as error:
        raise UsageError(f"cannot read '{path}': {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"'{path}' is not utf-8: {error}") from error


def write_recommendations(
    path: str | os.PathLike[str], rows: Iterable[tuple[str, Sequence[str], Sequence[float]]]
) -> int:
    """Write the items of each user, best first, one a row; the file is complete or not there.

    Args:
        path: .csv, .tsv or .parquet.
        rows: (user, items, scores).

    Returns:
        The number of rows written.
    """
    target, total = Path(path), 0
    with atomic_writer(target) as stream:
        if target.suffix == ".parquet":
            return _write_parquet(stream, rows)
        text = TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(text, delimiter=SEPARATORS[target.suffix], lineterminator="\n")
        writer.writerow(COLUMNS)
        for user, items, scores in rows:
            ranked = enumerate(zip(items, scores, strict=True), start=1)
            writer.writerows((user, rank, item, f"{score:.9g}") for rank, (item, score) in ranked)
            total += len(items)
        text.detach()
    return total


def _write_parquet(stream: Any, rows: Iterable[tuple[str, Sequence[str], Sequence[float]]]) -> int:
    import pyarrow
    import pyarrow.parquet

    types = [pyarrow.string(), pyarrow.int32(), pyarrow.string(), pyarrow.float64()]
    schema = pyarrow.schema(list(zip(COLUMNS, types, strict=True)))
    total, columns = 0, [[], [], [], []]  # type: tuple[int, list[list[Any]]]
    with pyarrow.parquet.ParquetWriter(stream, schema) as writer:

        def flush() -> None:
            writer.write_table(pyarrow.table(dict(zip(COLUMNS, columns, strict=True)), schema=schema))
            for column in columns:
                column.clear()

        for user, items, scores in rows:
            new = ([user] * len(items), list(range(1, len(items) + 1)), list(items), list(scores))
            for column, values in zip(columns, new, strict=True):
                column.extend(values)
            total += len(items)
            if len(columns[0]) >= _BATCH_ROWS:
                flush()
        flush()
    return total
