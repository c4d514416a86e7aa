"""The one reader of tables: delimited text, JSON lines and parquet, in pieces of chosen columns.

Data set files, raw tables of `convert` and histories of `recommend` all come through `read_pieces`.
"""

import csv
import io
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from recbole_lisa.datasets.cells import MISSING
from recbole_lisa.datasets.layouts import Layout
from recbole_lisa.datasets.source import NO_TEXT, OTHER_ENCODING, RawFile
from recbole_lisa.errors import UsageError, check_header, did_you_mean, install_extra
from recbole_lisa.progress import progress_bar

PIECE_ROWS = 2**18
_LINE_SUFFIXES = (".jsonl", ".json", ".ndjson")
PARQUET_SUFFIXES = (".parquet", ".pq")
_SEPARATORS = (",", "\t", ";", "|", "::")
_UNIT_SEPARATOR = "\x1f"
_NO_TEXT = re.compile("[\0\udc80-\udcff]")  # a NUL, or a byte that cannot be decoded


def read_pieces(raw: RawFile, layout: Layout, *, show_progress: bool = False) -> Iterator[pd.DataFrame]:
    """Read columns of a file that is at its start, at most `PIECE_ROWS` rows at a time; its name says its kind.

    Yields one column a role, in file order: text, NaN or None where the cell is empty. The name of a column matches
    without RecBole's type, too (`user_id:token`). `show_progress` shows a bar of bytes on a terminal.

    Raises:
        UsageError: A column is missing, a line is longer than the first, or the file is not of its kind.
        ValueError: A cell of `layout.numbers` is not a number.
    """
    with progress_bar(description=raw.name, total=raw.size, unit="B", show_progress=show_progress) as bar:
        for piece in _pieces(raw, layout):
            yield piece
            bar.update(raw.position() - bar.n)


def _pieces(raw: RawFile, layout: Layout) -> Iterator[pd.DataFrame]:
    suffix = Path(raw.name).suffix.lower()
    if suffix in PARQUET_SUFFIXES:
        yield from _read_parquet(raw, layout)
        return
    encoding, start = raw.start(layout.encoding)
    try:
        if suffix in _LINE_SUFFIXES:
            yield from _read_json_lines(raw, layout, encoding)
            return
        head = re.split("[\r\n]", start.lstrip("\r\n"), maxsplit=1)[0]
        separator = layout.separator or _find_separator(head, set(layout.table.values()))
        with _CheckedText(raw, encoding, separator) as text:
            yield from _read_delimited(text, head, layout)
    except UnicodeError as error:
        raise UsageError(f"{raw.name} is not text in the encoding {encoding} ({error}): {OTHER_ENCODING}") from error
    except (pd.errors.ParserWarning, pd.errors.ParserError) as error:
        reason = str(error).strip().removeprefix("Error tokenizing data. C error: ")
        if isinstance(error, pd.errors.ParserWarning):
            reason = "its first line has fewer cells than the lines below it"
        reason += f"; put a cell with {separator!r} in double quotes" if layout.quoted else ""
        raise UsageError(f"{raw.name}, with cells separated by {separator!r}: {reason}") from error


def _find_separator(head: str, columns: set[str | int], separators: Sequence[str] = _SEPARATORS) -> str:
    """The separator that finds all named columns in the first line, else the most frequent one."""
    names = {separator: [name.strip().strip('"') for name in head.split(separator)] for separator in separators}
    return max(names, key=lambda separator: (columns <= set(names[separator]), len(names[separator])))


def _read_delimited(text: "_CheckedText", head: str, layout: Layout) -> Iterator[pd.DataFrame]:
    if not head:
        raise UsageError(f"{text.title} is empty: it needs a header and a line for each interaction")
    quoting = csv.QUOTE_MINIMAL if layout.quoted else csv.QUOTE_NONE
    line = head.replace(text.separator, text.delimiter)
    cells = next(csv.reader([line], delimiter=text.delimiter, quoting=quoting))  # type: ignore[arg-type]  # an int, not a literal
    places = range(len(cells))
    text.n_cells, text.is_quoted = len(cells), layout.quoted
    columns = set(layout.table.values())
    separators = (*_SEPARATORS, " ") if columns <= set(head.split()) else _SEPARATORS
    likely = _find_separator(head, columns, separators)
    if layout.header and likely != text.separator and len(cells) == 1 < len(head.split(likely)):
        right = f"separate the columns by {text.separator!r}" if layout.separator else f"write --separator='{likely}'"
        raise UsageError(f"{text.title}, line 1: {head[:80]!r} looks separated by {likely!r}: {right}")
    chosen = _positions(text.title, cells if layout.header else places, layout)
    floats = {chosen[role] for role in layout.numbers}
    options: dict[str, Any] = {
        **{"sep": text.delimiter, "quoting": quoting, "header": 0 if layout.header else None, "names": list(places)},
        **{"dtype": {place: "float64" if place in floats else "str" for place in places}, "index_col": False},
        **{"na_values": {place: MISSING if place in floats else [""] for place in places}},
        # The default parser may be one unit in the last place off, which can reorder two times.
        **{"float_precision": "round_trip", "keep_default_na": False, "low_memory": False, "chunksize": PIECE_ROWS},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # a first row longer than the header
        with pd.read_csv(text, **options) as pieces:
            for piece in pieces:
                yield pd.DataFrame({role: piece[place] for role, place in chosen.items()})


class _CheckedText(io.TextIOWrapper):
    """Decoded text for pandas, which would end a cell at a NUL and read a long separator as a pattern.

    It would also drop cells: of the lines of a piece, the first ones may be longer than `n_cells`.
    """

    n_cells, is_quoted = 0, False

    def __init__(self, raw: RawFile, encoding: str, separator: str) -> None:
        super().__init__(raw.stream, encoding, errors="surrogateescape", newline="")
        self.title, self.separator = raw.name, separator
        self.delimiter = separator if len(separator.encode()) == 1 else _UNIT_SEPARATOR
        self._line = 1
        self._separators = 0  # in the line that is not at its end yet
        self._before = "\n"  # what precedes the next characters: `,"` inside a quoted cell, else one character
        mark = re.escape(self.delimiter)
        self._quoted_cell = re.compile(rf'(?<=[{mark}\r\n])"[^"]*(?:""[^"]*)*("?)')

    def read(self, size: int | None = -1, /) -> str:
        """At least `size` characters, with separators of one character."""
        chunk = super().read(size)
        while chunk.endswith(("\r", '"')) and (more := super().read(1)):  # so that no pair is cut
            chunk += more
        if self.delimiter != self.separator:
            chunk += self.readline()  # so that no separator is cut
            if _UNIT_SEPARATOR in chunk:
                raise UsageError(f"{self.title} has a cell with {_UNIT_SEPARATOR!r}: use a separator of one character")
            chunk = chunk.replace(self.separator, _UNIT_SEPARATOR)
        if "\0" in chunk or not chunk.isascii():
            for odd in _NO_TEXT.finditer(chunk):
                line = self._line + _n_line_ends(chunk[: odd.start()])
                if odd[0] == "\0":
                    raise UsageError(f"{self.title} has a NUL character in line {line}: {NO_TEXT}")
                byte, encoding = ord(odd[0]) & 0xFF, self.encoding
                raise UsageError(f"{self.title}, line {line}: byte 0x{byte:02x} is not {encoding}: {OTHER_ENCODING}")
        self._check_lengths((self._with_plain_cells(chunk) if self.is_quoted else chunk) or "\n")
        self._line += _n_line_ends(chunk)
        return chunk

    def _check_lengths(self, text: str) -> None:
        """Refuse a line with more than `n_cells` cells; pandas names it itself where it is the first one of all."""
        codes = np.frombuffer(text.encode(errors="surrogatepass"), np.uint8)
        is_end = (codes == ord("\n")) | (codes == ord("\r"))
        marks = np.flatnonzero(is_end | (codes == ord(self.delimiter)))
        ends = np.flatnonzero(is_end[marks])
        n_cells = np.diff(ends, prepend=-1 - self._separators)
        for long in np.flatnonzero(n_cells > self.n_cells)[:2]:
            line = self._line + _n_line_ends(codes[: marks[ends[long]]].tobytes().decode(errors="surrogatepass"))
            if line > 2:
                raise pd.errors.ParserError(f"Expected {self.n_cells} fields in line {line}, saw {n_cells[long]}")
        self._separators = len(marks) - 1 - ends[-1] if len(ends) else self._separators + len(marks)

    def _with_plain_cells(self, chunk: str) -> str:
        """A chunk whose quoted cells are as long and hold neither separators nor line ends."""
        if '"' not in chunk and len(self._before) == 1:
            self._before = chunk[-1:] or self._before
            return chunk
        text, is_open = self._before + chunk, False

        def masked(cell: re.Match[str]) -> str:
            nonlocal is_open
            is_open = not cell[1]
            return "x" * len(cell[0])

        plain = self._quoted_cell.sub(masked, "\n" + text)[1 + len(self._before) :]
        self._before = f'{self.delimiter}"' if is_open else text[-1]
        return plain


def _n_line_ends(text: str) -> int:
    return text.count("\n") + text.count("\r") - text.count("\r\n")


def _positions(name: str, labels: Sequence[Any], layout: Layout) -> dict[str, int]:
    """Role -> position of its column; a UsageError where a column is missing or comes twice."""
    known: dict[str | int, int] = {}
    for spelling in (lambda label: label, lambda label: str(label).strip(), lambda label: str(label).partition(":")[0]):
        for place, label in enumerate(labels):
            known.setdefault(spelling(label), place)
    for role, column in layout.table.items():
        if column not in known and role not in layout.optional:
            names = list(map(str, labels))
            hint = did_you_mean(str(column), names)
            has, advice = ", ".join(names[:20]), layout.advice.format(role=role)
            raise UsageError(f"{name} has no column '{column}' for the {role}; it has {has}.{hint} {advice}".rstrip())
    chosen = {role: known[column] for role, column in layout.table.items() if column in known}
    check_header(name, [label for label in labels if label in {labels[place] for place in chosen.values()}])
    return chosen


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(row := dict(pairs)) < len(pairs):
        raise ValueError("it names a key twice")
    return row


# Numbers stay as they are written: an id such as 1.10 or of many digits is a text like any other.
_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=str, parse_float=str, parse_constant=lambda _: None)


def _read_json_lines(raw: RawFile, layout: Layout, encoding: str) -> Iterator[pd.DataFrame]:
    layout = replace(layout, table=layout.lines or layout.table)
    lines = enumerate(io.TextIOWrapper(raw.stream, encoding, newline="\n"), start=1)
    while rows := {n: _parsed(line, n, raw.name) for n, line in islice(lines, PIECE_ROWS) if line.strip()}:
        _positions(raw.name, list({key: None for row in rows.values() for key in row}), layout)
        texts = {
            role: [_json_text(f"line {n} of {raw.name}", key, row.get(key)) for n, row in rows.items()]
            for role, key in layout.table.items()
        }
        yield pd.DataFrame(texts, dtype=object)


def _parsed(line: str, number: int, name: str) -> dict[str | int, Any]:
    try:
        row = _DECODER.decode(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"line {number} of {name} is not JSON: {error}") from error
    if isinstance(row, dict):
        return row
    what = f"is not a JSON object, it is {line.strip()[:40]!r}"
    raise UsageError(f"line {number} of {name} {what}: write one object a line")


def _json_text(place: str, key: str | int, value: Any) -> str | None:
    if isinstance(value, dict | list):
        raise UsageError(f"{place} has {str(value)[:40]} as its '{key}', which must be a text or a number")
    return str(value).lower() if isinstance(value, bool) else value or None


def _read_parquet(raw: RawFile, layout: Layout) -> Iterator[pd.DataFrame]:
    try:
        import pyarrow
        from pyarrow import compute, parquet
    except ImportError as error:
        raise UsageError(f"'{raw.name}' needs pyarrow: {install_extra('parquet')}, or use csv") from error

    def text(column: Any) -> Any:
        if pyarrow.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pyarrow.types.is_floating(column.type):
            column = compute.if_else(compute.is_nan(column), None, column)
        cells = column.cast(pyarrow.string())
        return compute.if_else(compute.equal(cells, ""), None, cells).to_numpy(zero_copy_only=False)

    try:
        with parquet.ParquetFile(raw.stream) as file:
            names = file.schema_arrow.names
            chosen = {role: names[at] for role, at in _positions(raw.name, names, layout).items()}
            for batch in file.iter_batches(PIECE_ROWS, columns=list(set(chosen.values()))):
                at = {name: batch.schema.names.index(name) for name in chosen.values()}
                yield pd.DataFrame({role: text(batch.column(at[name])) for role, name in chosen.items()}, dtype=object)
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(f"cannot read '{raw.name}': {error}") from error
