"""Tables of recommendations: csv, tsv and parquet."""

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO

from recbole_lisa.errors import UsageError
from recbole_lisa.files import atomic_writer, check_output

SEPARATORS = {".csv": ",", ".tsv": "\t"}
COLUMNS = {"user_id": "string", "rank": "int32", "item_id": "string", "score": "float64"}
_BATCH_ROWS = 2**16


def check_table(path: Path, *, overwrite: bool) -> None:
    """Refuse an output that is neither csv, tsv nor parquet, or that `check_output` refuses.

    Raises:
        UsageError: With what would be right.
    """
    if path.suffix not in (*SEPARATORS, ".parquet"):
        raise UsageError(f"'{path}' must end in .csv, .tsv or .parquet")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise UsageError(f"'{path}' needs pyarrow: pip install 'recbole-lisa[parquet]', or use .csv")
    check_output(path, overwrite=overwrite)


def read_ids(path: Path) -> list[str]:
    """Read ids, one a line, and skip empty lines.

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
    with atomic_writer(target) as stream, _writer(stream, target.suffix) as write:
        batch: list[tuple[str, int, str, float]] = []
        for user, items, scores in rows:
            batch += [(user, rank, *one) for rank, one in enumerate(zip(items, scores, strict=True), start=1)]
            total += len(items)
            if len(batch) >= _BATCH_ROWS:
                write(batch)
                batch = []
        write(batch)
    return total


@contextmanager
def _writer(stream: BinaryIO, suffix: str) -> Iterator[Callable[[list[tuple[str, int, str, float]]], object]]:
    """Write the header, and give a function that writes rows."""
    if suffix == ".parquet":
        import pyarrow
        from pyarrow.parquet import ParquetWriter

        schema = pyarrow.schema({name: getattr(pyarrow, kind)() for name, kind in COLUMNS.items()})
        with ParquetWriter(stream, schema) as parquet:
            empty = [()] * len(COLUMNS)
            yield lambda rows: parquet.write_table(pyarrow.table([*zip(*rows, strict=True)] or empty, schema=schema))
        return
    text = TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, delimiter=SEPARATORS[suffix], lineterminator="\n")
    writer.writerow(COLUMNS)
    yield lambda rows: writer.writerows((*row[:3], f"{row[3]:.9g}") for row in rows)
    text.detach()
