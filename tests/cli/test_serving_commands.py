"""`export` and `recommend` after a real, tiny run."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest import CaptureFixture

from recbole_lisa.cli.main import main
from recbole_lisa.serving import Recommender
from tests.helpers import refusal
from tests.tiny import N_ITEMS, N_USERS, train_tiny


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(train_tiny(tmp_path_factory.mktemp("run"))["checkpoint"])


@pytest.fixture(scope="module")
def export(checkpoint: Path) -> Path:
    folder = checkpoint.parent.parent / "export"
    assert main(["export", f"--checkpoint={checkpoint}", f"--output={folder}"]) == 0
    return folder


def rows_of(file: Path) -> list[dict[str, str]]:
    with open(file, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_export_prints_ratio_and_bytes(checkpoint: Path, tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    assert main(["export", f"--checkpoint={checkpoint}", f"--output={tmp_path / 'x'}"]) == 0
    printed, size = capsys.readouterr().out, (tmp_path / "x" / "items.npz").stat().st_size
    assert f"LISABase of tiny, {N_ITEMS} items" in printed
    ratio = 4 * N_ITEMS * 16 / (N_ITEMS * 2 * 3 / 8 + 4 * 2 * 8 * 16)  # 4 V D against V B log2(W) / 8 + 4 B W D
    assert f"compression ratio {ratio:.2f}, {size:,} bytes on disk" in printed


@pytest.fixture
def recommend(export: Path, tmp_path: Path) -> Callable[..., int]:
    """The command for users of a table, from the export."""

    def call(table: str, *arguments: str) -> int:
        (tmp_path / "in.csv").write_text(table)
        files = [f"--input={tmp_path / 'in.csv'}", f"--output={tmp_path / 'top.csv'}"]
        return main(["recommend", f"--export={export}", *files, *arguments])

    return call


def test_recommend_from_the_export_for_new_users(export: Path, recommend: Callable[..., int], tmp_path: Path) -> None:
    assert recommend("user_id,item_id,timestamp\nnew,i3,2\nnew,i1,1\nother,i7,1\n", "--k=4") == 0
    rows = rows_of(tmp_path / "top.csv")
    expected = Recommender.load(export).recommend([["i1", "i3"], ["i7"]], 4)
    assert [row["item_id"] for row in rows] == [item for answer in expected for item in answer.items]
    ranks = [(user, str(rank)) for user in ("new", "other") for rank in range(1, 5)]
    assert [(row["user_id"], row["rank"]) for row in rows] == ranks


def test_recommend_from_a_checkpoint_for_all(checkpoint: Path, tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    assert main(["recommend", f"--checkpoint={checkpoint}", f"--output={tmp_path / 'top.csv'}", "--k=3"]) == 0
    rows = rows_of(tmp_path / "top.csv")
    assert len(rows) == 3 * N_USERS
    assert {row["user_id"] for row in rows} == {f"u{n}" for n in range(N_USERS)}
    assert f"{3 * N_USERS} rows for {N_USERS} users; 0 users without recommendations" in capsys.readouterr().out


def test_options_choose_the_items(recommend: Callable[..., int], tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    (tmp_path / "only.txt").write_text("i3\ni5\n")
    table = "who,what\na,i3\na,gone\nb,gone\n"
    options = ["--user=who", "--item=what", f"--candidates={tmp_path / 'only.txt'}"]
    assert recommend(table, *options) == 2
    assert "error: user 'a': 1 unknown item: 'gone'" in capsys.readouterr().err
    assert recommend(table, *options, "--on_unknown=warn") == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert warnings == [f"warning: user '{user}': 1 unknown item: 'gone'; left out" for user in "ab"]
    options.append("--on_unknown=skip")
    assert recommend(table, *options, "--overwrite") == 0
    assert [(row["user_id"], row["item_id"]) for row in rows_of(tmp_path / "top.csv")] == [("a", "i5")]
    assert "1 rows for 1 users; 1 users without recommendations" in capsys.readouterr().out
    assert recommend(table, *options, "--keep_seen") == 2
    assert "top.csv' exists: add --overwrite to replace it" in capsys.readouterr().err
    assert recommend(table, *options, "--keep_seen", "--overwrite") == 0
    assert {row["item_id"] for row in rows_of(tmp_path / "top.csv")} == {"i3", "i5"}


def test_unknown_items_are_named(recommend: Callable[..., int], tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    (tmp_path / "only.txt").write_text("i5\ngone\n\n")
    rows = "".join(f"user{n},i3\n" for n in range(300))
    assert recommend(f"user_id,item_id\n{rows}last,gone\n") == 2
    assert "error: user 'last': 1 unknown item: 'gone'" in capsys.readouterr().err
    candidates = f"--candidates={tmp_path / 'only.txt'}"
    assert recommend("user_id,item_id\na,i3\n", candidates) == 2
    assert f"error: '{tmp_path / 'only.txt'}': 1 unknown item: 'gone'" in capsys.readouterr().err
    assert recommend("user_id,item_id\na,i3\n", candidates, "--on_unknown=skip") == 0
    assert [row["item_id"] for row in rows_of(tmp_path / "top.csv")] == ["i5"]


def test_titles_are_kept_and_become_a_column(checkpoint: Path, tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    (tmp_path / "in.csv").write_text("user_id,item_id\na,i3\n")
    (tmp_path / "titles.tsv").write_text("title\titem_id\nUp, again\ti5\n\ti6\nelsewhere\tgone\n")
    command = ["export", f"--checkpoint={checkpoint}", f"--output={tmp_path / 'export'}"]
    (tmp_path / "empty.csv").write_text("item_id,title\n")
    for name, message in (
        ("in.csv", "in.csv has no column 'title' for the title; it has user_id, item_id.\n"),
        ("in.txt", "in.txt' must end in .csv or .tsv"),
        ("empty.csv", "empty.csv' has no row with both item_id and title"),
    ):
        assert message in refusal(capsys, main([*command, f"--titles={tmp_path / name}"]))
    assert main([*command, f"--titles={tmp_path / 'titles.tsv'}"]) == 0
    assert f"titles: 1 of {N_ITEMS} items, 1 of unknown items left out" in capsys.readouterr().out
    files = [f"--input={tmp_path / 'in.csv'}", f"--output={tmp_path / 'top.csv'}"]
    assert main(["recommend", f"--export={tmp_path / 'export'}", *files, "--k=1000"]) == 0
    titles = {row["item_id"]: row["title"] for row in rows_of(tmp_path / "top.csv") if row["title"]}
    assert titles == {"i5": "Up, again"}


def test_an_output_is_checked_before_the_checkpoint_is_read(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    for folder, message in (("full", "part of an export"), ("full/a", "is a file"), ("full/a/b", "cannot be written")):
        assert message in refusal(capsys, main(["export", "--checkpoint=gone.pth", f"--output={tmp_path / folder}"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of --checkpoint FILE and --export DIR"),
        (["--export=x", "--checkpoint=y"], "give one of --checkpoint FILE and --export DIR"),
        (["--export=x"], "--export holds no users: give their histories with --input, or use --checkpoint"),
        (["--export=x", "--input=y.csv"], "'x' is not an export (manifest.json: No such file or directory): give a"),
        (["--export=x", "--input=y.csv", "--data_path=z"], "--data_path is the folder of a checkpoint's data set"),
        *(
            (
                ["--checkpoint=y", f"--{name}=skip"],
                f"--{name} is about the rows of --input: give one, or leave --{name}",
            )
            for name in ("user", "item", "time", "on_unknown")
        ),
        (["--checkpoint=gone.pth"], "there is no checkpoint 'gone.pth'"),
        (["--export=x", "--input=y.csv", "--candidates=gone.txt"], "cannot read 'gone.txt': No such file"),
        (["--export=x", "--input=top.csv", "--output=./top.csv", "--overwrite"], "top.csv' is the input, too: name"),
        (["--export=x", "--input="], "--input: the path is empty"),
        (["--export=x", "--input=y.csv", "--k=0"], "--k: must be a whole number from 1 to 2147483647, got 0"),
        (["--export=x", "--input=y.csv", "--output=setup.cfg/top.csv"], "'setup.cfg/top.csv' cannot be written"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line(arguments: list[str], message: str, tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    output = [] if any(one.startswith("--output") for one in arguments) else [f"--output={tmp_path / 'top.csv'}"]
    assert message in refusal(capsys, main(["recommend", *output, *arguments]))
    assert list(tmp_path.iterdir()) == []
