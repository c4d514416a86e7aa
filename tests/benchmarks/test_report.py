import argparse
import json
from pathlib import Path

import pytest
import torch
from pytest import CaptureFixture, MonkeyPatch

from benchmarks.report import Panel, Report, Table, by_length, compared, heading, megabytes, milliseconds, ratio
from recbole_lisa.errors import UsageError

TABLE = Table("Title", ("", "L = 1"), [["row", "2 ms"], ["longer row", "-"]])
PANEL = Panel("p", "x", "y", {"LISA": [(1, 2), (10, 3)], "other": [(1, 5, 4, 7)]}, levels={"other": 4})
CPU = torch.device("cpu")


def report(output: Path | None, *, overwrite: bool = False) -> Report:
    path = None if output is None else str(output)
    return Report(argparse.Namespace(command="the command", output=path, overwrite=overwrite), CPU)


@pytest.mark.parametrize("log", [False, True])
def test_a_report_writes_json_markdown_and_plots(tmp_path: Path, log: bool) -> None:
    report(tmp_path / "new" / "speed").finish({"rows": [1]}, [TABLE, TABLE], {"time": [PANEL._replace(log=log)] * 3})
    files = {file.name: file for file in (tmp_path / "new").iterdir()}
    assert sorted(files) == ["speed-time.png", "speed.json", "speed.md"]
    document = json.loads(files["speed.json"].read_text(encoding="utf-8"))
    header = heading("the command", CPU)
    assert document == {"header": header, "rows": [1]}
    assert f"{torch.get_num_threads()} threads, torch {torch.__version__}, recbole-lisa " in header
    assert ", commit " in header and header.endswith("command: the command")
    text = files["speed.md"].read_text(encoding="utf-8")
    assert text.startswith(f"# speed\n\n{header}\n\nTitle\n\n|")
    assert text.count("| longer row |") == 2
    assert len({len(line) for line in text.splitlines() if line.startswith("|")}) == 1, "the columns are aligned"
    assert "![time](speed-time.png)" in text
    assert files["speed-time.png"].read_bytes().startswith(b"\x89PNG")


def test_without_output_nothing_is_written(isolated_run_dir: Path, capsys: CaptureFixture[str]) -> None:
    report(None).finish({}, [TABLE], {"time": [PANEL]})
    assert list(isolated_run_dir.iterdir()) == []
    assert "| longer row |" in capsys.readouterr().out


def test_an_output_that_exists_is_refused_before_the_work(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    for name in ("speed.md", "other.json"):
        (tmp_path / name).write_text("old")
        with pytest.raises(UsageError, match=f"{name}' exists: pass overwrite=True"):
            report((tmp_path / name).with_suffix(""))
        report((tmp_path / name).with_suffix(""), overwrite=True)
    monkeypatch.setattr("benchmarks.report.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"\[bench\]"):
        report(tmp_path / "x")
    report(None)


def test_tables_over_lengths_say_why_a_value_is_missing() -> None:
    records = [
        {"row": "a", "length": 9, "status": "ok", "median": 2.0},
        {"row": "b", "length": 9, "status": "ok", "median": 8.0},
        {"row": "a", "length": 1000, "status": "out of memory"},
        {"row": "b", "length": 1000, "status": "ok", "median": 3.0},
    ]
    table = by_length("t", records, lambda record: str(record["median"]))
    assert list(table.columns) == ["", "L = 9", "L = 1,000"]
    assert list(table.rows) == [["a", "2.0", "out of memory"], ["b", "8.0", "3.0"]]
    assert list(compared("as fast as", "a", records).rows) == [["b", "0.25x", "-"]]


def test_numbers_keep_three_digits() -> None:
    assert [milliseconds(x) for x in (1.234, 0.01234, 0.0000123456)] == ["1,234", "12.3", "0.0123"]
    assert [megabytes(x) for x in (1234.5, 9.87, 0.0123)] == ["1,234", "9.9", "0.012"]
    assert [ratio(x) for x in (1234.5, 57.04, 0.5)] == ["1,234x", "57x", "0.5x"]
