import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import main, online
from benchmarks.errors import CheckError
from benchmarks.online import CACHED, ROWS, Session, Step, check_steps, measure_steps, tables

SESSION = Session(users=2, length=19, width=16)


@pytest.fixture(autouse=True)
def no_gradients() -> Any:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("length", [1, 41])
def test_every_step_equals_attention_over_the_whole_history(length: int, decay: float) -> None:
    check_steps(Session(3, length, 16, decay))


@pytest.mark.parametrize("name", ROWS)
def test_the_correctness_check_catches_a_wrong_step(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def wrong(session: Session) -> Step:
        step = ROWS[name](session)
        return step._replace(call=lambda: step.call() * 1.01)

    monkeypatch.setattr(online, "ROWS", {name: wrong})
    with pytest.raises(CheckError, match=rf"the step of {name} is wrong, nothing was timed"):
        check_steps(SESSION)


def test_only_the_state_of_the_transformer_grows_with_the_history() -> None:
    short, long = (
        {name: sum(x.nbytes for x in build(Session(2, length, 16)).state) for name, build in ROWS.items()}
        for length in (19, 99)
    )
    assert {name for name in ROWS if long[name] > short[name]} == {CACHED, "Transformer, no cache"}
    assert long[CACHED] == 2 * 2 * 100 * 16 * 4
    assert short["LISA-256"] == 2 * 8 * 32 * 4


def test_a_step_leaves_its_state_for_the_next_sample() -> None:
    for name, build in ROWS.items():
        step = build(SESSION)
        assert torch.equal(step.call(), step.call()), name


def test_rows_that_do_not_fit_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(session: Session) -> Any:
        raise MemoryError("full")

    monkeypatch.setattr(online, "ROWS", {"LISA-256": ROWS["LISA-256"], CACHED: full})
    records = measure_steps(SESSION, repeats=1, seconds=5.0)
    assert [record["status"] for record in records] == ["ok", "out of memory"]
    assert list(map(list, tables(records)[2].rows)) == [["LISA-256", "-"]]


def test_the_command_measures_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.measure.SAMPLE_SECONDS", 0.0)
    arguments = ["online", "--lengths", "9", "5", "--width", "16", "--repeats", "2", "--threads", "1"]
    assert main([*arguments, "--output", str(tmp_path / "steps")]) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["steps-length.png", "steps.json", "steps.md"]
    rows = json.loads((tmp_path / "steps.json").read_text(encoding="utf-8"))["rows"]
    assert [(row["length"], row["row"]) for row in rows] == [(length, name) for length in (5, 9) for name in ROWS]
    assert {row["samples"] for row in rows} == {2}
