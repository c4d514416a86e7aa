"""The commands `convert` and `download`: arguments in, counts out, one line for a mistake."""

from pathlib import Path

import pytest

from recbole_lisa.cli.main import main
from tests.helpers import refusal, run_python

RAW = "who,what,when\nu,i,2020-01-01\nu,i,2020-01-01\nv,,3\n"
COLUMNS = ["--user=who", "--item", "what", "--time=when"]
READ = ["convert", "csv", "raw.csv", "--output=d"]


def test_the_command_writes_and_prints_the_counts_and_needs_neither_torch_nor_recbole(isolated_run_dir: Path) -> None:
    Path("raw.csv").write_text(RAW, encoding="utf-8")
    code = (
        f"import sys; from recbole_lisa.cli.main import main; status = main({[*READ, *COLUMNS]!r})\n"
        "print([name for name in ('torch', 'recbole', 'ray') if name in sys.modules], status)"
    )
    assert run_python(code)[0].splitlines() == [
        "read raw.csv: 3 rows, 2 users, 1 items",
        "rows left out without an item: 1",
        "rows left out equal to an earlier row in every column: 1",
        "noted: times as dates, written as seconds since 1970 (UTC where no zone is named): 2",
        "wrote d/d.inter: 1 rows, 1 users, 1 items",
        "[] 0",
    ]
    assert Path("d/d.inter").read_text().splitlines()[1:] == ["u\ti\t1577836800"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert"], "the following arguments are required: format, input, --output"),
        ([*READ, "--time_unit=h"], "argument --time_unit: invalid choice: 'h'"),
        (READ, "raw.csv has no column 'user_id' for the user; it has who, what, when."),
        ([*READ, "--user=who", "--item=who"], "--user and --item are both 'who': give each its own"),
        (["convert", "csv", "gone.csv", "--output=d"], "cannot read 'gone.csv': No such file or directory"),
        (["download", "ml-2m"], "unknown data set 'ml-2m': known are alibaba, "),
        (["download", "alibaba"], "'alibaba' has no address to download from: get UserBehavior.csv.zip from https://"),
        (["download"], "the following arguments are required: dataset"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    isolated_run_dir: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    Path("raw.csv").write_text(RAW, encoding="utf-8")
    assert refusal(capsys, main(arguments)).startswith(f"error: {message}")
    assert list(Path().iterdir()) == [Path("raw.csv")]
