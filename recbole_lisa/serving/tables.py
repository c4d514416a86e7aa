"""Tables of recommendations: csv, tsv and parquet."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO

from recbole_lisa.errors import UsageError, install_extra
from recbole_lisa.files import atomic_writer, check_output, readable

SEPARATORS = {".csv": ",", ".tsv": "\t"}
COLUMNS = {"user_id": "string", "rank": "int32", "item_id": "string", "score": "float64"}
_BATCH_ROWS = 2**16
Row = tuple[Any, ...]
UserItems = tuple[str, Sequence[str], Sequence[float]]


def check_table(path: Path, *, overwrite: bool, source: Path | None = None) -> None:
    """Refuse an output that is neither csv, tsv nor parquet, or that `check_output` refuses, by a UsageError."""
    if path.suffix not in (*SEPARATORS, ".parquet"):
        raise UsageError(f"'{path}' must end in .csv, .tsv or .parquet")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise UsageError(f"'{path}' needs pyarrow: {install_extra('parquet')}, or use .csv")
    check_output(path, overwrite=overwrite, source=source)


def read_ids(path: Path) -> list[str]:
    """Read ids, one a line, and skip empty lines; a UsageError if the file cannot be read."""
    try:
        return [line for line in readable(path).read_text(encoding="utf-8-sig").split("\n") if line]
    except OSError as error:
        raise UsageError(f"cannot read '{path}': {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UsageError(f"'{path}', line {line}: not utf-8 ({error.reason}): write the file in utf-8") from error


def write_recommendations(
    path: Path, rows: Iterable[UserItems], titles: Mapping[str, str] | None = None, *, overwrite: bool = True
) -> tuple[Path, int]:
    """Write the items of each user, best first, one a row; where (see `atomic_writer`), and the number of rows.

    rows are (user, items, scores). Titles by item make a column `title`; without any there is no such column.
    """
    total, columns = 0, COLUMNS | ({"title": "string"} if titles else {})
    with atomic_writer(path, overwrite=overwrite) as stream, _writer(stream, path.suffix, columns) as write:
        batch: list[Row] = []
        for user, items, scores in rows:
            parts = (items, scores, [titles.get(item, "") for item in items]) if titles else (items, scores)
            batch += [(user, rank, *one) for rank, one in enumerate(zip(*parts, strict=True), start=1)]
            total += len(items)
            if len(batch) >= _BATCH_ROWS:
                write(batch)
                batch = []
        write(batch)
    return stream.path, total


@contextmanager
def _writer(stream: BinaryIO, suffix: str, columns: dict[str, str]) -> Iterator[Callable[[list[Row]], object]]:
    """Write the header, and give a function that writes rows."""
    if suffix == ".parquet":
        import pyarrow
        from pyarrow.parquet import ParquetWriter

        schema = pyarrow.schema({name: getattr(pyarrow, kind)() for name, kind in columns.items()})
        with ParquetWriter(stream, schema) as parquet:
            empty = [()] * len(columns)
            yield lambda rows: parquet.write_table(pyarrow.table([*zip(*rows, strict=True)] or empty, schema=schema))
        return
    text = TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, delimiter=SEPARATORS[suffix], lineterminator="\n")
    writer.writerow(columns)
    yield lambda rows: writer.writerows((*row[:3], f"{row[3]:.9g}", *row[4:]) for row in rows)
    text.detach()
