"""Histories of `recommend` come from csv, tsv, atomic files and parquet, and mistakes are named."""

import re
from pathlib import Path

import pytest

from recbole_lisa.datasets.histories import UserHistory, read_user_histories
from recbole_lisa.errors import UsageError

NAMES = {"user": "user_id", "item": "item_id"}
HEAD = ("user_id:token", "item_id:token", "timestamp:float")
ROWS = [("b", "i1", "3"), ("a", "i,2", "2"), ("b", 'i"3', "1"), ("b", "i4", "3")]
EXPECTED = [UserHistory("b", ['i"3', "i1", "i4"], [1.0, 3.0, 3.0]), UserHistory("a", ["i,2"], [2.0])]


@pytest.mark.parametrize(
    ("name", "text", "user", "expected"),
    [
        ("h.csv", '\ufefftimestamp,user_id,item_id\n3,b,i1\n2,a,"i,2"\n1,b,"i""3"\n3,b,i4\n', "user_id", EXPECTED),
        ("h.inter", "\n".join("\t".join(row) for row in [HEAD, *ROWS]), "user_id", EXPECTED),
        ("h.tsv", "who\titem_id\n1\tx\n1\ty\n", "who", [UserHistory("1", ["x", "y"], None)]),
        ("h.csv", "user_id,item_id\n\na,x\n\na,y\n\n", "user_id", [UserHistory("a", ["x", "y"], None)]),
    ],
)
def test_rows_are_grouped_by_user_and_ordered_by_time(
    tmp_path: Path, name: str, text: str, user: str, expected: list[UserHistory]
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_user_histories(tmp_path / name, **{**NAMES, "user": user}) == expected


def test_parquet_is_read_with_its_own_types_and_damage_or_nulls_are_errors(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "h.parquet"
    users, items, times = (list(column) for column in zip(*ROWS, strict=True))
    table = {"user_id": users, "item_id": items, "timestamp": [float(t) for t in times]}
    parquet.write_table(pyarrow.table(table), file)
    assert read_user_histories(file, **NAMES) == EXPECTED
    for column, row in (("user_id", 2), ("item_id", 1)):
        damaged = {**table, column: [None if n == row - 1 else cell for n, cell in enumerate(table[column])]}
        parquet.write_table(pyarrow.table(damaged), file)
        with pytest.raises(UsageError, match=f"row {row}: there is no {column}"):
            read_user_histories(file, **NAMES)
    data = file.read_bytes()
    file.write_bytes(data[:4] + bytes(40) + data[44:])
    with pytest.raises(UsageError, match="cannot read '.*h.parquet'"):
        read_user_histories(file, **NAMES)


@pytest.mark.parametrize("role", ["item", "time"])
def test_two_roles_have_two_columns(role: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'user_id'.*: give each its own column"):
        read_user_histories(tmp_path / "h.csv", **{**NAMES, role: "user_id"})


def test_a_named_time_column_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "h.csv").write_text("user_id,item_id\na,x\n")
    with pytest.raises(
        UsageError, match="h.csv has no column 'timestamp' for the time; it has user_id, item_id. Use --time"
    ):
        read_user_histories(tmp_path / "h.csv", **NAMES, time="timestamp")


MISTAKES = [
    ("h.csv", "user_id,item_id,item_id\na,x,y\n", "the first line names the column item_id twice: rename one"),
    ("h.csv", "user_id,item\n", "no column 'item_id' for the item; it has user_id, item. Did you mean 'item'?"),
    ("h.csv", "", "h.csv is empty: it needs a header"),
    ("h.csv", "user_id;item_id\na;b\n", "line 1: 'user_id;item_id' looks separated by ';': separate the columns"),
    ("h.tsv", "user_id,item_id\na,b\n", "looks separated by ',': separate the columns by '\\t'"),
    ("h.csv", "user_id,item_id\n", "holds no interactions, only a header"),
    ("h.csv", "user_id,item_id\na,b,c\n", "h.csv, with cells separated by ',': its first line has fewer cells"),
    ("h.csv", "user_id,item_id,timestamp\na,b,1\na,b,noon\n", "row 2, column timestamp: 'noon' is not a number of sec"),
    ("h.csv", "user_id,item_id,timestamp\na,b,\n", "row 1, column timestamp: the cell is empty; `recbole-lisa convert"),
    ("h.csv", "user_id\titem_id\ttimestamp\na\tb\t1\n", "looks separated by '\\t': separate the columns by ','"),
    ("h.csv", "user_id item_id timestamp\na b 1\n", "looks separated by ' ': separate the columns by ','"),
    ("h.csv", "user_id,item_id\na,b\n,c\n", "row 2: there is no user_id"),
    ("h.csv", "user_id,item_id\na,b\na\n", "row 2: there is no item_id"),
    ("h.xlsx", "", "must end in .csv, .tsv, .inter or .parquet"),
]


@pytest.mark.parametrize(("name", "text", "message"), MISTAKES, ids=str)
def test_mistakes_in_the_input_are_named(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=re.escape(message)):
        read_user_histories(tmp_path / name, **NAMES)
