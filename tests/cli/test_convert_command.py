"""The command `recbole-lisa convert`: arguments in, counts out, one line for a mistake."""

import subprocess
import sys
from pathlib import Path

import pytest

from recbole_lisa.cli.main import main


@pytest.fixture
def raw(isolated_run_dir: Path) -> Path:
    path = isolated_run_dir / "raw.csv"
    path.write_text("who,what,when\nu,i,2020-01-01\nu,i,2020-01-01\nv,,3\n", encoding="utf-8")
    return path


def test_the_command_writes_the_file_and_prints_the_counts(raw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["convert", "csv", "raw.csv", "--output", "data/mine", "--user=who", "--item", "what", "--time=when"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines() == [
        "read raw.csv: 3 rows, 2 users, 1 items",
        "left out 1 rows without an item",
        "left out 1 rows equal to an earlier row in every column",
        "noted 2 times as dates, written as seconds since 1970 (UTC where no zone is named)",
        "wrote data/mine/mine.inter: 1 rows, 1 users, 1 items",
    ]
    assert Path("data/mine/mine.inter").read_text().splitlines()[1:] == ["u\ti\t1577836800"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: format, input, --output"),
        (["csv", "raw.csv"], "the following arguments are required: --output"),
        (["csv", "raw.csv", "--output=d", "--time_unit=h"], "argument --time_unit: invalid choice: 'h'"),
        (["csv", "raw.csv", "--output=d"], "raw.csv has no column 'user_id' for the user; it has who, what, when."),
        (
            ["csv", "raw.csv", "--output=d", "--user=who", "--item=who"],
            "--user and --item are both 'who': give each its own",
        ),
        (
            ["csv", "raw.csv", "--output=d", "--rating=timestamp"],
            "--time and --rating are both 'timestamp': give each",
        ),
        (["csv", "gone.csv", "--output=d"], "cannot read 'gone.csv': No such file or directory"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    raw: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["convert", *arguments]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith(f"error: {message}") and errors.count("\n") == 1
    assert list(raw.parent.iterdir()) == [raw]


def test_the_command_needs_neither_torch_nor_recbole(raw: Path) -> None:
    arguments = ["convert", "csv", "raw.csv", "--output=d", "--user=who", "--item=what", "--time=when"]
    code = (
        f"import sys; from recbole_lisa.cli.main import main; status = main({arguments!r})\n"
        "print([name for name in ('torch', 'recbole', 'ray') if name in sys.modules], status)"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": root})
    assert done.stdout.splitlines()[-1:] == ["[] 0"], done.stderr
