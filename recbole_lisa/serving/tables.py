"""Tables of recommendations: csv, tsv and parquet, without pandas."""

import csv
import os
from collections.abc import Iterable, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from recbole_lisa.errors import UsageError
from recbole_lisa.files import atomic_writer, check_output

SEPARATORS = {".csv": ",", ".tsv": "\t"}
COLUMNS = ("user_id", "rank", "item_id", "score")
_BATCH_ROWS = 2**16


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
            new: tuple[list[Any], ...] = ([user] * len(items), [*range(1, len(items) + 1)], [*items], [*scores])
            for column, values in zip(columns, new, strict=True):
                column.extend(values)
            total += len(items)
            if len(columns[0]) >= _BATCH_ROWS:
                flush()
        flush()
    return total
