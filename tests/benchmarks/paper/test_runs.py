"""Runs of a table: each in its own folder, once; interrupted ones continue."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pytest import CaptureFixture, MonkeyPatch

from benchmarks import main
from benchmarks.paper import runs
from benchmarks.paper.runs import METRICS, ROWS, Run, run_missing, start
from tests.benchmarks.paper.test_pages import made_up, table
from tests.tiny import write_tiny_dataset

pytest.importorskip("matplotlib")

SMALL = ["--epochs=2", "--test_step=1", "--hidden_size=8", "--inner_size=8", "--eval_args={mode: uni12}"]


def run_of(row: str, folder: Path, *arguments: str) -> Run:
    return Run(row, 1, [*ROWS[row].arguments(), "--dataset=tiny", *arguments], folder / f"{row}-1")


def test_rows_are_trained_once(isolated_run_dir: Path, capsys: CaptureFixture[str]) -> None:
    write_tiny_dataset(isolated_run_dir / "data")
    arguments = ["paper", "ranking", "-d", "tiny", "--rows", "Linear", "--seeds", "1", "--data_path=data", *SMALL]
    assert main(arguments) == 0
    result = Path("runs/tiny/Linear-1/result.json")
    first = json.loads(result.read_text())
    assert first["model"] == "LinearTransformer"
    assert [point["epoch"] for point in first["curve"]] == [1, 2]
    assert first["seconds_per_epoch"] > 0 and first["peak_memory_mb"] > 0
    assert table(Path("results/tiny.md").read_text())["Linear"][2] == f"{first['test']['hit@10']:.4f}"
    stamp = result.stat().st_mtime_ns
    assert main(arguments) == 2
    assert "'results/tiny.md' exists: add --overwrite" in capsys.readouterr().err
    assert main([*arguments, "--overwrite"]) == 0
    assert result.stat().st_mtime_ns == stamp
    page = Path("results/tiny.md").read_text()
    for more in ([], ["--only_page"]):
        capsys.readouterr()
        assert main([*arguments, "--overwrite", "--learning_rate=0.01", *more]) == 2
        assert "holds a run with other settings (none there, --learning_rate=0.01 here)" in capsys.readouterr().err
    assert (result.stat().st_mtime_ns, Path("results/tiny.md").read_text()) == (stamp, page)
    result.write_bytes(result.read_bytes()[:-100])
    assert main([*arguments, "--overwrite"]) == 0  # a damaged result is made again
    assert json.loads(result.read_text())["test"] == first["test"]


@pytest.mark.parametrize(
    ("file", "text"), [("result.json", "[1]"), ("result.json", "{"), ("result.json", "{}"), ("options.json", "\xff")]
)
def test_a_damaged_file_of_a_run_is_no_result(tmp_path: Path, file: str, text: str) -> None:
    run = run_of("Linear", tmp_path)
    run.folder.mkdir(parents=True)
    (run.folder / "options.json").write_text(json.dumps(run.arguments))
    (run.folder / "result.json").write_text(json.dumps({**made_up(1, 0.6), "checkpoint": "saved/x.pth"}))
    assert run.result() is not None
    (run.folder / file).write_text(text)
    assert run.result() is None


def test_a_started_run_continues_from_its_checkpoint(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(runs.subprocess, "Popen", lambda command, **_: started.append(command))
    run = run_of("Linear", tmp_path)
    start(run, threads=1)
    start(run, threads=1)
    (run.folder / "saved").mkdir()
    (run.folder / "saved" / "x.pth").touch()
    start(run, threads=1)
    start(run._replace(arguments=[*run.arguments, "--epochs=3"]), threads=1)
    assert ["--resume=auto" in command for command in started] == [False, False, True, False]


def test_a_failed_run_is_named_and_does_not_stop_the_others(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    write_tiny_dataset(tmp_path / "data")
    good = run_of("Linear", tmp_path / "runs", "--protocol=paper", f"--data_path={tmp_path / 'data'}", *SMALL)
    bad = Run("Transformer", 1, ["--model=Nothing", "--dataset=tiny"], tmp_path / "x")
    assert run_missing([bad, good], parallel=2, threads=1) == [bad]
    assert "Transformer, seed 1: failed with status 2" in capsys.readouterr().out
    assert "unknown model 'Nothing'" in (tmp_path / "x" / "log.txt").read_text()
    assert [run.result() is None for run in (bad, good)] == [True, False]


def test_an_interruption_stops_the_running_ones_and_starts_no_more(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    processes: dict[str, subprocess.Popen[bytes]] = {}

    def sleep(run: Run, threads: int) -> "subprocess.Popen[bytes]":
        seconds = 0 if run.row == "Linear" else 300
        processes[run.row] = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds})"])
        if run.row == "LISA-Soft":
            os.kill(os.getpid(), signal.SIGINT)
        return processes[run.row]

    monkeypatch.setattr(runs, "start", sleep)
    begun = time.monotonic()
    planned = [run_of(row, tmp_path) for row in ("Linear", "LISA-Mini", "LISA-Soft", "LISA-Base")]
    with pytest.raises(KeyboardInterrupt):
        run_missing(planned, parallel=2, threads=1)
    assert list(processes) == ["Linear", "LISA-Mini", "LISA-Soft"]
    assert processes["LISA-Mini"].poll() is not None
    processes["LISA-Soft"].kill()
    assert time.monotonic() - begun < 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rank"], "unknown table 'rank'"),
        (["sensitivty"], "Did you mean 'sensitivity'"),
        (["ranking", "--rows", "LSH1", "-d", "ml-100k"], "invalid choice: 'LSH1'"),
        (["ranking", "-d", "ml-100k", "--seed=3"], "'--seed' is chosen by the table: leave it out"),
        (["ranking", "-d", "ml-100k", "--epoch=3"], "Did you mean 'epochs'"),
        (["ranking", "-d", "ml-100k", "--parallel", "0"], "--parallel: must be a whole number"),
        (["ranking", "-d", "ml-100k", "--seeds", "1", "-1"], "must be a whole number from 1"),
        (["ranking", "-d", "ml-100k", "--seeds", "1", "2", "1"], "name each one once"),
        (["ranking"], "--dataset"),
        (["sensitivity", "-d", "ml-100k", "--n_codewords=8"], "'--n_codewords' is chosen by the table"),
        (["sensitivity", "-d", "ml-100k", "--codewords", "0"], "must be a whole number from 1"),
        *(
            ([table, "-d", "nosuch", *more], "there is no file dataset/nosuch/nosuch.inter")
            for table, *more in (["ranking"], ["sensitivity"], ["modern"], ["migration"], ["compression"])
        ),
        (["compression", "-d", "ml-100k", "--model=LISASoft"], "'--model' is chosen by the table"),
    ],
)
def test_mistakes_stop_before_anything_runs(
    isolated_run_dir: Path, capsys: CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["paper", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(isolated_run_dir.iterdir()) == []


@pytest.mark.slow
def test_migration_and_compression_run_to_their_pages(isolated_run_dir: Path) -> None:
    write_tiny_dataset(Path("data"))
    small: list[Any] = ["--hidden_size=8", "--inner_size=8", "--n_codewords=4", "--eval_args={mode: uni12}"]
    arguments = ["-d", "tiny", "--data_path=data", *small]
    assert main(["paper", "migration", "--seeds", "1", "--epochs=2", *arguments]) == 0
    rows = table(Path("results/migration-tiny.md").read_text())
    assert {row: cells[-1] for row, cells in rows.items() if row != "row"} == dict.fromkeys(
        ("LISA-Base", "Transformer, quantised", "migrated, trained further", "migrated, no further training"), "1"
    )
    assert len(rows["LISA-Base"]) == len(METRICS) + 1
    assert main(["paper", "compression", *arguments]) == 0
    rows = table(Path("results/compression-tiny.md").read_text())
    assert (rows["LISA-Base"][0], rows["LISA-Base"][4]) == ("30", "not in the paper")
