from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from recbole_lisa.config.data_checks import parse_intervals
from recbole_lisa.data.atomic import read_columns, read_header
from recbole_lisa.data.filtering import core_rows
from recbole_lisa.errors import UsageError

FIVE_CORE = parse_intervals("key", "[5,inf)")


def write(folder: Path, text: str) -> Path:
    path = folder / "x.inter"
    path.write_text(text, encoding="utf-8")
    return path


def read(path: Path, fields: dict[str, str]) -> pd.DataFrame:
    return read_columns(path, fields, separator="\t", encoding="utf-8", seq_separator=" ", tokens="category")


def test_columns_keep_tokens_exact_times_and_sequences(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "user:token\ttime:float\ttitle:token_seq\tv:float_seq\tignored:token\n"
        "007\t881250949.123456789\tToy Story\t1 2.5\tx\n"
        "7\t1\t\t\ty\n",
    )
    fields = read_header(path, "\t", "utf-8")
    assert list(fields) == ["user", "time", "title", "v", "ignored"]
    del fields["ignored"]
    frame = read(path, fields)
    assert frame["user"].tolist() == ["007", "7"]
    assert frame["time"].tolist() == [881250949.123456789, 1.0]
    assert [cell.tolist() for cell in frame["title"]] == [["Toy", "Story"], []]
    assert [cell.tolist() for cell in frame["v"]] == [[1.0, 2.5], []]


@pytest.mark.parametrize("second", ["item:token", "item:float"])
def test_a_column_that_is_named_twice_is_refused(tmp_path: Path, second: str) -> None:
    path = write(tmp_path, f"user:token\titem:token\t{second}\n1\t2\t3\n")
    with pytest.raises(UsageError, match="the first line names the column item twice"):
        read_header(path, "\t", "utf-8")


def test_ids_are_stored_as_small_integers_not_as_strings(tmp_path: Path) -> None:
    path = write(tmp_path, "user:token\n" + "somebody\n" * 1000)
    column = read(path, {"user": "token"})["user"]
    assert column.cat.codes.to_numpy().nbytes <= 2 * 1000


@pytest.mark.parametrize("chunk_rows", [1, 2, 4])
def test_reading_in_chunks_gives_the_same_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_rows: int
) -> None:
    path = write(
        tmp_path, "user:token\titem:token\ttime:float\ttag:token_seq\n1\ta\t3\tx y\n\tb\t2\t\n1\tc\t\tz\n2\ta\t1\tx\n"
    )
    fields = read_header(path, "\t", "utf-8")
    whole = read(path, fields)
    monkeypatch.setattr("recbole_lisa.datasets.reader.PIECE_ROWS", chunk_rows)
    chunked = read(path, fields)
    pd.testing.assert_frame_equal(chunked, whole, check_categorical=False)
    assert chunked.dtypes.astype(str).tolist()[:3] == ["category", "category", "float64"]


def test_file_without_rows_gives_an_empty_frame(tmp_path: Path) -> None:
    frame = read(write(tmp_path, "user:token\ttime:float\n"), {"user": "token", "time": "float"})
    assert frame.shape == (0, 2)


def test_separator_of_several_characters_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, "user:token::time:float\n7::5\n")
    fields = read_header(path, "::", "utf-8")
    frame = read_columns(path, fields, separator="::", encoding="utf-8", seq_separator=" ", tokens="object")
    assert frame.to_dict("list") == {"user": ["7"], "time": [5.0]}


@pytest.mark.parametrize("chunk_rows", [1, 100])
def test_a_long_separator_is_no_pattern_and_blanks_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_rows: int
) -> None:
    monkeypatch.setattr("recbole_lisa.datasets.reader.PIECE_ROWS", chunk_rows)
    path = write(tmp_path, 'user:token||x:token||time:float\n b||"||5\n||NA||NA\n\nc\n')
    fields = {"user": "token", "time": "float"}
    frame = read_columns(path, fields, separator="||", encoding="utf-8", seq_separator=" ", tokens="object")
    assert frame["user"].fillna("-").tolist() == [" b", "-", "c"]
    assert frame["time"].fillna(-1).tolist() == [5, -1, -1]


@pytest.mark.parametrize(
    ("separator", "text", "message"),
    [
        ("\t", "u\0\t5", "x.inter has a NUL character in line 2"),
        ("::", "v::1\nu\0::5", "x.inter has a NUL character in line 3"),
        ("\t", "u\t5\t6", "x.inter is no table separated by '.t': its first line has fewer cells"),
        ("::", "u::5::6", "x.inter is no table separated by '::': its first line has fewer cells"),
        ("\t", "v\t1\nu\t5\t6", "Expected 2 fields in line 3, saw 3"),
        ("::", "v::1\nu::5::6", "Expected 2 fields in line 3, saw 3"),
        ("::", "u::1\x1f", "x.inter has a cell with '.x1f': use a separator of one character"),
        (
            "\t",
            "u\tNA\nv\t2020-01-01",
            "x.inter, line 3: the column time must hold numbers, got '2020-01-01'; `rec",
        ),
        ("::", "u::1,000", "x.inter, line 2: the column time must hold numbers, got '1,000'; `recbole-lisa convert"),
    ],
)
def test_damaged_lines_are_refused_with_the_line(tmp_path: Path, separator: str, text: str, message: str) -> None:
    path = write(tmp_path, f"user:token{separator}time:float\n{text}\n")
    fields = {"user": "token", "time": "float"}
    with pytest.raises(UsageError, match=message):
        read_columns(path, fields, separator=separator, encoding="utf-8", seq_separator=" ", tokens="category")


def test_odd_numbers_of_a_sequence_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="x.inter cannot be read: could not convert string to float: 'x'"):
        read(write(tmp_path, "v:float_seq\n1 x\n"), {"v": "float_seq"})


def test_header_without_types_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "user_id\titem_id\n1\t2\n")
    with pytest.raises(UsageError, match="name:type.*got 'user_id.titem_id'"):
        read_header(path, "\t", "utf-8")


def test_a_word_for_nothing_is_a_token_and_no_number(tmp_path: Path) -> None:
    path = write(tmp_path, "user:token\ttime:float\nNA\t1\nnull\tNA\n\t2\n")
    frame = read(path, {"user": "token", "time": "float"})
    assert frame["user"].tolist()[:2] == ["NA", "null"]
    assert frame["user"].isna().tolist() == [False, False, True]
    assert frame["time"].isna().tolist() == [False, True, False]


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "x.inter"
    path.write_bytes("user:token\titem:token\r\nu\ti\r\n".encode("utf-8-sig"))
    fields = read_header(path, "\t", "utf-8")
    assert list(fields) == ["user", "item"]
    assert read(path, fields).to_dict("list") == {"user": ["u"], "item": ["i"]}


def test_quotes_are_text(tmp_path: Path) -> None:
    path = write(tmp_path, 'user:token\titem:token\n"u\ti\nv\t5" nails\n"w"\t""\n')
    frame = read(path, {"user": "token", "item": "token"})
    assert frame.to_dict("list") == {"user": ['"u', "v", '"w"'], "item": ["i", '5" nails', '""']}


def test_the_separator_of_another_header_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "user:token,item:token\n1,2\n")
    with pytest.raises(UsageError, match="it looks separated by ',', set field_separator"):
        read_header(path, "\t", "utf-8")


def test_intervals_have_open_and_closed_ends() -> None:
    low, high = parse_intervals("key", "[2,4); (9,20]")
    counts = np.array([1, 2, 3, 4, 9, 10, 20, 21])
    np.testing.assert_array_equal(low.contains(counts), [0, 1, 1, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(high.contains(counts), [0, 0, 0, 0, 0, 1, 1, 0])
    assert parse_intervals("key", None) == []


@pytest.mark.parametrize("text", ["5", "[5,inf", "[5;inf)", "[9,5]", "[a,b]", ""])
def test_interval_that_cannot_be_read_is_refused(text: str) -> None:
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
