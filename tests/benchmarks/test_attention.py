import json
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from pytest import CaptureFixture, MonkeyPatch

from benchmarks import attention, main, rows
from benchmarks.attention import PARTS, measure_rows, probe
from benchmarks.measure import CheckError, Record, TimeLimitError, status_of
from benchmarks.rows import LISA_NAIVE, NAIVE, ROWS, SDPA, Problem, Row, check_rows, remove_projections
from recbole_lisa.attention import MECHANISMS, build_attention

TINY = ["attention", "--lengths", "8", "24", "--tokens", "48", "--widths", "16", "--repeats", "2"]
TINY += ["--items", "30", "--threads", "1"]
SHAPE: dict[str, Any] = {"n": 2, "length": 21, "width": 16, "n_items": 30}
CHECKED = [name for name, row in ROWS.items() if row.reference is not None]


def probe_without_process(name: str, problem: Problem, seconds: float) -> Record:
    """A probe that costs nothing: one row does not fit, one is too slow, one fails."""
    errors = {"Linformer": TimeLimitError(), "Reformer LSH-1": ValueError("broken")}
    if problem.length > 8:
        errors[NAIVE] = MemoryError()  # type: ignore[assignment]  # another kind of error
    if name in errors:
        return {"status": status_of(errors[name], seconds)}
    return {"status": "ok", "seconds": 0.001, "extra_mb": 2.0, "held_mb": 1.0, "output_mb": 0.5}


def test_command_writes_tables_and_plots(tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]) -> None:
    """Rows that do not fit say so and stop nothing."""
    monkeypatch.setattr(attention, "probe", probe_without_process)
    monkeypatch.setattr("benchmarks.measure.SAMPLE_SECONDS", 0.0)
    assert main([*TINY, "--output", str(tmp_path / "speed")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "torch" in lines[0]
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "speed-memory.png", "speed-time.png", "speed.json", "speed.md",
    ]  # fmt: skip
    document = json.loads((tmp_path / "speed.json").read_text(encoding="utf-8"))
    assert document["tokens"] == 48
    record = {(r["part"], r["row"], r["length"]): r for r in document["rows"]}["core", "LISA-128", 24]
    assert (record["n"], record["samples"]) == (2, 2)
    assert record["low"] <= record["median"] <= record["high"]
    text = (tmp_path / "speed.md").read_text(encoding="utf-8")
    for reference in (SDPA, NAIVE, LISA_NAIVE):
        assert f"core, D = 16: how many times as fast as {reference}" in text
    assert "![time](speed-time.png)" in text
    time = {line.split("|")[1].strip(): line for line in reversed(lines) if line.startswith("| ")}
    assert time[NAIVE].count("out of memory") == 1
    assert time["Linformer"].count("skipped (over 30 s)") == 2
    assert time["Reformer LSH-1"].count("failed (broken)") == 2
    assert "failed" not in time["LISA-128"]
    speed = lines[lines.index(f"core, D = 16: how many times as fast as {NAIVE}") :]
    row = next(line for line in speed if line.startswith("| LISA-256 "))
    assert row.split("|")[3].strip() == "-", "the reference has no value there"


def test_rows_that_fail_or_are_slow_are_not_called_again(monkeypatch: MonkeyPatch) -> None:
    problem = Problem("core", **SHAPE)
    monkeypatch.setattr(attention, "probe", probe_without_process)
    monkeypatch.setitem(ROWS, "LISA-128", Row(Mock(side_effect=torch.OutOfMemoryError("full"))))
    (record,) = measure_rows(["LISA-128"], problem, [], 10.0, 1)
    assert record["status"] == "out of memory"
    monkeypatch.setattr(attention, "probe", lambda *_: {"status": "ok", "seconds": 5.0})
    (record,) = measure_rows([NAIVE], problem, [], 10.0, 2)
    assert (record["median"], record["samples"]) == (5.0, 1)
    earlier = [{"row": NAIVE, "part": "core", "width": 16, "status": "skipped (over 10 s)"}]
    (record,) = measure_rows([NAIVE], problem, earlier, 10.0, 2)
    assert record["status"] == "skipped (over 10 s)"


def test_rows_are_measured_alone_and_in_turns(tmp_path: Path) -> None:
    arguments = [*TINY, "--rows", "LISA-128", SDPA, "--parts", "sublayer", "--backward", "--dtype", "bfloat16"]
    assert main([*arguments, "--output", str(tmp_path / "x")]) == 0
    records = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["rows"]
    assert [(r["row"], r["length"], r["status"]) for r in records] == [
        ("LISA-128", 8, "ok"), (SDPA, 8, "ok"), ("LISA-128", 24, "ok"), (SDPA, 24, "ok"),
    ]  # fmt: skip
    for record in records:
        assert record["output_mb"] == 48 * 16 * 2 / 2**20
        assert 0 < record["low"] <= record["median"] <= record["high"]


def test_a_probe_measures_memory_and_respects_limits() -> None:
    problem = Problem("core", width=16, length=2048, n_items=30)
    logits = 2048**2 * 4 / 2**20
    record = probe(NAIVE, problem, 10.0, 500.0)
    assert record["status"] == "ok"
    assert 2 * logits < record["extra_mb"] < 5 * logits
    assert record["held_mb"] == 3 * 2048 * 16 * 4 / 2**20
    assert probe(NAIVE, problem, 10.0, logits / 2) == {"status": "out of memory"}
    assert probe(SDPA, problem, 1e-9, 500.0) == {"status": "skipped (over 1e-09 s)"}


def test_a_wrong_op_stops_the_command_before_timing(monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]) -> None:
    op = rows.lisa_attention_items
    monkeypatch.setattr(rows, "lisa_attention_items", lambda *operands, **more: op(*operands, **more).flip(1))
    assert main([*TINY, "--parts", "core"]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("error: LISA-128 (core) is wrong, nothing was timed")
    assert printed.out == ""


@pytest.mark.gpu
@pytest.mark.parametrize("arguments", [[], ["--backward"]], ids=str)
def test_rows_run_on_cuda(tmp_path: Path, arguments: list[str]) -> None:
    device = ["--device", "cuda", "--dtype", "bfloat16"]
    assert main([*TINY, *device, *arguments, "--output", str(tmp_path / "x")]) == 0
    records = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["rows"]
    assert {record["status"] for record in records} == {"ok"}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("part", PARTS)
def test_every_row_attends_and_differentiates(part: str, backward: bool) -> None:
    for name, row in ROWS.items():
        case = row.build(Problem(part, **SHAPE, backward=backward))
        out, *gradients = case()
        assert out.shape == (2, 21, 16), name
        assert torch.isfinite(out).all(), name
        assert len(gradients) == (len(case.leaves) if backward else 0), name
        assert bool(case.leaves) == backward or part == "sublayer" or name not in CHECKED
        assert case.held_mb > 0


def test_every_mechanism_has_a_row_and_its_core_no_projection() -> None:
    covered = {getattr(row.build, "keywords", {}).get("name") for row in ROWS.values()} | {"full", "lisa"}
    assert set(MECHANISMS) <= covered
    for name in set(MECHANISMS) - {"lisa"}:
        module = build_attention(name, hidden_size=16, max_length=21)
        assert any(isinstance(m, torch.nn.Linear) for m in module.modules()), name
        remove_projections(module, 16)
        square = [m for m in module.modules() if isinstance(m, torch.nn.Linear) and m.in_features == m.out_features]
        assert not square, name


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("part", PARTS)
def test_the_correctness_check_passes_right_rows(part: str, dtype: torch.dtype, backward: bool) -> None:
    assert len(CHECKED) == 7
    check_rows(ROWS, Problem(part, 16, dtype=dtype, backward=backward, decay=0.1))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", CHECKED)
def test_the_correctness_check_catches_a_wrong_output(monkeypatch: MonkeyPatch, part: str, name: str) -> None:
    right = ROWS[name]

    def wrong(problem: Problem) -> Any:
        case = right.build(problem)
        forward = case.forward
        case.forward = lambda: forward() * 1.01
        return case

    monkeypatch.setitem(ROWS, name, right._replace(build=wrong))
    with pytest.raises(CheckError, match=rf"{name} \({part}\) is wrong, nothing was timed: its output differs"):
        check_rows([name], Problem(part, 16))


def test_the_correctness_check_catches_a_wrong_gradient(monkeypatch: MonkeyPatch) -> None:
    def wrong(*operands: torch.Tensor, **settings: Any) -> torch.Tensor:
        items, codes, table, values = operands
        return rows.lisa_attention_items(items, codes, table.detach() + 0 * table, values, **settings)

    row = ROWS["LISA-128"]._replace(build=partial(rows.lisa, n_codewords=16, attend=wrong))
    monkeypatch.setitem(ROWS, "LISA-128", row)
    check_rows(["LISA-128"], Problem("core", 16))
    with pytest.raises(CheckError, match=r"its gradient \d differs"):
        check_rows(["LISA-128"], Problem("core", 16, backward=True))
