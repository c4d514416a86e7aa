import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import attention, gate, main
from benchmarks.attention import is_too_slow
from benchmarks.machine import Limits
from benchmarks.probe import Probe, probe, status_of
from benchmarks.problem import Problem
from benchmarks.rows import FLOOR, LISA_NAIVE, NAIVE, SDPA

TINY = ["attention", "--lengths", "8", "24", "--tokens", "48", "--widths", "16", "--repeats", "2"]
TINY += ["--items", "30", "--threads", "1"]
LIMITS = Limits(seconds=10.0, memory_mb=500.0, repeats=2, threads=1)


def without_processes(row: str, problem: Problem, limits: Limits) -> tuple[str, Probe | None]:
    """A probe that costs nothing: one row does not fit, one is too slow, one fails."""
    if row == NAIVE and problem.length > 8:
        return status_of(MemoryError(), limits), None
    if row == "Linformer":
        return limits.over_time, None
    if row == "Reformer LSH-1":
        return status_of(ValueError("broken"), limits), None
    return "ok", Probe(0.001, 2.0, 1.0, 0.5, "")


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "probe", without_processes)
    monkeypatch.setattr("benchmarks.measure.SAMPLE_SECONDS", 0.0)


@pytest.mark.usefixtures("fast")
def test_the_command_writes_tables_records_and_plots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--output", str(tmp_path / "speed")]) == 0
    printed = capsys.readouterr().out
    assert "torch" in printed.splitlines()[0]
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "speed-memory.png", "speed-speedup.png", "speed-time.png", "speed.json", "speed.md",
    ]  # fmt: skip
    document = json.loads((tmp_path / "speed.json").read_text(encoding="utf-8"))
    assert document["tokens"] == 48
    records = {(r["part"], r["row"], r["length"]): r for r in document["rows"]}
    assert records["core", "LISA-128", 24]["n"] == 2
    assert records["core", "LISA-128", 24]["samples"] == 2
    assert records["core", "LISA-128", 24]["low"] <= records["core", "LISA-128", 24]["median"]
    assert records["core", FLOOR, 8]["status"] == "ok"
    assert ("sublayer", FLOOR, 8) not in records
    text = (tmp_path / "speed.md").read_text(encoding="utf-8")
    for reference in (SDPA, NAIVE, LISA_NAIVE):
        assert f"How many times as fast as {reference}, core, D = 16" in text
    assert "![speedup](speed-speedup.png)" in text


@pytest.mark.usefixtures("fast")
def test_rows_that_do_not_fit_say_so_and_end_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--parts", "core"]) == 0
    lines = capsys.readouterr().out.splitlines()
    time = {line.split("|")[1].strip(): line for line in reversed(lines) if line.startswith("| ")}
    assert time[NAIVE].count("out of memory") == 1
    assert time["Linformer"].count("skipped (over 30 s)") == 2
    assert time["Reformer LSH-1"].count("failed (broken)") == 2
    assert "failed" not in time["LISA-128"]
    speed = lines[lines.index(f"How many times as fast as {NAIVE}, core, D = 16") :]
    row = next(line for line in speed if line.startswith("| LISA-256 "))
    assert row.split("|")[3].strip() == "-", "there is nothing to compare with where the reference does not fit"


@pytest.mark.usefixtures("fast")
def test_a_row_that_fails_beside_the_others_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(part: str, *, backward: bool) -> dict[str, Any]:
        def build(problem: Problem) -> Any:
            raise torch.OutOfMemoryError("full")

        return {"LISA-128": build}

    monkeypatch.setattr(attention, "check_rows", lambda names, problem: None)
    monkeypatch.setattr(attention, "rows_of", broken)
    assert main([*TINY, "--parts", "core", "--output", str(tmp_path / "x.json")]) == 0
    rows = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["rows"]
    assert [row["status"] for row in rows] == ["out of memory"] * 2


@pytest.mark.usefixtures("fast")
def test_the_slowest_rows_are_not_called_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(attention, "probe", lambda *_: ("ok", Probe(5.0, 2.0, 1.0, 0.5, "")))
    assert main([*TINY, "--parts", "core", "--rows", NAIVE, "--output", str(tmp_path / "x.json")]) == 0
    rows = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["rows"]
    assert [(row["median"], row["samples"]) for row in rows] == [(5.0, 1)] * 2


def test_rows_are_measured_alone_and_in_turns(tmp_path: Path) -> None:
    words = [*TINY, "--rows", "LISA-128", SDPA, "--parts", "sublayer", "--backward", "--dtype", "bfloat16"]
    assert main([*words, "--output", str(tmp_path / "x.json")]) == 0
    rows = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["rows"]
    assert [(row["row"], row["length"]) for row in rows] == [
        ("LISA-128", 8), (SDPA, 8), ("LISA-128", 24), (SDPA, 24),
    ]  # fmt: skip
    for row in rows:
        assert row["status"] == "ok"
        assert row["output_mb"] == 48 * 16 * 2 / 2**20
        assert 0 < row["low"] <= row["median"] <= row["high"]


def test_a_probe_tells_memory_and_limits() -> None:
    shape: dict[str, Any] = {"n": 1, "length": 2048, "width": 16, "n_items": 30}
    status, found = probe(NAIVE, Problem("core", **shape), LIMITS)
    assert status == "ok"
    assert found is not None
    logits = 2048**2 * 4 / 2**20
    assert 2 * logits < found.extra_mb < 5 * logits
    assert found.held_mb == 3 * 2048 * 16 * 4 / 2**20
    assert found.peak_mb == found.held_mb + found.extra_mb
    small = Limits(seconds=10.0, memory_mb=logits / 2, repeats=1, threads=1)
    assert probe(NAIVE, Problem("core", **shape), small) == ("out of memory", None)
    short = Limits(seconds=1e-9, memory_mb=500.0, repeats=1, threads=1)
    assert probe(SDPA, Problem("core", **shape), short)[0] == "skipped (over 1e-09 s)"


@pytest.mark.parametrize(
    ("times", "length", "slow"),
    [
        ([], 4096, False),
        ([(128, 9.0)], 65536, False),  # how it grows is not known yet
        ([(128, 1.0), (1024, 1.0)], 65536, False),  # constant
        ([(128, 1.0), (1024, 8.0)], 8192, True),
        ([(1024, 1.0), (4096, 0.5)], 65536, False),  # noise is no promise of falling times
    ],
)
def test_a_row_is_skipped_when_its_growth_leads_past_the_limit(
    times: list[tuple[int, float]], length: int, slow: bool
) -> None:
    records = [{"status": "ok", "length": at, "median": seconds} for at, seconds in times]
    assert is_too_slow(records, length, LIMITS) is slow


def test_a_row_that_was_skipped_is_skipped_at_every_longer_length() -> None:
    assert is_too_slow([{"status": LIMITS.over_time, "length": 128}], 256, LIMITS)
    assert not is_too_slow([{"status": "out of memory", "length": 128}], 256, LIMITS)


def test_a_wrong_op_ends_the_command_before_anything_is_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    op = gate.lisa.__globals__["lisa_attention_items"]

    def wrong(*operands: torch.Tensor, **settings: Any) -> torch.Tensor:
        return op(*operands, **settings).flip(1)

    monkeypatch.setattr("benchmarks.rows.lisa_attention_items", wrong)
    assert main(TINY) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("error: LISA-128 (core) is wrong, nothing was timed")
    assert printed.out == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--rows LISA128", "unknown row 'LISA128': known are LISA-128, "),
        ("--lengths 100", "length 100 is more than --tokens=48"),
        ("--lengths 0", "must be a whole number from 1 to 2147483647, got 0"),
        ("--items 1", "argument --items: must be at least 2, the padding and an item, got 1"),
        ("--decay -1", "must be a number of at least 0, got -1"),
        ("--parts heart", "invalid choice: 'heart'"),
        ("--dtype int8", "invalid choice: 'int8'"),
        ("--device tpu", "invalid choice: 'tpu'"),
        ("--cuda_graph", "--cuda_graph records a call on a GPU"),
        ("--outptu x", "unrecognized arguments: --outptu x"),
    ],
)
def test_mistakes_end_with_one_line_and_status_2(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, *words.split()]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_cuda_device_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--device", "cuda"]) == 2
    assert "torch sees no CUDA device" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.parametrize("words", [[], ["--backward"], ["--cuda_graph", "--rows", SDPA, NAIVE]], ids=str)
def test_rows_run_on_cuda(tmp_path: Path, words: list[str]) -> None:
    device = ["--device", "cuda", "--dtype", "bfloat16"]
    assert main([*TINY, *device, *words, "--output", str(tmp_path / "x.json")]) == 0
    rows = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["rows"]
    assert {row["status"] for row in rows} == {"ok"}
