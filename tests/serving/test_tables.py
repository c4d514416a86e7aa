from pathlib import Path

import pytest

from recbole_lisa.errors import UsageError
from recbole_lisa.serving.tables import check_table, read_ids, write_recommendations

ANSWERS = [("b", ['i"3', "i,1"], [2.5, 1 / 3]), ("nobody", [], []), ("a\n", ["i4"], [-1.0])]


def test_csv_output_can_be_read_again(tmp_path: Path) -> None:
    assert write_recommendations(tmp_path / "top.csv", ANSWERS) == (tmp_path / "top.csv", 3)
    text = (tmp_path / "top.csv").read_text(encoding="utf-8")
    assert text == 'user_id,rank,item_id,score\nb,1,"i""3",2.5\nb,2,"i,1",0.333333333\n"a\n",1,i4,-1\n'
    assert write_recommendations(tmp_path / "top.tsv", ANSWERS[2:], {"i4": "Up, é", "i5": "x"})[1] == 1
    assert write_recommendations(tmp_path / "top.tsv", [], overwrite=False) == (tmp_path / "top-2.tsv", 0), (
        "both are kept"
    )
    text = (tmp_path / "top.tsv").read_text(encoding="utf-8")
    assert text == 'user_id\trank\titem_id\tscore\ttitle\n"a\n"\t1\ti4\t-1\tUp, é\n'


def test_parquet_output_has_types(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert write_recommendations(tmp_path / "top.parquet", ANSWERS)[1] == 3
    columns = {"user_id": ["b", "b", "a\n"], "rank": [1, 2, 1], "item_id": ['i"3', "i,1", "i4"]}
    columns |= {"score": [2.5, 1 / 3, -1.0]}
    assert parquet.read_table(tmp_path / "top.parquet").to_pydict() == columns
    write_recommendations(tmp_path / "top.parquet", ANSWERS, {"i4": "Up"})
    assert parquet.read_table(tmp_path / "top.parquet").to_pydict() == columns | {"title": ["", "", "Up"]}


def test_an_output_of_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"top\.json' must end in \.csv, \.tsv or \.parquet"):
        check_table(tmp_path / "top.json", overwrite=True)


def test_ids_are_read_a_line_each(tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    file.write_text("a\r\n\n b\x85c \u2028\n", encoding="utf-8-sig")
    assert read_ids(file) == ["a", " b\x85c \u2028"]
    file.write_bytes(b"a\n\xff")
    for path, message in ((file, "line 2: not utf-8 .*: write"), (tmp_path / "gone", "cannot read '.*gone': No such")):
        with pytest.raises(UsageError, match=message):
            read_ids(path)


def test_an_interrupted_output_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        write_recommendations(tmp_path / "top.csv", ((*ANSWERS[0][:2], [1 / n, 1]) for n in (1, 0)))
    assert list(tmp_path.iterdir()) == []
