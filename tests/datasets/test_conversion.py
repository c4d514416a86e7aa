"""Raw files of every known form become atomic files, and each oddity becomes what is documented."""

import bz2
import gzip
import importlib
import io
import json
import signal
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from recbole_lisa.config.config import LISAConfig
from recbole_lisa.data.dataset import create_dataset
from recbole_lisa.datasets import conversion, reader
from recbole_lisa.datasets.conversion import Conversion, RepeatedRows, convert
from recbole_lisa.datasets.layouts import parse_conversion
from recbole_lisa.errors import UsageError

HEAD = "user_id:token\titem_id:token\ttimestamp:float\n"
HEAD_WITH_RATING = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"


def converted(source: Path, conversion_text: str = "csv", **options: Any) -> tuple[str, Conversion]:
    """Convert a file into the folder `set` beside it; the atomic file and the report."""
    report = convert(source, source.parent / "set", parse_conversion(conversion_text), **options)
    assert sorted(path.name for path in (source.parent / "set").iterdir()) == ["set.inter"]
    return (source.parent / "set" / "set.inter").read_text(encoding="utf-8"), report


def csv(folder: Path, text: str | bytes, name: str = "raw.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def zipped(folder: Path, name: str, members: dict[str, str]) -> Path:
    with zipfile.ZipFile(folder / name, "w") as archive:
        for member, text in members.items():
            archive.writestr(member, text)
    return folder / name


# What each public format looks like: two interactions of one user.
MOVIELENS = HEAD_WITH_RATING + "1\t1193\t5\t978300760\n1\t661\t3.5\t978302109\n"
ML_25M = "userId,movieId,rating,timestamp\n1,1193,5.0,978300760\n1,661,3.5,978302109\n"
AMAZON = HEAD_WITH_RATING + "A1\tB01\t5\t1363392000\n"


def test_ml_1m_and_ml_100k_are_read_from_their_zip(tmp_path: Path) -> None:
    text = "1::1193::5::978300760\n1::661::3.5::978302109\n"
    source = zipped(tmp_path, "ml-1m.zip", {"ml-1m/README": "", "ml-1m/movies.dat": "", "ml-1m/ratings.dat": text})
    tabs = zipped(tmp_path, "ml-100k.zip", {"ml-100k/u.data": text.replace("::", "\t")})
    assert converted(tabs, "ml-100k")[0] == MOVIELENS
    atomic, report = converted(source, "ml-1m", overwrite=True)
    assert atomic == MOVIELENS
    assert report.lines() == [
        "read ml-1m.zip (ratings.dat): 2 rows, 1 users, 2 items",
        f"wrote {tmp_path / 'set' / 'set.inter'}: 2 rows, 1 users, 2 items",
    ]


@pytest.mark.parametrize("form", ["file", "gz", "zip", "folder"])
def test_ml_25m_is_read_packed_and_unpacked(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "ml-25m"
    folder.mkdir()
    plain = csv(folder, ML_25M, "ratings.csv")
    csv(folder, "movieId,title\n", "movies.csv")
    packed = csv(tmp_path, gzip.compress(ML_25M.encode()), "ratings.csv.gz")
    archive = zipped(tmp_path, "ml-25m.zip", {"ml-25m/ratings.csv": ML_25M, "ml-25m/movies.csv": "movieId\n"})
    source = {"file": plain, "gz": packed, "zip": archive, "folder": folder}[form]
    atomic, _ = converted(source.rename(tmp_path / source.name), "ml-25m")
    assert atomic == MOVIELENS


def test_amazon_2018_is_read_as_ratings_and_as_reviews(tmp_path: Path) -> None:
    atomic, _ = converted(csv(tmp_path, "B01,A1,5.0,1363392000\n"), "amazon-2018")
    assert atomic == AMAZON
    review = {"overall": 5.0, "reviewerID": "A1", "asin": "B01", "unixReviewTime": 1363392000, "reviewText": "a\nb"}
    source = csv(tmp_path, gzip.compress(json.dumps(review).encode()), "Video_Games_5.json.gz")
    assert converted(source, "amazon-2018", overwrite=True)[0] == AMAZON


def test_amazon_2023_takes_the_parent_and_milliseconds(tmp_path: Path) -> None:
    review = {"rating": 5.0, "user_id": "A1", "asin": "x", "parent_asin": "B01", "timestamp": 1363392000123}
    expected = HEAD_WITH_RATING + "A1\tB01\t5\t1363392000.123\n"
    atomic, report = converted(csv(tmp_path, json.dumps(review) + "\n\n", "Video_Games.jsonl"), "amazon-2023")
    assert atomic == expected
    assert "noted 1 times in milliseconds, written as seconds" in report.lines()
    table = csv(tmp_path, "user_id,parent_asin,rating,timestamp\nA1,B01,5.0,1363392000123\n")
    assert converted(table, "amazon-2023", overwrite=True)[0] == expected


@pytest.mark.parametrize("separator", [",", "\t", ";", "|", "::"])
def test_any_table_with_named_columns_in_any_order(tmp_path: Path, separator: str) -> None:
    lines = [["when", "who", "other, text", "what"], ["5", "u", "", "i"], ["6", "v", "x", "j"]]
    text = "\n".join(separator.join(f'"{cell}"' for cell in line) for line in lines)
    atomic, _ = converted(csv(tmp_path, text), "csv --user=who --item=what --time=when")
    assert atomic == HEAD + "u\ti\t5\nv\tj\t6\n"


def test_a_table_without_header_is_read_by_position(tmp_path: Path) -> None:
    source = csv(tmp_path, "1,268318,2520377,pv,1511544070\n", "UserBehavior.csv")
    atomic, _ = converted(source, "csv --no_header --user=0 --item=1 --time=4")
    assert atomic == HEAD + "1\t268318\t1511544070\n"


def test_parquet_is_read_with_its_own_types(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(
        {
            "user_id": pd.array([7, None, 8], dtype="Int64"),
            "item_id": pd.Categorical(["a b", "c", "d"]),
            "timestamp": pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-01 00:00:00.5"], format="ISO8601"),
            "stars": [1.0, 2.0, np.nan],
        }
    )
    frame.to_parquet(tmp_path / "raw.parquet")
    atomic, report = converted(tmp_path / "raw.parquet", "csv --rating=stars")
    assert atomic == HEAD_WITH_RATING + "7\ta b\t1\t1577836800\n8\td\t\t1577836800.5\n"
    assert report.left_out["no user"] == 1


ODD_IDS = [
    '5" nails',
    '"quoted"',
    "NA",
    "null",
    "😀 ünï",
    " both ",
    "[PAD]",
    "a,b",
    "007",
    "7",
    "x:token",
    "#1",
    "'",
    "\\",
]


def test_ids_keep_any_text_and_the_run_reads_them_back(tmp_path: Path) -> None:
    rows = [["user_id", "item_id", "timestamp"]]
    rows += [[user, item, str(time)] for user in ODD_IDS for time, item in enumerate(ODD_IDS)]
    quoted = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows]
    _, report = converted(csv(tmp_path, "\n".join(quoted)))
    assert report.rows == (len(rows) - 1,) * 2
    assert (report.notes["missing"], report.notes["padding"]) == (4, 2)  # NA and null, as users and as items
    config = LISAConfig("Transformer", "set", config_dict={"data_path": str(tmp_path)})
    dataset = create_dataset(config)
    for field in ("user_id", "item_id"):
        assert dataset.id2token(field, range(1, dataset.num(field))).tolist() == ODD_IDS
    train, _, _ = dataset.build()
    assert train.histories.items.tolist() == [*range(1, len(ODD_IDS) + 1)] * len(ODD_IDS)


def test_control_characters_and_halves_of_surrogates_become_escapes(tmp_path: Path) -> None:
    text = 'user_id,item_id,timestamp\n"a\tb","c\nd",1\n"a\\tb","\x01",2\n'
    atomic, report = converted(csv(tmp_path, text))
    assert atomic == HEAD + "a\\tb\tc\\nd\t1\na\\tb\t\\x01\t2\n"
    assert (report.notes["escaped"], report.users) == (3, (1, 1))
    halves = csv(tmp_path, '{"user_id": "\\ud800", "item_id": "\\ud83d\\ude00", "timestamp": 1}', "raw.jsonl")
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
        ("2020-01-01 02:00:00+02:00", "1577836800", "iso"),
        ("2020-01-01T00:00:00.5Z", "1577836800.5", "iso"),
    ],
)
def test_times_are_read_as_seconds(tmp_path: Path, cell: str, seconds: str, kind: str | None) -> None:
    atomic, report = converted(csv(tmp_path, f"user_id,item_id,timestamp\nu,i,{cell}\nu,j,3\n"))
    assert atomic == HEAD + f"u\ti\t{seconds}\nu\tj\t3\n"
    assert {name: count for name, count in report.notes.items() if count} == ({kind: 1} if kind else {})
    source = csv(tmp_path, "user_id,item_id,timestamp\nu,i,5000\n")
    assert converted(source, "csv --time_unit=ms", overwrite=True)[0] == HEAD + "u\ti\t5\n"


@pytest.mark.parametrize("time", ["yesterday", "01/02/2020", "2020-02-30", "nan", "inf", "0x10"])
def test_rows_with_an_unreadable_time_are_left_out_and_counted(tmp_path: Path, time: str) -> None:
    atomic, report = converted(csv(tmp_path, f"user_id,item_id,timestamp\nu,i,{time}\nu,i,3\n"))
    assert atomic == HEAD + "u\ti\t3\n"
    assert "left out 1 rows with a time that is neither a number nor an ISO date" in report.lines()


def test_rows_with_empty_cells_are_left_out_under_the_first_lack(tmp_path: Path) -> None:
    text = "user_id,item_id,timestamp,stars\n,,,\nu,,1,\nu,i,,\nu\nu,i,2,\nu,j,3,good\n"
    atomic, report = converted(csv(tmp_path, text), "csv --rating=stars")
    assert atomic == HEAD_WITH_RATING + "u\ti\t\t2\nu\tj\t\t3\n"
    assert report.left_out == {"no user": 1, "no item": 2, "no time": 1, "odd time": 0, "repeated": 0}
    assert report.notes["odd rating"] == 1
    assert (report.rows, report.users, report.items) == ((6, 2), (1, 1), (2, 2))


@pytest.mark.parametrize("piece_rows", [1, 2, 100])
def test_repeated_rows_go_and_equal_times_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_rows: int
) -> None:
    monkeypatch.setattr(reader, "PIECE_ROWS", piece_rows)
    rows = ["u,b,1", "u,a,1", "u,b,1", "v,b,1", "u,b,2", "u,a,1.0", "u,c,1"]
    source = csv(tmp_path, "user_id,item_id,timestamp\n" + "\n".join(rows) + "\n")
    atomic, report = converted(source)
    assert atomic.splitlines()[1:] == ["u\tb\t1", "u\ta\t1", "v\tb\t1", "u\tb\t2", "u\tc\t1"]
    assert report.left_out["repeated"] == 2
    kept, report = converted(source, "csv --repeated=keep", overwrite=True)
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
    source = csv(tmp_path, "user_id,item_id,timestamp\r\nü,😀,5\r\n".encode(encoding))
    atomic, report = converted(source)
    assert atomic == HEAD + "ü\t😀\t5\n"
    assert report.notes["bom"] == 1
    assert "noted 1 file with Windows line ends, read like any other" in report.lines()
    named = csv(tmp_path, "user_id,item_id,timestamp\nü,i,5\n".encode("utf-16-le"))
    assert converted(named, "csv --encoding=utf-16-le", overwrite=True)[0] == HEAD + "ü\ti\t5\n"


REFUSED = [
    ("csv", b"", "raw.csv is empty"),
    ("csv", b"user_id,item_id,timestamp\n", "no row of raw.csv can be used: it holds no rows"),
    ("csv", b"user_id,item_id,timestamp\nu,,1\n", "can be used: left out 1 rows without an item"),
    ("csv", b"user_id,item_id,timestamp\nu,i,1\nu,i,2,3\n", "Expected 3 fields in line 3, saw 4"),
    ("csv", b"user_id,item_id,timestamp\nu,i,1,2\n", "no table separated by ','"),
    ("csv", b'user_id,item_id,timestamp\nu,"i,1\n', "EOF inside string"),
    ("csv", b"user_id,item_id,timestamp\nu,\xff,1\n", "not text in the encoding utf-8.*: name its encoding"),
    (
        "csv",
        b"user_id,item_id,timestamp\nu,\0,1\n",
        "raw.csv has a NUL character in line 2: a packed file must be named .gz",
    ),
    ("csv", b"user,item_id,timestamp\nu,i,1\n", "no column 'user_id' for the user; it has user, item_id, timestamp"),
    (
        "csv --no_header --user=0 --item=1 --time=5",
        b"u,i,1\n",
        "no column '5' for the time; it has 0, 1, 2. Use --time",
    ),
    ("csv --no_header", b"u,i,1\n", "--user is 'user_id', with --no_header it must be the number"),
    ("csv --encoding=utf-9", b"u,i,1\n", "encoding is 'utf-9', it must be a text encoding"),
    ("csv --encoding=idna", b"u,i,1\n", "encoding is 'idna'"),
    ("csv --separator=abc", b"u,i,1\n", "--separator is 'abc'"),
    ("csv --separator=ü", b"u,i,1\n", "--separator is 'ü'"),
    ("csv --separator='\"'", b"u,i,1\n", "--separator is '\"'"),
    ("csv", b"# made by x\nuser_id,item_id,timestamp\nu,i,1\n", "no column 'user_id' for the user; it has # made by x"),
    ("csv", gzip.compress(b"user_id"), r"raw\.csv is not text: a packed file must be named \.gz"),
    ("csv", bz2.compress(b"user_id"), r"raw\.csv is not text: .* or be unpacked first"),
    ("csv", b"PAR1\x15\0", r"raw\.csv is not text: .* \.parquet"),
    ("csv", b"name".ljust(257, b"\0") + b"ustar", r"raw\.csv is not text"),
    ("ml-25m --user=u", b"", "--user is an option of the format csv"),
    ("ml-2m", b"", "unknown format 'ml-2m'.*Did you mean 'ml-25m'"),
]


@pytest.mark.parametrize(("conversion_text", "text", "message"), REFUSED)
def test_what_cannot_be_read_is_one_line_and_leaves_nothing(
    tmp_path: Path, conversion_text: str, text: bytes, message: str
) -> None:
    source = csv(tmp_path, text)
    with pytest.raises(UsageError, match=message):
        convert(source, tmp_path / "deep" / "set", parse_conversion(conversion_text))
    assert [path.name for path in tmp_path.iterdir()] == ["raw.csv"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", r"line 2 of raw.jsonl is no JSON object, it is '\[1\]': write one object a line"),
        ("{", "line 2 of raw.jsonl is no JSON"),
        ('{"user_id": ' + "[" * 10**5, "line 2 of raw.jsonl is no JSON"),
        ('{"user_id": [1], "item_id": 2, "timestamp": 3}', r"raw.jsonl has \['1'\] as its 'user_id'"),
        ('{"user_id": 1, "item_id": {}, "timestamp": 3}', r"raw.jsonl has {} as its 'item_id'"),
    ],
)
def test_a_broken_json_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    source = csv(tmp_path, '{"user_id": 1, "item_id": 2, "timestamp": 3}\n' + line, "raw.jsonl")
    with pytest.raises(UsageError, match=message):
        convert(source, tmp_path / "set", parse_conversion("csv"))


def test_numbers_and_words_of_json_stay_as_they_are_written(tmp_path: Path) -> None:
    lines = ['{"user_id": 1.10, "item_id": true, "timestamp": 1e3}', '{"user_id": %s, "item_id": "", "timestamp": 3}']
    lines += ['{"user_id": NaN, "item_id": 1, "timestamp": 3}', '{"user_id": 1.1, "item_id": 1}']
    source = csv(tmp_path, "\n".join(lines) % ("9" * 5000), "raw.json")
    atomic, report = converted(source)
    assert atomic == HEAD + "1.10\ttrue\t1000\n"
    assert report.left_out == {"no user": 1, "no item": 1, "no time": 1, "odd time": 0, "repeated": 0}


def test_of_two_columns_of_one_name_the_first_counts(tmp_path: Path) -> None:
    assert converted(csv(tmp_path, "user_id,user_id,item_id,timestamp\na,b,i,1\n"))[0] == HEAD + "a\ti\t1\n"
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table([["a"], ["b"], ["i"], [1]], names=["user_id", "user_id", "item_id", "timestamp"])
    importlib.import_module("pyarrow.parquet").write_table(table, tmp_path / "raw.parquet")
    assert converted(tmp_path / "raw.parquet", overwrite=True)[0] == HEAD + "a\ti\t1\n"


def test_a_gz_inside_a_zip_is_unpacked_too(tmp_path: Path) -> None:
    packed = tmp_path / "set.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("deep/raw.csv.gz", gzip.compress(b"user_id,item_id,timestamp\nu,i,1\n"))
    atomic, report = converted(packed)
    assert (atomic, report.name) == (HEAD + "u\ti\t1\n", "set.zip (raw.csv)")


def test_damaged_and_wrong_archives_are_errors(tmp_path: Path) -> None:
    reading = parse_conversion("ml-25m")
    whole = zipped(tmp_path, "ml-25m.zip", {"ratings.csv": ML_25M * 100})
    for name, content, message in (
        ("half.zip", whole.read_bytes()[:200], "cannot unpack '.*half.zip': File is not a zip file"),
        ("half.csv.gz", gzip.compress(np.random.default_rng(0).bytes(3000))[:2000], "half.csv is damaged"),
        ("not.gz", b"user", "not is damaged"),
    ):
        with pytest.raises(UsageError, match=message):
            convert(csv(tmp_path, content, name), tmp_path / "set", reading)
    with pytest.raises(UsageError, match="holds no ratings.dat, only ratings.csv"):
        convert(whole, tmp_path / "set", parse_conversion("ml-1m"))
    with pytest.raises(UsageError, match="cannot read '.*gone.zip': No such file"):
        convert(tmp_path / "gone.zip", tmp_path / "set", reading)
    with pytest.raises(UsageError, match=r"holds 2 files of a matching name \(a.csv, b.csv\)"):
        convert(zipped(tmp_path, "two.zip", {"a.csv": "", "b.csv": ""}), tmp_path / "set", parse_conversion("csv"))
    assert not (tmp_path / "set").exists()


def test_an_atomic_file_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    source = csv(tmp_path, "user_id,item_id,timestamp\nu,i,1\n")
    old, _ = converted(source)
    with pytest.raises(UsageError, match=r"set\.inter' exists: add --overwrite"):
        converted(source)
    csv(tmp_path, "user_id,item_id,timestamp\nu,,1\n")
    with pytest.raises(UsageError, match="no row"):
        converted(source, overwrite=True)
    assert (tmp_path / "set" / "set.inter").read_text() == old


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def terminate(*_: object) -> None:
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize(("stop", "error"), [(interrupt, KeyboardInterrupt), (terminate, SystemExit)])
def test_an_interruption_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: Any, error: type[BaseException]
) -> None:
    monkeypatch.setattr(conversion.Conversion, "add", stop)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # other libraries leave theirs there
    try:
        with pytest.raises(error):
            convert(csv(tmp_path, ML_25M), tmp_path / "set", parse_conversion("ml-25m"))
        assert not (tmp_path / "set").exists()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("/", "the output is '/', whose name names no data set"),
        ("x" * 300, r"'x+/x+\.inter' cannot be written \(File name too long\)"),
    ],
)
def test_an_output_that_is_invalid_is_an_error(isolated_run_dir: Path, output: str, message: str) -> None:
    source = csv(isolated_run_dir, ML_25M)
    with pytest.raises(UsageError, match=message):
        convert(source, Path(output), parse_conversion("ml-25m"))


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    source = csv(tmp_path, ML_25M)
    with pytest.raises(UsageError, match=r"set\.inter' cannot be written \(Not a directory\)"):
        convert(source, source / "set", parse_conversion("ml-25m"))


def test_the_bar_counts_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", shown)
    converted(csv(tmp_path, gzip.compress(ML_25M.encode()), "ratings.csv.gz"), "ml-25m", show_progress=True)
    bar = shown.getvalue()
    assert "100%" in bar
    converted(tmp_path / "ratings.csv.gz", "ml-25m", overwrite=True)
    assert shown.getvalue() == bar
