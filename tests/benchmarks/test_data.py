import json
from pathlib import Path

import pytest

from benchmarks import data, main
from benchmarks.data import generate
from benchmarks.machine import Limits
from benchmarks.measure import Peak


def test_a_generated_set_has_the_size_and_the_lengths_asked_for(tmp_path: Path) -> None:
    source = generate(tmp_path, 5000)
    lines = (tmp_path / "generated" / "generated.inter").read_text(encoding="utf-8").splitlines()
    assert source.data_path == str(tmp_path)
    assert lines[0] == "user_id:token\titem_id:token\ttimestamp:float"
    assert 2500 < len(lines) < 10000
    columns = list(zip(*(line.split("\t") for line in lines[1:]), strict=True))
    assert len(set(columns[0])) == 5000 // 165
    assert [float(x) for x in columns[2]] == list(range(len(lines) - 1))


def test_the_command_measures_both_sides_and_writes(isolated_run_dir: Path) -> None:
    words = ["data", "--generated", "2000", "--lengths", "5", "--repeats", "1", "--output", "out/"]
    assert main(words) == 0
    files = sorted(file.name for file in (isolated_run_dir / "out").iterdir())
    assert files == ["data-length.png", "data.json", "data.md"]
    rows = json.loads((isolated_run_dir / "out" / "data.json").read_text(encoding="utf-8"))["rows"]
    assert [(row["side"], row["length"], row["status"]) for row in rows] == [("windows", 5, "ok"), ("recbole", 5, "ok")]
    assert all(0 < row["low"] <= row["median"] <= row["high"] for row in rows)
    assert "| RecBole's SequentialDataset |" in (isolated_run_dir / "out" / "data.md").read_text(encoding="utf-8")


def test_sides_take_turns_and_one_that_does_not_fit_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def process(function: object, side: str, source: object, length: int, memory: float, *, seconds: float) -> Peak:
        asked.append((side, length))
        if side == "recbole" and length > 5:
            raise MemoryError("full")
        return Peak(float(len(asked)), 10.0 * len(asked))

    monkeypatch.setattr(data, "in_fresh_process", process)
    limits = Limits(seconds=1.0, memory_mb=1.0, repeats=2, threads=1)
    records: list[dict[str, object]] = []
    for length in (5, 9, 12):
        records += data.measure(("windows", "recbole"), data.Source("x", None), length, limits, records)
    assert asked == [
        ("windows", 5), ("recbole", 5), ("windows", 5), ("recbole", 5),
        ("windows", 9), ("recbole", 9), ("windows", 9),
        ("windows", 12), ("windows", 12),
    ]  # fmt: skip
    assert [record["status"] for record in records] == ["ok", "ok", "ok", "out of memory", "ok", "out of memory"]
    assert (records[0]["median"], records[0]["low"], records[0]["high"]) == (2.0, 1.0, 3.0)
    assert records[1]["extra_mb"] == 30.0
    memory = data.tables(records)[1]
    assert list(memory.rows[1]) == ["RecBole's SequentialDataset", "30", "out of memory", "out of memory"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--dataset nothing", "there is no file dataset/nothing/nothing.inter"),
        ("--lengths 0", "must be a whole number from 1 to 2147483647, got 0"),
        ("--sides mine", "invalid choice: 'mine'"),
    ],
)
def test_mistakes_end_with_one_line_and_status_2(
    isolated_run_dir: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    assert main(["data", *words.split()]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line
