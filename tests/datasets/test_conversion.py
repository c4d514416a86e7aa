"""Raw files of every known form become atomic files, and each oddity becomes what is documented."""

import bz2
import gzip
import importlib
import json
import re
import signal
import zipfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pytest import MonkeyPatch

from recbole_lisa.config.config import LISAConfig
from recbole_lisa.data.dataset import create_dataset
from recbole_lisa.datasets import conversion, obtain, reader
from recbole_lisa.datasets.conversion import Conversion, RepeatedRows, convert
from recbole_lisa.datasets.histories import read_user_histories
from recbole_lisa.datasets.layouts import parse_conversion
from recbole_lisa.errors import UsageError

TABLE = "user_id,item_id,timestamp\n"
HEAD = "user_id:token\titem_id:token\ttimestamp:float\n"
HEAD_WITH_RATING = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"


def converted(source: Path, conversion_text: str = "csv", **options: Any) -> tuple[str, Conversion]:
    """Convert a file into the folder `set` beside it; the atomic file and the report."""
    report = convert(source, source.parent / "set", parse_conversion(conversion_text), **options)
    assert sorted(path.name for path in (source.parent / "set").iterdir()) == ["set.inter"]
    return (source.parent / "set" / "set.inter").read_text(encoding="utf-8"), report


def packed(name: str, content: str | bytes) -> bytes:
    if isinstance(content, bytes):
        return content
    return gzip.compress(content.encode()) if name.endswith(".gz") else content.encode()


def raw(folder: Path, content: str | bytes | dict[str, str], name: str = "raw.csv") -> Path:
    """Write a file, or the members of a zip or of a folder."""
    path = folder / name
    if not isinstance(content, dict):
        path.write_bytes(packed(name, content))
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for member, text in content.items():
                archive.writestr(member, packed(member, text))
    else:
        path.mkdir()
        for member, text in content.items():
            raw(path, text, member)
    return path


# What each public format looks like: two interactions of one user.
MOVIELENS = HEAD_WITH_RATING + "1\t1193\t5\t978300760\n1\t661\t3.5\t978302109\n"
ML_1M = "1::1193::5::978300760\n1::661::3.5::978302109\n"
ML_25M = "userId,movieId,rating,timestamp\n1,1193,5.0,978300760\n1,661,3.5,978302109\n"
AMAZON = HEAD_WITH_RATING + "A1\tB01\t5\t1363392000\n"
REVIEW = {"overall": 5.0, "reviewerID": "A1", "asin": "B01", "unixReviewTime": 1363392000, "reviewText": "a\nb"}
AMAZON_23 = HEAD_WITH_RATING + "A1\tB01\t5\t1363392000.123\n"
REVIEW_23 = {"rating": 5.0, "user_id": "A1", "asin": "x", "parent_asin": "B01", "timestamp": 1363392000123}
TABLE_23 = "user_id,parent_asin,rating,timestamp\nA1,B01,5.0,1363392000123\n"
MILLISECONDS = "noted: times in milliseconds, written as seconds: 1"


@pytest.mark.parametrize(
    ("conversion_text", "name", "content", "expected", "line"),
    [
        ("ml-1m", "a.zip", {"a/README": "", "a/ratings.dat": ML_1M}, MOVIELENS, "read a.zip (ratings.dat): 2 rows, 1 "),
        ("ml-100k", "a.zip", {"a/u.data": ML_1M.replace("::", "\t")}, MOVIELENS, "read a.zip (u.data): 2 rows, 1 us"),
        ("ml-25m", "ratings.csv", ML_25M, MOVIELENS, "read ratings.csv: 2 rows, 1 users, 2 items"),
        ("ml-25m", "ratings.csv.gz", ML_25M, MOVIELENS, "read ratings.csv.gz (ratings.csv): "),
        ("ml-25m", "a.zip", {"ratings.csv": ML_25M, "movies.csv": ""}, MOVIELENS, "read a.zip (ratings.csv): "),
        ("ml-25m", "folder", {"ratings.csv": ML_25M, "movies.csv": ""}, MOVIELENS, "read folder (ratings.csv): "),
        ("amazon-2018", "raw.csv", "B01,A1,5.0,1363392000\n", AMAZON, "read raw.csv: 1 rows, 1 users, 1 items"),
        ("amazon-2018", "a.json.gz", json.dumps(REVIEW), AMAZON, "read a.json.gz (a.json): 1 rows"),
        ("amazon-2023", "a.jsonl", json.dumps(REVIEW_23) + "\n\n", AMAZON_23, MILLISECONDS),
        ("amazon-2023", "raw.csv", TABLE_23, AMAZON_23, MILLISECONDS),
        ("csv", "a.zip", {"deep/raw.csv.gz": TABLE + "u,i,1\n"}, HEAD + "u\ti\t1\n", "read a.zip (raw.csv): "),
        ("csv --no_header --user=0 --item=1 --time=3", "a.csv", "1,2,pv,4\n", HEAD + "1\t2\t4\n", "read a.csv: 1 rows"),
        ("csv --time_unit=ms", "raw.csv", TABLE + "u,i,5000\n", HEAD + "u\ti\t5\n", "read raw.csv: 1 rows"),
    ],
)
def test_each_format_is_read_packed_and_unpacked(
    tmp_path: Path, conversion_text: str, name: str, content: str | dict[str, str], expected: str, line: str
) -> None:
    atomic, report = converted(raw(tmp_path, content, name), conversion_text)
    assert atomic == expected
    assert line in "\n".join(report.lines())


@pytest.mark.parametrize("separator", [",", "\t", ";", "|", "::"])
def test_any_table_with_named_columns_in_any_order(tmp_path: Path, separator: str) -> None:
    lines = [["when", "who", "other, text", "what"], ["5", "u", "", "i"], ["6", "v", "x", "j"]]
    text = "\n".join(separator.join(f'"{cell}"' for cell in line) for line in lines)
    atomic, _ = converted(raw(tmp_path, text), "csv --user=who --item=what --time=when")
    assert atomic == HEAD + "u\ti\t5\nv\tj\t6\n"


def test_parquet_is_read_with_its_own_types(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    times = pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-01 00:00:00.5"], format="ISO8601")
    ids = {"user_id": pd.array([7, None, 8], dtype="Int64"), "item_id": pd.Categorical(["a b", "c", "d"])}
    pd.DataFrame({**ids, "timestamp": times, "stars": [1, 2, np.nan]}).to_parquet(tmp_path / "raw.parquet")
    atomic, report = converted(tmp_path / "raw.parquet", "csv --rating=stars")
    assert atomic == HEAD_WITH_RATING + "7\ta b\t1\t1577836800\n8\td\t\t1577836800.5\n"
    assert report.left_out["no user"] == 1


ODD_IDS = ['5" nails', '"quoted"', "NA", "null", "😀 ünï", " both ", "[PAD]"]
ODD_IDS += ["a,b", "007", "7", "x:token", "#1", "'", "\\", '"', 'in"side']


def test_ids_keep_any_text_and_runs_and_recommend_read_them_back(tmp_path: Path) -> None:
    rows = [(user, item, time) for user in ODD_IDS for time, item in enumerate(ODD_IDS)]
    pd.DataFrame(rows, columns=["user_id", "item_id", "timestamp"]).to_csv(tmp_path / "raw.csv", index=False)
    _, report = converted(tmp_path / "raw.csv")
    assert report.rows == (len(rows), len(rows))
    assert (report.notes["missing"], report.notes["padding"]) == (4, 2)  # NA and null, as users and as items
    config = LISAConfig("Transformer", "set", config_dict={"data_path": str(tmp_path)})
    dataset = create_dataset(config)
    for field in ("user_id", "item_id"):
        assert dataset.id2token(field, range(1, dataset.num(field))).tolist() == ODD_IDS
    histories = read_user_histories(tmp_path / "set" / "set.inter", user="user_id", item="item_id", time="timestamp")
    assert [(history.user, history.items) for history in histories] == [(user, ODD_IDS) for user in ODD_IDS]
    train, _, _ = dataset.build()
    assert train.histories.items.tolist() == [*range(1, len(ODD_IDS) + 1)] * len(ODD_IDS)


def test_control_characters_and_halves_of_surrogates_become_escapes(tmp_path: Path) -> None:
    atomic, report = converted(raw(tmp_path, TABLE + '"a\tb","c\nd",1\n"a\\tb","\x01",2\n'))
    assert atomic == HEAD + "a\\tb\tc\\nd\t1\na\\tb\t\\x01\t2\n"
    assert (report.notes["escaped"], report.users) == (3, (1, 1))
    halves = raw(tmp_path, '{"user_id": "\\ud800", "item_id": "\\ud83d\\ude00", "timestamp": 1}', "raw.jsonl")
    assert converted(halves, overwrite=True)[0] == HEAD + "\\ud800\t😀\t1\n"


@pytest.mark.parametrize(
    ("cell", "seconds", "kind"),
    [
        ("1577836800", "1577836800", None),
        ("-5.5", "-5.5", None),
        (" 7 ", "7", None),
        ("1577836800123", "1577836800.123", "ms"),
        ("1577836800123456", "1577836800.123456", "us"),
        ("1577836800000000000", "1577836800", "ns"),
        ("2020-01-01", "1577836800", "iso"),
        ("20260301", "20260301", "basic"),
        ("20261301", "20261301", None),
        ("2020-01-01 02:00:00+02:00", "1577836800", "iso"),
        ("2020-01-01T00:00:00.5Z", "1577836800.5", "iso"),
    ],
)
def test_times_are_read_as_seconds(tmp_path: Path, cell: str, seconds: str, kind: str | None) -> None:
    atomic, report = converted(raw(tmp_path, f"{TABLE}u,i,{cell}\nu,j,3\n"))
    assert atomic == HEAD + f"u\ti\t{seconds}\nu\tj\t3\n"
    assert {name: count for name, count in report.notes.items() if count} == ({kind: 1} if kind else {})


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ("1,a,45000.5\n2,b,45001\n", "times from 20000 to 80000, read as seconds of 1970; write the days of a.*: 2"),
        ("1,a,45000.5\n2,b,3\n", None),
        ("u ,a,1\nu,\u3000b,2\nu ,c,3\n", "ids with a blank at an end, kept; they are other ids than those without: 2"),
        ("1.0,a.0,1\n-2.0,b,2\n1.0,b,2\n", "ids such as 1.0 in a whole column, kept; they are other ids than 1: 2"),
        ("1.0,a,1\n2,b,2\n", None),
    ],
)
def test_what_a_spreadsheet_may_have_changed_is_noted(tmp_path: Path, rows: str, line: str | None) -> None:
    atomic, report = converted(raw(tmp_path, TABLE + rows))
    assert atomic == HEAD + rows.replace(",", "\t")
    noted = [text for text in report.lines() if text.startswith("noted")]
    assert len(noted) == (line is not None) and all(re.fullmatch(f"noted: {line}", text) for text in noted)


def test_rows_that_lack_a_cell_or_have_an_unreadable_time_are_left_out_and_counted(tmp_path: Path) -> None:
    text = "user_id,item_id,timestamp,stars\n,,,\nu,,1,\nu,i,,\nu\nu,i,2,\nu,j,3,good\n"
    times = ("1e23", "-3e20", "yesterday", "01/02/2020", "2020-02-30", "nan", "inf", "0x10")
    text += "".join(f"u,k,{time},1\n" for time in times)
    atomic, report = converted(raw(tmp_path, text), "csv --rating=stars")
    assert atomic == HEAD_WITH_RATING + "u\ti\t\t2\nu\tj\t\t3\n"
    assert report.left_out == {"no user": 1, "no item": 2, "no time": 1, "odd time": 8, "repeated": 0}
    assert (
        "rows left out with a time that is neither a number up to the year 9999 nor an ISO date: 8"
        " (row 7 below the header: '1e23')"
    ) in report.lines()
    assert report.notes["odd rating"] == 1
    assert (report.rows, report.users, report.items) == ((14, 2), (1, 1), (3, 2))


@pytest.mark.parametrize("piece_rows", [1, 2, 100])
def test_repeated_rows_go_and_equal_times_keep_order(tmp_path: Path, monkeypatch: MonkeyPatch, piece_rows: int) -> None:
    monkeypatch.setattr(reader, "PIECE_ROWS", piece_rows)
    rows = ["u,b,1", "u,a,1", "u,b,1", "v,b,1", "u,b,2", "u,a,1.0", "u,c,1"]
    atomic, report = converted(raw(tmp_path, TABLE + "\n".join(rows) + "\n"))
    assert atomic.splitlines()[1:] == ["u\tb\t1", "u\ta\t1", "v\tb\t1", "u\tb\t2", "u\tc\t1"]
    assert report.left_out["repeated"] == 2
    kept, report = converted(tmp_path / "raw.csv", "csv --repeated=keep", overwrite=True)
    assert len(kept.splitlines()) == 8
    assert report.left_out["repeated"] == 0


def test_repeated_rows_are_found_across_many_pieces() -> None:
    rng = np.random.default_rng(3)
    rows, repeats = rng.integers(0, 200, size=(3000, 2)), RepeatedRows()
    seen: set[tuple[int, ...]] = set()
    for piece in np.split(rows, range(7, 3000, 31)):
        expected = [at for at, row in enumerate(map(tuple, piece)) if not (row in seen or seen.add(row))]  # type: ignore[func-returns-value]
        assert repeats.new_rows(list(piece.T)).tolist() == expected
    assert repeats.count == 3000 - len(seen)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_marks_of_the_encoding_and_windows_line_ends(tmp_path: Path, encoding: str) -> None:
    atomic, report = converted(raw(tmp_path, "user_id,item_id,timestamp\r\nü,😀,5\r\n".encode(encoding)))
    assert atomic == HEAD + "ü\t😀\t5\n"
    assert report.notes["bom"] == 1
    assert "noted: file with Windows line ends, read like any other: 1" in report.lines()
    named = raw(tmp_path, f"{TABLE}ü,i,5\n".encode("utf-16-le"))
    assert converted(named, "csv --encoding=utf-16-le", overwrite=True)[0] == HEAD + "ü\ti\t5\n"


REFUSED = [
    ("csv", "", "raw.csv is empty"),
    ("csv", TABLE, "no row of raw.csv can be used: it holds no rows"),
    ("csv", TABLE + "u,,1\n", "can be used: rows left out without an item: 1"),
    ("csv", TABLE + "u,i,1\nu,i,2,3\n", "Expected 3 fields in line 3, saw 4"),
    ("csv", TABLE + "u,i,1,2\n", "with cells separated by ','"),
    ("csv", TABLE + 'u,"i,1\n', "EOF inside string"),
    ("csv", TABLE.encode() + b"u,i,1\nu,\xff,1\n", "raw.csv, line 3: byte 0xff is not utf-8: write it in"),
    ("csv --separator=,", TABLE.replace(",", ";"), "line 1: .* looks separated by ';': separate the columns by ','"),
    ("csv --separator=", TABLE, "--separator is ''"),
    ("csv", TABLE.replace(",", " "), "line 1: 'user_id item_id timestamp' looks separated by ' ': write --separ"),
    ("csv --user=u", "u" * 20_000 + ",v\n", r"it has u{80}\.\.\.u{19}, v\. Use --user"),
    ("csv", TABLE + "u,\0,1\n", "raw.csv has a NUL character in line 2: a packed file must be named .gz"),
    ("csv", "user,item_id,timestamp\nu,i,1\n", "no column 'user_id' for the user; it has user, item_id, timestamp"),
    ("csv --no_header --user=0 --item=1 --time=5", "u,i,1\n", "no column '5' for the time; it has 0, 1, 2. Use --time"),
    (
        "csv --no_header --user=0 --item=0 --time=2",
        "u,i,1\n",
        "--user and --item are both '0': give each its own column",
    ),
    ("csv --no_header", "u,i,1\n", "--user is 'user_id', with --no_header it must be the number"),
    ("csv --encoding=utf-9", "u,i,1\n", "encoding is 'utf-9', it must be a text encoding"),
    ("csv --encoding=idna", "u,i,1\n", "encoding is 'idna'"),
    ("csv --separator=abc", "u,i,1\n", "--separator is 'abc'"),
    ("csv --separator=ü", "u,i,1\n", "--separator is 'ü'"),
    ("csv --separator='\"'", "u,i,1\n", "--separator is '\"'"),
    ("csv", "# made by x\n" + TABLE + "u,i,1\n", "no column 'user_id' for the user; it has # made by x"),
    ("csv", gzip.compress(b"user_id", mtime=0), r"raw\.csv is not text: a packed file must be named \.gz"),
    ("csv", bz2.compress(b"user_id"), r"raw\.csv is not text: .* or be unpacked first"),
    ("csv", b"PAR1\x15\0", r"raw\.csv is not text: .* \.parquet"),
    ("csv", b"name".ljust(257, b"\0") + b"ustar", r"raw\.csv is not text"),
    ("ml-25m --user=u", "", "--user is an option of the format csv"),
    ("ml-2m", "", "unknown format 'ml-2m'.*Did you mean 'ml-25m'"),
]


@pytest.mark.parametrize(("conversion_text", "text", "message"), REFUSED)
def test_odd_files_are_one_line(tmp_path: Path, conversion_text: str, text: str | bytes, message: str) -> None:
    source = raw(tmp_path, text)
    with pytest.raises(UsageError, match=message):
        convert(source, tmp_path / "deep" / "set", parse_conversion(conversion_text))
    assert [path.name for path in tmp_path.iterdir()] == ["raw.csv"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", r"line 2 of raw.jsonl is not a JSON object, it is '\[1\]': write one object a line"),
        ('{"user_id": ' + "[" * 10**5, "line 2 of raw.jsonl is not JSON"),
        ('{"user_id": 1, "user_id": 2, "item_id": 2, "timestamp": 3}', "line 2 of .* not JSON: it names a key twice"),
        ('{"user_id": [1], "item_id": 2, "timestamp": 3}', r"line 2 of raw.jsonl has \['1'\] as its 'user_id'"),
    ],
)
def test_a_broken_json_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        converted(raw(tmp_path, '{"user_id": 1, "item_id": 2, "timestamp": 3}\n' + line, "raw.jsonl"))


def test_numbers_and_words_of_json_stay_as_they_are_written(tmp_path: Path) -> None:
    lines = ['{"user_id": 1.10, "item_id": true, "timestamp": 1e3}', '{"user_id": %s, "item_id": "", "timestamp": 3}']
    lines += ['{"user_id": NaN, "item_id": 1, "timestamp": 3}', '{"user_id": 1.1, "item_id": 1}']
    atomic, report = converted(raw(tmp_path, "\n".join(lines) % ("9" * 5000), "raw.json"))
    assert atomic == HEAD + "1.10\ttrue\t1000\n"
    assert report.left_out == {"no user": 1, "no item": 1, "no time": 1, "odd time": 0, "repeated": 0}


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    twice = "raw.* names the column user_id twice: rename one of them"
    with pytest.raises(UsageError, match=twice):
        converted(raw(tmp_path, "user_id,user_id,item_id,timestamp\na,b,i,1\n"))
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table([["a"], ["b"], ["i"], [1]], names=["user_id", "user_id", "item_id", "timestamp"])
    importlib.import_module("pyarrow.parquet").write_table(table, tmp_path / "raw.parquet")
    with pytest.raises(UsageError, match=twice):
        converted(tmp_path / "raw.parquet", overwrite=True)


def test_damaged_and_wrong_archives_are_errors(tmp_path: Path) -> None:
    whole = raw(tmp_path, {"ratings.csv": ML_25M * 100}, "whole.zip").read_bytes()
    names = bytearray(whole)
    names[(start := whole.rfind(b"PK\1\2")) + 9] |= 8  # names are UTF-8
    names[start + 46] = 255
    for name, conversion_text, content, message in (
        ("half.zip", "ml-25m", whole[:200], "cannot unpack '.*half.zip': File is not a zip file"),
        ("names.zip", "ml-25m", bytes(names), "cannot unpack '.*names.zip': 'utf-8' codec"),
        ("half.csv.gz", "csv", gzip.compress(np.random.bytes(3000), mtime=0)[:2000], "half.csv.gz' is damaged"),
        ("not.gz", "csv", b"user", "not.gz' is damaged"),
        ("whole.zip", "ml-1m", whole, "must hold one file ratings.dat, it holds ratings.csv"),
        ("two.zip", "csv", {"a.csv": "", "b.csv": ""}, "must hold one file .*, it holds a.csv, b.csv: name one"),
    ):
        with pytest.raises(UsageError, match=message):
            converted(raw(tmp_path, content, name), conversion_text)
    with pytest.raises(UsageError, match="cannot read '.*gone.zip': No such file"):
        converted(tmp_path / "gone.zip", "ml-25m")
    assert not (tmp_path / "set").exists()


def test_an_atomic_file_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    source = raw(tmp_path, TABLE + "u,i,1\n")
    old, _ = converted(source)
    with pytest.raises(UsageError, match=r"set\.inter' exists: pass overwrite=True"):
        converted(source)
    with pytest.raises(UsageError, match="no row"):
        converted(raw(tmp_path, TABLE + "u,,1\n"), overwrite=True)
    with pytest.raises(UsageError, match=r"set\.inter' is the input, too"):
        convert(tmp_path / "set" / "set.inter", tmp_path / "set", parse_conversion("csv"), overwrite=True)
    assert (tmp_path / "set" / "set.inter").read_text() == old


@pytest.mark.parametrize(("sent", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_an_interruption_leaves_no_folder(tmp_path: Path, monkeypatch: MonkeyPatch, sent: int, error: Any) -> None:
    monkeypatch.setattr(conversion.Conversion, "add", lambda *_: signal.raise_signal(sent))
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # other libraries leave theirs there
    try:
        with pytest.raises(error):
            convert(raw(tmp_path, ML_25M), tmp_path / "set", parse_conversion("ml-25m"))
        assert not (tmp_path / "set").exists()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("/", "the output is '/', whose name names no data set"),
        ("x" * 300, r"'x{79}\.\.\.x+\.inter' cannot be written \(File name too long\)"),
        ("raw.csv/set", r"set\.inter' cannot be written \(Not a directory\)"),
    ],
)
def test_an_output_that_cannot_be_written_is_an_error(isolated_run_dir: Path, output: str, message: str) -> None:
    source = raw(isolated_run_dir, ML_25M)
    with pytest.raises(UsageError, match=message):
        convert(source, Path(output), parse_conversion("ml-25m"))


def test_two_conversions_do_not_write_one_file(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    source, layout = raw(tmp_path, TABLE + "u,i,1\n"), parse_conversion("csv")

    def meanwhile(*_: Any, **options: Any) -> Any:
        monkeypatch.undo()
        with pytest.raises(UsageError, match=r"another process writes '.*set\.inter': wait for its end"):
            convert(source, tmp_path / "set", layout)
        return reader.read_pieces(*_, **options)

    monkeypatch.setattr(conversion, "read_pieces", meanwhile)
    assert converted(source)[0] == HEAD + "u\ti\t1\n"


def test_a_run_waits_for_the_file_that_another_one_fetches(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    def other(*_: Any, **__: Any) -> Any:
        target = tmp_path / "ml-1m" / "ml-1m.inter"
        target.parent.mkdir()
        target.write_text(HEAD + "u\ti\t1\n")
        return nullcontext()

    monkeypatch.setattr(obtain, "locked", other)
    monkeypatch.setattr(obtain, "download", lambda *_, **__: pytest.fail("fetched a second time"))
    assert obtain.ensure_data(LISAConfig("LISASoft", "ml-1m", config_dict={"data_path": str(tmp_path)})) == []
