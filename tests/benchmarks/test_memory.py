import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest import CaptureFixture, MonkeyPatch

from benchmarks import main, memory
from benchmarks.measure import Record
from benchmarks.memory import measure_length, tables
from benchmarks.rows import NAIVE, SDPA, Problem

PER_SEQUENCE = {"LISA-128": 1.0, SDPA: 3.0, NAIVE: 10.0}
PROBLEM = Problem("core", 16, length=64)


def fits(most: float) -> Callable[..., Record]:
    """A machine on which each row takes so many MB a sequence and one MB more, up to `most`."""

    def probe(row: str, problem: Problem, seconds: float, memory_mb: float) -> Record:
        taken = 1 + PER_SEQUENCE[row] * problem.n
        fitting = {"status": "ok", "seconds": 0.1, "extra_mb": taken - 0.5, "held_mb": 0.5}
        return fitting if taken <= most else {"status": "out of memory"}

    return probe


@pytest.mark.parametrize(
    ("most", "budget", "n"),
    [
        (1000.0, 100.0, 8),  # 81 MB of naive attention fit, 161 would not
        (50.0, 100.0, 4),  # the machine is smaller than the budget: halved once
        (1000.0, 11.5, 1),
    ],
)
def test_the_batch_is_the_largest_for_all_rows(monkeypatch: MonkeyPatch, most: float, budget: float, n: int) -> None:
    monkeypatch.setattr(memory, "probe", fits(most))
    records = measure_length(list(PER_SEQUENCE), PROBLEM, seconds=10.0, budget_mb=budget)
    expected = {row: 1 + size * n for row, size in PER_SEQUENCE.items()}
    assert {record["row"]: record["peak_mb"] for record in records} == expected
    assert {record["n"] for record in records} == {n}


def test_a_row_that_fits_no_sequence_is_left_out_of_the_search(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "probe", fits(9.0))
    records = measure_length(list(PER_SEQUENCE), PROBLEM, seconds=10.0, budget_mb=9.0)
    assert [(record["row"], record["status"], record["n"]) for record in records] == [
        ("LISA-128", "ok", 2), (SDPA, "ok", 2), (NAIVE, "out of memory", 2),
    ]  # fmt: skip
    against_naive, against_sdpa = (table.rows for table in tables(records)[1:])
    assert list(map(list, against_naive)) == [["LISA-128", "-"], [SDPA, "-"]]
    assert list(map(list, against_sdpa)) == [["LISA-128", "2.33x"], [NAIVE, "out of memory"]]


def test_the_command_measures_and_writes(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    arguments = ["memory", "--lengths", "256", "--width", "16", "--budget_mb", "20", "--items", "30"]
    arguments += ["--threads", "1", "--rows", "LISA-128", SDPA, NAIVE, "--output", f"{tmp_path}/memory"]
    assert main(arguments) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["memory-length.png", "memory.json", "memory.md"]
    rows = json.loads((tmp_path / "memory.json").read_text(encoding="utf-8"))["rows"]
    peak = {row["row"]: row["peak_mb"] for row in rows if row["status"] == "ok"}
    assert set(peak) == {"LISA-128", SDPA, NAIVE}
    assert max(peak.values()) <= 20
    assert peak[NAIVE] > 2 * peak[SDPA]
    assert f"| {SDPA}" in capsys.readouterr().out.split(f"How many times as much memory is taken by {NAIVE}")[1]
