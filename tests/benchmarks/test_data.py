import json
from pathlib import Path

import pytest

from benchmarks import data, main
from benchmarks.measure import Peak, Record


def test_the_command_measures_both_sides_and_writes(isolated_run_dir: Path) -> None:
    arguments = ["data", "--lengths", "5", "--repeats", "1", "--output", "out/data"]
    assert main(arguments) == 0
    assert sorted(file.name for file in Path("out").iterdir()) == ["data-length.png", "data.json", "data.md"]
    rows = json.loads(Path("out/data.json").read_text(encoding="utf-8"))["rows"]
    assert [(row["row"], row["length"], row["status"]) for row in rows] == [(side, 5, "ok") for side in data.SIDES]
    assert all(0 < row["low"] <= row["median"] <= row["high"] for row in rows)
    assert "| RecBole's SequentialDataset |" in Path("out/data.md").read_text(encoding="utf-8")


def test_sides_take_turns_and_one_that_does_not_fit_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    windows, recbole = data.SIDES
    calls = []

    def process(function: object, side: str, dataset: str, data_path: object, length: int, *, seconds: float) -> Peak:
        calls.append((side, length))
        if side == recbole and length > 5:
            raise MemoryError("full")
        return Peak(float(len(calls)), 10.0 * len(calls))

    monkeypatch.setattr(data, "in_fresh_process", process)
    records: list[Record] = []
    for length in (5, 9, 12):
        records += data.measure(("x", None), length, records, repeats=2, seconds=1.0)
    assert calls == [
        (windows, 5), (recbole, 5), (windows, 5), (recbole, 5),
        (windows, 9), (recbole, 9), (windows, 9),
        (windows, 12), (windows, 12),
    ]  # fmt: skip
    assert [record["status"] for record in records] == ["ok", "ok", "ok", "out of memory", "ok", "out of memory"]
    assert (records[0]["median"], records[0]["low"], records[0]["high"]) == (2.0, 1.0, 3.0)
    assert records[1]["extra_mb"] == 30.0
