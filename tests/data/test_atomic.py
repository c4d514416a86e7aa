from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from recbole_lisa.config.data_checks import parse_intervals
from recbole_lisa.data.atomic import Reading, read_columns, read_header
from recbole_lisa.data.filtering import core_rows, outside
from recbole_lisa.errors import UsageError

FIVE_CORE = parse_intervals("key", "[5,inf)")
HEAD = "user:token\ttime:float\n"


def read(folder: Path, text: str, separator: str = "\t", tokens: str = "category", unread: str = "") -> pd.DataFrame:
    """Write a file and read every column of it but `unread`."""
    path = folder / "x.inter"
    path.write_bytes(text.encode())
    fields = read_header(path, separator, "utf-8")
    fields.pop(unread, None)
    return read_columns(path, fields, Reading(separator, "utf-8"), tokens=tokens)


@pytest.fixture(params=[1, 2, 100])
def piece_rows(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Read one, two or all rows at a time."""
    monkeypatch.setattr("recbole_lisa.datasets.reader.PIECE_ROWS", request.param)


@pytest.mark.usefixtures("piece_rows")
@pytest.mark.parametrize(("odd", "shown"), [(" u1", "' u1'"), ("u1 ", "'u1 '"), ("u 1", None)])
def test_a_blank_at_the_end_of_an_id_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, odd: str, shown: str | None
) -> None:
    frame = read(tmp_path, f"{HEAD}u1\t1\nu2\t2\n{odd}\t3\n{odd}\t4\nu3\t5\n")
    assert frame["user"].tolist() == ["u1", "u2", odd, odd, "u3"]
    right = f"x.inter, line 4: the user {shown} has a blank at its end, and is another id than 'u1'"
    assert [right in record.message for record in caplog.records] == [True] * (shown is not None)


@pytest.mark.usefixtures("piece_rows")
def test_columns_keep_tokens_exact_times_and_sequences(tmp_path: Path) -> None:
    text = "user:token\ttime:float\ttitle:token_seq\tv:float_seq\tignored:token\n"
    text += "007\t881250949.123456789\tToy Story\t1 2.5\tx\n7\t1\t\t\ty\n007\t2\tx\t3\tz\n"
    frame = read(tmp_path, text, unread="ignored")
    assert list(frame) == ["user", "time", "title", "v"]
    assert frame["user"].tolist() == ["007", "7", "007"]
    assert frame["time"].tolist() == [881250949.123456789, 1.0, 2.0]
    assert [cell.tolist() for cell in frame["title"]] == [["Toy", "Story"], [], ["x"]]
    assert [cell.tolist() for cell in frame["v"]] == [[1.0, 2.5], [], [3.0]]
    assert frame.dtypes.astype(str).tolist()[:2] == ["category", "float64"]
    assert frame["user"].cat.codes.dtype == np.int8


LONG = 'user:token||x:token||time:float\n b||"||5\n||NA||NA\n\nc\n'


@pytest.mark.usefixtures("piece_rows")
@pytest.mark.parametrize("tokens", ["category", "object"])
@pytest.mark.parametrize(
    ("separator", "text", "columns"),
    [
        ("\t", HEAD, {"user": [], "time": []}),
        ("\t", HEAD + "NA\t1\nnull\tNA\n\t2\n", {"user": ["NA", "null", None], "time": [1, None, 2]}),
        ("\t", 'user:token\n"u\n5" nails\n"w"\n""\n', {"user": ['"u', '5" nails', '"w"', '""']}),
        ("\t", "\ufeffuser:token\titem:token\r\nu\ti\r\n", {"user": ["u"], "item": ["i"]}),
        ("::", "user:token::time:float\n7::5\n", {"user": ["7"], "time": [5]}),
        ("||", LONG, {"user": [" b", None, "c"], "x": ['"', "NA", None], "time": [5, None, None]}),
    ],
    ids=["no-rows", "word-for-nothing", "quotes", "mark-and-line-ends", "two-characters", "no-pattern-and-blanks"],
)
def test_cells_are_read_as_they_are_written(
    tmp_path: Path, separator: str, text: str, columns: dict[str, list[object]], tokens: str
) -> None:
    frame = read(tmp_path, text, separator, tokens).astype(object)
    assert frame.where(frame.notna(), None).to_dict("list") == columns


@pytest.mark.usefixtures("piece_rows")
@pytest.mark.parametrize(
    ("separator", "text", "message"),
    [
        ("\t", HEAD + "u\0\t5", "x.inter has a NUL character in line 2"),
        ("::", "u:token::t:float\nv::1\nu\0::5", "x.inter has a NUL character in line 3"),
        ("\t", HEAD + "u\t5\t6", "x.inter, with cells separated by '.t': its first line has fewer cells"),
        ("::", "u:token::t:float\nu::5::6", "x.inter, with cells separated by '::': its first line has fewer cells"),
        ("\t", HEAD + "v\t1\nu\t5\t6", "Expected 2 fields in line 3, saw 3"),
        ("::", "u:token::t:float\nv::1\nu::5::6", "Expected 2 fields in line 3, saw 3"),
        ("::", "u:token::t:float\nu::1\x1f", "x.inter has a cell with '.x1f': use a separator of one character"),
        ("\t", HEAD + "u\t1\nu\tNA\nv\t1-1-1", "x.inter, line 4: the column time must hold numbers, got '1-1-1'"),
        ("\t", HEAD + "u\tTrue\nv\tFALSE", "x.inter, line 2: the column time must hold numbers, got 'True'"),
        ("::", "u:token::t:float\nu::1,000", "line 2: the column t must hold numbers, got '1,000'; `recbole-lisa conv"),
        ("\t", "v:float_seq\n1 x\n", "x.inter cannot be read: could not convert string to float: 'x'"),
        ("\t", "user_id\titem_id\n1\t2\n", "name:type.*got 'user_id.titem_id'"),
        ("\t", "user:token,item:token\n1,2\n", "it looks separated by ',', set field_separator"),
        ("\t", "user:token\titem:token\titem:float\n1\t2\t3\n", "the first line names the column item twice"),
    ],
)
def test_damaged_files_are_refused_with_the_line(tmp_path: Path, separator: str, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(tmp_path, text, separator)


def test_intervals_have_open_and_closed_ends() -> None:
    low, high = parse_intervals("key", "[2,4); (9,20]")
    counts = np.array([1, 2, 3, 4, 9, 10, 20, 21])
    np.testing.assert_array_equal(outside(counts, [low]), [1, 0, 0, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(outside(counts, [high]), [1, 1, 1, 1, 1, 0, 0, 1])
    assert parse_intervals("key", None) == []
    for text in ("5", "[5,inf", "[5;inf)", "[9,5]", "[a,b]", ""):
        with pytest.raises(UsageError, match=r"key must be intervals like '\[5,inf\)'"):
            parse_intervals("key", text)


def test_core_rows_repeat_until_nothing_is_left_to_drop() -> None:
    # Items 0-4 x users 0-4 form a 5-core; user 5 depends on item 5, which depends on user 5.
    users, items = (grid.ravel() for grid in np.meshgrid(np.arange(5), np.arange(5)))
    users = np.concatenate([users, [5, 5, 5, 5, 0]])
    items = np.concatenate([items, [0, 1, 2, 3, 5]])
    np.testing.assert_array_equal(core_rows(users, items, FIVE_CORE, FIVE_CORE), np.arange(25))
    np.testing.assert_array_equal(core_rows(np.array([0, 1]), np.array([3, 3]), [], []), [0, 1])
    assert len(core_rows(np.array([0, 1]), np.array([3, 3]), FIVE_CORE, [])) == 0
