"""A line with too many cells is named wherever pandas' pieces and the blocks of text begin."""

import csv
import io
import random
from pathlib import Path

import pytest
from pytest import MonkeyPatch

from recbole_lisa.datasets import reader
from recbole_lisa.datasets.layouts import Layout
from recbole_lisa.datasets.source import open_raw
from recbole_lisa.errors import UsageError

ROLES = {"user": "u", "item": "i", "time": "t"}


class SmallBlocks(io.TextIOWrapper):
    """Gives pandas a few characters at a time."""

    size = 2**18

    def read(self, size: int | None = -1, /) -> str:
        return super().read(min(size or 0, self.size))


class CheckedInSmallBlocks(reader._CheckedText, SmallBlocks):
    """The reader's text, in blocks of `SmallBlocks.size`."""


def rows_of(path: Path, separator: str, quoted: bool) -> list[tuple[str, ...]]:
    layout = Layout((), {**ROLES}, separator=separator, quoted=quoted, encoding="utf-8")
    with open_raw(path) as raw:
        pieces = [piece.fillna("") for piece in reader.read_pieces(raw, layout)]
    return [tuple(row) for piece in pieces for row in piece.itertuples(index=False)]


@pytest.mark.parametrize("row", [2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize(("separator", "more"), [("\t", "\tx"), (",", ",,1"), ("::", "::x::y")])
@pytest.mark.parametrize("piece_rows", [1, 2, 3, 100])
def test_the_line_with_too_many_cells_is_named_in_any_piece(
    tmp_path: Path, monkeypatch: MonkeyPatch, row: int, separator: str, more: str, piece_rows: int
) -> None:
    monkeypatch.setattr(reader, "PIECE_ROWS", piece_rows)
    lines = [separator.join("uit"), *(separator.join((f"u{n}", f'"i{n}"', str(n))) for n in range(6))]
    lines[row - 1] += more
    (tmp_path / "x.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    n_cells = 3 + more.count(separator)
    for quoted in (False, True):
        with pytest.raises(UsageError) as caught:
            rows_of(tmp_path / "x.csv", separator, quoted)
        reason = f"Expected 3 fields in line {row}, saw {n_cells}"
        if row == 2 and "its first line has fewer cells" in str(caught.value):
            reason = "its first line has fewer cells than the lines below it"
        reason += f"; put a cell with {separator!r} in double quotes" * quoted
        assert str(caught.value) == f"x.csv, with cells separated by {separator!r}: {reason}"


@pytest.mark.parametrize("seed", range(4))
def test_random_tables_have_the_rows_of_csv_or_are_refused(tmp_path: Path, monkeypatch: MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(reader, "_CheckedText", CheckedInSmallBlocks)
    rng, path = random.Random(seed), tmp_path / "x.csv"

    def cell(separator: str, end: str, quoted: bool) -> str:
        if quoted and rng.random() < 0.25:
            return '"' + "".join(rng.choice(["a", separator, end, '""']) for _ in range(rng.randrange(6))) + '"'
        return "".join(rng.choice(["a", "é", "b" if quoted else '"']) for _ in range(rng.randrange(4)))

    n_refused = 0
    for _ in range(200):
        quoted, separator, end = rng.random() < 0.6, rng.choice([",", "\t", "::"]), rng.choice(["\n", "\r\n"])
        monkeypatch.setattr(reader, "PIECE_ROWS", rng.choice([1, 2, 3, 5, 100]))
        monkeypatch.setattr(SmallBlocks, "size", rng.choice([1, 2, 3, 7, 1000]))
        lengths = [3] + [rng.choice([3, 3, 3, 3, 3, 2, 4, 5]) for _ in range(rng.randrange(1, 9))]
        lines = [separator.join(cell(separator, end, quoted) for _ in range(length)) for length in lengths]
        text = end.join([separator.join("uit"), *lines]) + end * rng.randrange(2)
        path.write_bytes(text.encode())
        quoting, mark = (csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE), "\x1f"  # the module takes one character
        text = text.replace(separator, mark)
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=mark, quoting=quoting) if row]
        expected = [tuple(cell.replace(mark, separator) for cell in [*row, "", ""][:3]) for row in rows[1:]]
        if any(len(row) > 3 and any(row[3:]) for row in rows):
            n_refused += 1
            with pytest.raises(UsageError, match="x.csv, with cells separated by"):
                rows_of(path, separator, quoted)
        elif all(len(row) <= 3 for row in rows):
            read = [tuple(cell.replace(mark, separator) for cell in row) for row in rows_of(path, separator, quoted)]
            assert [row for row in read if any(row)] == [row for row in expected if any(row)]
    assert n_refused > 50
