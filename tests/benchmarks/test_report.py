import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.plots import Figure, Panel
from benchmarks.report import NO_PLOTS, Output, Table, commit, heading, megabytes, milliseconds, ratio
from recbole_lisa.errors import UsageError

TABLE = Table("Title", ("", "L = 1"), [["row", "2 ms"], ["longer row", "-"]])
FIGURE = Figure("time", [Panel("p", "x", "y", {"LISA": [(1, 2), (10, 3)], "other": []}) for _ in range(3)])


def test_a_table_is_aligned_markdown() -> None:
    assert TABLE.markdown().splitlines() == [
        "Title",
        "",
        "|            | L = 1 |",
        "|------------|-------|",
        "| row        | 2 ms  |",
        "| longer row | -     |",
    ]


@pytest.mark.parametrize(
    ("option", "prefix"), [("new/", "new/name"), ("there", "there/name"), ("new/speed", "new/speed"), ("x", "x")]
)
def test_output_writes_json_markdown_and_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, prefix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    files = Output(option, "name").write("head", {"rows": [1]}, [TABLE, TABLE], [FIGURE])
    assert [str(file) for file in files] == [f"{prefix}.json", f"{prefix}.md", f"{prefix}-time.png"]
    assert json.loads(files[0].read_text(encoding="utf-8")) == {"header": "head", "rows": [1]}
    text = files[1].read_text(encoding="utf-8")
    assert text.startswith("head\n\nTitle\n\n|")
    assert text.count("| longer row |") == 2
    assert f"![time]({files[2].name})" in text
    assert files[2].read_bytes().startswith(b"\x89PNG")


def test_a_json_name_is_the_only_file(tmp_path: Path) -> None:
    (file,) = Output(str(tmp_path / "x.json"), "name").write("head", {}, [TABLE], [FIGURE])
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("ending", [".md", ".json"])
def test_an_existing_file_needs_overwrite(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"speed{ending}").write_text("old")
    with pytest.raises(UsageError, match=rf"speed\{ending}' exists: add --overwrite"):
        Output(str(tmp_path / "speed"), "name")
    Output(str(tmp_path / "speed"), "name", overwrite=True)


def test_without_output_nothing_is_written() -> None:
    assert Output(None, "name").write("head", {}, [TABLE]) == []


def test_an_output_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"'.*file/x\.json' cannot be written \(Not a directory\)"):
        Output(str(tmp_path / "file" / "x"), "name")


def test_without_matplotlib_the_rest_is_written_and_the_extra_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec

    def without(name: str, *rest: Any) -> Any:
        return None if name == "matplotlib" else find(name, *rest)

    monkeypatch.setattr("importlib.util.find_spec", without)
    files = Output(f"{tmp_path}/", "name").write("head", {}, [TABLE], [FIGURE])
    assert [file.name for file in files] == ["name.json", "name.md"]
    assert "![" not in files[1].read_text(encoding="utf-8")
    assert NO_PLOTS in capsys.readouterr().out
    assert "recbole-lisa[bench]" in NO_PLOTS


def test_the_heading_says_device_threads_versions_commit_and_command() -> None:
    line = heading("python -m benchmarks x", torch.device("cpu"))
    assert f"{torch.get_num_threads()} threads, torch {torch.__version__}" in line
    assert f"commit {commit()}" in line
    assert line.endswith("command: python -m benchmarks x")


def test_numbers_keep_three_digits() -> None:
    assert [milliseconds(x) for x in (1.234, 0.01234, 0.0000123456)] == ["1,234", "12.3", "0.0123"]
    assert [megabytes(x) for x in (1234.5, 9.87, 0.0123)] == ["1,234", "9.9", "0.012"]
    assert [ratio(x) for x in (1234.5, 57.04, 0.5)] == ["1,234x", "57x", "0.5x"]
