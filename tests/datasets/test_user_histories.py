"""Histories of `recommend` come from csv, tsv, atomic files and parquet, and mistakes are named."""

import json
from pathlib import Path

import pytest

from recbole_lisa.data.atomic import read_columns
from recbole_lisa.datasets.conversion import convert
from recbole_lisa.datasets.histories import UserHistory, read_user_histories
from recbole_lisa.datasets.layouts import parse_conversion
from recbole_lisa.errors import UsageError

NAMES = {"user": "user_id", "item": "item_id", "time": "timestamp"}
ROWS = [("b", "i1", "3"), ("a", "i,2", "2"), ("b", 'i"3', "1"), ("b", "i4", "3")]
EXPECTED = [UserHistory("b", ['i"3', "i1", "i4"], [1.0, 3.0, 3.0]), UserHistory("a", ["i,2"], [2.0])]


def test_csv_is_grouped_by_user_and_ordered_by_time(tmp_path: Path) -> None:
    file = tmp_path / "h.csv"
    file.write_text('timestamp,user_id,item_id\n3,b,i1\n2,a,"i,2"\n1,b,"i""3"\n3,b,i4\n', encoding="utf-8-sig")
    assert read_user_histories(file, **NAMES) == EXPECTED


def test_an_atomic_file_has_types(tmp_path: Path) -> None:
    file = tmp_path / "h.inter"
    lines = ["\t".join(row) for row in [("user_id:token", "item_id:token", "timestamp:float"), *ROWS]]
    file.write_text("\n".join(lines))
    assert read_user_histories(file, **NAMES) == EXPECTED


def test_a_converted_file_gives_the_ids_that_a_run_reads(tmp_path: Path) -> None:
    ids = ['"quoted"', 'in"side', '"', "NA", "[PAD]", "a,b", " blank "]
    (tmp_path / "raw.jsonl").write_text(
        "".join(json.dumps({"user_id": f"u{raw}", "item_id": raw, "timestamp": 1}) + "\n" for raw in ids)
    )
    convert(tmp_path / "raw.jsonl", tmp_path / "shop", parse_conversion("csv"))
    histories = read_user_histories(tmp_path / "shop" / "shop.inter", **NAMES)
    assert [history.items for history in histories] == [[raw] for raw in ids]
    fields = {"user_id": "token", "item_id": "token"}
    read = read_columns(
        tmp_path / "shop" / "shop.inter", fields, separator="\t", encoding="utf-8", seq_separator=" ", tokens="object"
    )
    assert read["item_id"].tolist() == ids


def test_parquet_is_read_with_its_own_types(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    users, items, times = (list(column) for column in zip(*ROWS, strict=True))
    table = {"user_id": users, "item_id": items, "timestamp": [float(t) for t in times]}
    parquet.write_table(pyarrow.table(table), tmp_path / "h.parquet")
    assert read_user_histories(tmp_path / "h.parquet", **NAMES) == EXPECTED


def test_a_parquet_file_that_is_damaged_or_has_nulls_is_an_error(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "h.parquet"
    for table, message in (
        ({"user_id": ["a", None], "item_id": ["x", "y"]}, "row 2: there is no user_id"),
        ({"user_id": ["a", "b"], "item_id": [None, "y"]}, "row 1: there is no item_id"),
    ):
        parquet.write_table(pyarrow.table(table), file)
        with pytest.raises(UsageError, match=message):
            read_user_histories(file, **NAMES)
    data = file.read_bytes()
    file.write_bytes(data[:4] + bytes(40) + data[44:])
    with pytest.raises(UsageError, match="cannot read '.*h.parquet'"):
        read_user_histories(file, **NAMES)


def test_without_times_the_order_of_the_rows_counts(tmp_path: Path) -> None:
    file = tmp_path / "h.tsv"
    file.write_text("who\twhat\n1\tx\n1\ty\n")
    histories = read_user_histories(file, user="who", item="what", time="timestamp")
    assert histories == [UserHistory("1", ["x", "y"], None)]


def test_empty_lines_count_for_nothing(tmp_path: Path) -> None:
    file = tmp_path / "h.csv"
    file.write_text("user_id,item_id\n\na,x\n\na,y\n\n")
    assert read_user_histories(file, **NAMES) == [UserHistory("a", ["x", "y"], None)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "h.csv",
            "user_id,item\n",
            "no column 'item_id' for the item; it has user_id, item. Did you mean 'item'?",
        ),
        ("h.csv", "", "h.csv is empty: it needs a header"),
        ("h.csv", "user_id,item_id\n", "holds no interactions, only a header"),
        (
            "h.csv",
            "user_id,item_id\na,b,c\n",
            "h.csv is no table separated by ',': its first line has fewer cells",
        ),
        ("h.csv", "user_id,item_id,timestamp\na,b,1\na,b,noon\n", "row 2: the time 'noon' is no number of seconds"),
        ("h.csv", "user_id,item_id,timestamp\na,b,nan\n", "row 1: the time 'nan' is no number of seconds"),
        ("h.csv", "user_id,item_id\na,b\n,c\n", "row 2: there is no user_id"),
        ("h.csv", "user_id,item_id\na,b\na\n", "row 2: there is no item_id"),
        ("h.xlsx", "", "must end in .csv, .tsv, .inter or .parquet"),
    ],
    ids=str,
)
def test_mistakes_in_the_input_are_named(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as error:
        read_user_histories(tmp_path / name, **NAMES)
    assert message in str(error.value)
    with pytest.raises(UsageError, match="gone.csv': No such file"):
        read_user_histories(tmp_path / "gone.csv", **NAMES)
