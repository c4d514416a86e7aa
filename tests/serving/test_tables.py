import json
from pathlib import Path

import pytest

from recbole_lisa.data.atomic import read_columns
from recbole_lisa.datasets.conversion import convert
from recbole_lisa.datasets.layouts import parse_conversion
from recbole_lisa.errors import UsageError
from recbole_lisa.serving.tables import (
    UserHistory,
    check_table,
    read_ids,
    read_user_histories,
    write_recommendations,
)

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
    found = read_user_histories(tmp_path / "shop" / "shop.inter", **NAMES)
    assert [history.items for history in found] == [[raw] for raw in ids]
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


def test_a_parquet_file_that_is_damaged_or_has_nulls_is_told(tmp_path: Path) -> None:
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
    found = read_user_histories(file, user="who", item="what", time="timestamp")
    assert found == [UserHistory("1", ["x", "y"], None)]


def test_empty_lines_count_for_nothing(tmp_path: Path) -> None:
    file = tmp_path / "h.csv"
    file.write_text("user_id,item_id\n\na,x\n\na,y\n\n")
    assert read_user_histories(file, **NAMES) == [UserHistory("a", ["x", "y"], None)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("h.csv", "user_id,item\n", "has no column 'item_id', only user_id, item. Did you mean 'item'?"),
        ("h.csv", "", "is empty: it needs a header"),
        ("h.csv", "user_id,item_id\n", "holds no interactions, only a header"),
        ("h.csv", "user_id,item_id\na,b,c\n", "row 1: 3 cells, but the header names 2 columns"),
        ("h.csv", "user_id,item_id,timestamp\na,b,1\na,b,noon\n", "row 2: the time 'noon' is no number of seconds"),
        ("h.csv", "user_id,item_id,timestamp\na,b,nan\n", "row 1: the time 'nan' is no number of seconds"),
        ("h.csv", "user_id,item_id\na,b\na," + "c" * 200_000, "line 3: field larger than field limit (131072)"),
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


ANSWERS = [("b", ['i"3', "i,1"], [2.5, 1 / 3]), ("nobody", [], []), ("a\n", ["i4"], [-1.0])]


def test_csv_output_can_be_read_again(tmp_path: Path) -> None:
    assert write_recommendations(tmp_path / "top.csv", ANSWERS) == 3
    text = (tmp_path / "top.csv").read_text(encoding="utf-8")
    assert text == 'user_id,rank,item_id,score\nb,1,"i""3",2.5\nb,2,"i,1",0.333333333\n"a\n",1,i4,-1\n'


def test_parquet_output_has_types(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert write_recommendations(tmp_path / "top.parquet", ANSWERS) == 3
    assert parquet.read_table(tmp_path / "top.parquet").to_pydict() == {
        "user_id": ["b", "b", "a\n"],
        "rank": [1, 2, 1],
        "item_id": ['i"3', "i,1", "i4"],
        "score": [2.5, 1 / 3, -1.0],
    }


def test_an_output_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"top\.json' must end in \.csv, \.tsv or \.parquet"):
        check_table(tmp_path / "top.json", overwrite=True)


@pytest.mark.parametrize("name", ["file/top.csv", "folder.csv"])
def test_an_output_that_cannot_be_written_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UsageError, match=rf"'.*{name}' (cannot be written|is a folder)"):
        check_table(tmp_path / name, overwrite=True)


def test_ids_are_read_a_line_each(tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    file.write_text("a\r\n\n b\x85c \u2028\n", encoding="utf-8-sig")
    assert read_ids(file) == ["a", " b\x85c \u2028"]
    file.write_bytes(b"\xff")
    for path, message in ((file, "is not utf-8"), (tmp_path / "gone", "cannot read '.*gone': No such file")):
        with pytest.raises(UsageError, match=message):
            read_ids(path)


def test_an_interrupted_output_leaves_no_file(tmp_path: Path) -> None:
    def rows():  # type: ignore[no-untyped-def]
        yield ANSWERS[0]
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        write_recommendations(tmp_path / "top.csv", rows())
    assert list(tmp_path.iterdir()) == []
