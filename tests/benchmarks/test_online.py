import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import main, online, sessions
from benchmarks.errors import GateError
from benchmarks.machine import Limits
from benchmarks.online import measure_steps, tables
from benchmarks.sessions import CACHED, ROWS, Session, Step, check_steps

SESSION = Session(users=2, length=19, width=16, decay=0.1, device=torch.device("cpu"))
LIMITS = Limits(seconds=5.0, memory_mb=500.0, repeats=1, threads=1)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("length", [1, 41])
def test_every_step_equals_attention_over_the_whole_history(length: int, decay: float) -> None:
    with torch.no_grad():
        check_steps(Session(3, length, 16, decay, torch.device("cpu")))


@pytest.mark.parametrize("name", ROWS)
def test_the_gate_catches_a_wrong_step(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def wrong(session: Session) -> Step:
        step = ROWS[name](session)
        return Step(lambda: step.call() * 1.01, step.kept, step.from_scratch)

    monkeypatch.setattr(sessions, "ROWS", {name: wrong})
    with torch.no_grad(), pytest.raises(GateError, match=rf"the step of {name} is wrong, nothing was timed"):
        check_steps(SESSION)


def test_only_the_transformer_keeps_more_after_a_longer_history() -> None:
    with torch.no_grad():
        short, long = (
            {name: build(Session(2, length, 16, 0.1, SESSION.device)).state_mb for name, build in ROWS.items()}
            for length in (19, 99)
        )
    grown = {name for name in ROWS if long[name] > short[name]}
    assert grown == {CACHED, "Transformer, nothing kept"}
    assert long[CACHED] == 2 * 2 * 100 * 16 * 4 / 2**20
    assert short["LISA-256"] == 2 * 8 * 32 * 4 / 2**20


def test_a_step_leaves_its_state_for_the_next_sample() -> None:
    with torch.no_grad():
        for name, build in ROWS.items():
            step = build(SESSION)
            assert torch.equal(step.call(), step.call()), name


def test_rows_that_do_not_fit_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(session: Session) -> Any:
        raise MemoryError("full")

    monkeypatch.setattr(online, "ROWS", {"LISA-256": ROWS["LISA-256"], CACHED: full, "slow": full})
    slow = {"row": "slow", "length": 2, "status": LIMITS.over_time}
    with torch.no_grad():
        records = measure_steps(SESSION, LIMITS, [slow])
    assert [record["status"] for record in records] == ["ok", "out of memory", "skipped (over 5 s)"]
    speed = {row[0]: row[1] for row in tables(records)[2].rows}
    assert speed == {"LISA-256": "-", CACHED: "out of memory", "slow": "skipped (over 5 s)"}


def test_the_command_measures_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.measure.SAMPLE_SECONDS", 0.0)
    words = ["online", "--lengths", "9", "5", "--width", "16", "--repeats", "2", "--threads", "1"]
    assert main([*words, "--output", str(tmp_path / "steps")]) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["steps-length.png", "steps.json", "steps.md"]
    rows = json.loads((tmp_path / "steps.json").read_text(encoding="utf-8"))["rows"]
    assert [(row["length"], row["row"]) for row in rows] == [(length, name) for length in (5, 9) for name in ROWS]
    assert {row["samples"] for row in rows} == {2}
