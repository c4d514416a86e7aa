"""`python -m benchmarks paper ranking`: runs what is missing, and writes a page of what is there."""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import main
from benchmarks.paper import page
from benchmarks.paper.paper import METRICS, ROWS, paper_figures
from benchmarks.paper.ranking import Job, finished, jobs, result_of, run_all
from recbole_lisa.config.registry import MODELS
from tests.tiny import write_tiny_dataset

pytest.importorskip("matplotlib")

SMALL = ["--epochs=2", "--test_step=1", "--hidden_size=8", "--inner_size=8", "--eval_args={mode: uni12}"]


def made_up(seed: int, hit: float) -> dict[str, Any]:
    """A result with only what the page reads."""
    metrics = dict(zip(METRICS, (hit - 0.2, hit - 0.3, hit, hit - 0.25), strict=True))
    config = {
        "MAX_ITEM_LIST_LENGTH": 300,
        "loss_type": "BCE",
        "train_neg_sample_args": {"sample_num": 1, "distribution": "uniform"},
        "learning_rate": 0.001,
        "adam_betas": [0.9, 0.98],
        "train_batch_size": 128,
        "epochs": 200,
    }
    curve = [{"epoch": 10, **metrics}, {"epoch": 20, **metrics}]
    run = {"seed": seed, "test": metrics, "curve": curve, "config": config}
    return {**run, "device": "cpu", "versions": {"torch": "2.13.0"}}


def table(text: str) -> dict[str, list[str]]:
    """Row name -> its cells."""
    lines = [line.strip("| \n").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in lines}


def test_every_row_names_a_model_and_every_figure_a_row() -> None:
    assert {row.model for row in ROWS.values()} <= set(MODELS)
    for dataset in ("ml-1m", "ml-25m", "alibaba", "amazon-video-games-18"):
        figures = paper_figures(dataset)
        assert set(figures) == set(ROWS) - {"Linear"}
        assert all(f[0] > f[1] and f[2] > f[3] and f[2] > f[0] for f in figures.values())
    assert paper_figures("ml-1m")["Linformer"] == (0.4171, 0.2899, 0.5704, 0.3394)
    assert paper_figures("ml-100k") == {}


def test_the_page_shows_mean_spread_and_difference_to_the_paper(tmp_path: Path) -> None:
    found = {"Transformer": [made_up(1, 0.80), made_up(2, 0.79)], "LISA-Soft": [made_up(1, 0.78)], "LSH-4": []}
    files = page.write_page("ml-1m", found, ["--data_path=DATA"], tmp_path)
    rows = table(files[0].read_text())
    assert rows["Transformer"][2:] == [
        "0.7950 [0.0100]",
        "0.5450 [0.0100]",
        "1, 2",
        "0.7914, 0.5725",
        "+0.0036, -0.0275",
    ]
    assert rows["LISA-Soft"][2] == "0.7800"
    assert rows["LSH-4"] == ["not run"] * 4 + ["-", "0.7627, 0.5408", "-"]
    command = (
        "python run_recbole_lisa.py --model=Reformer --n_hashes=4 --dataset=ml-1m --protocol=paper --data_path=DATA"
    )
    assert command in files[0].read_text()
    points = list(csv.DictReader(files[1].open()))
    assert [(p["row"], p["seed"], p["epoch"], p["hit@10"]) for p in points[:3]] == [
        ("Transformer", "1", "10", "0.8"), ("Transformer", "1", "20", "0.8"), ("Transformer", "2", "10", "0.79")
    ]  # fmt: skip
    assert files[2].read_bytes().startswith(b"\x89PNG")


def test_what_is_written_by_hand_stays(tmp_path: Path) -> None:
    path = page.write_page("ml-100k", {"Linear": [made_up(1, 0.6)]}, [], tmp_path)[0]
    path.write_text(path.read_text() + "\nBy hand.\n")
    page.write_page("ml-100k", {"Linear": [made_up(1, 0.7)]}, [], tmp_path)
    assert path.read_text().endswith("\nBy hand.\n")
    assert table(path.read_text())["Linear"][2] == "0.7000"
    assert path.read_text().count(page.MARK) == 1


def test_rows_are_trained_once_and_a_changed_setting_needs_another_folder(
    isolated_run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_dataset(isolated_run_dir / "data")
    words = ["paper", "ranking", "-d", "tiny", "--rows", "Linear", "--seeds", "1", "--data_path=data", *SMALL]
    assert main(words) == 0
    result = Path("runs/tiny/Linear-1/result.json")
    first = json.loads(result.read_text())
    assert first["model"] == "LinearTransformer"
    assert [point["epoch"] for point in first["curve"]] == [1, 2]
    assert table(Path("results/tiny.md").read_text())["Linear"][2] == f"{first['test']['hit@10']:.4f}"
    stamp = result.stat().st_mtime_ns
    assert main(words) == 0
    assert result.stat().st_mtime_ns == stamp
    shown = Path("results/tiny.md").read_text()
    for more in ([], ["--only_page"]):
        capsys.readouterr()
        assert main([*words, "--learning_rate=0.01", *more]) == 2
        assert "holds a run with other settings (none there, --learning_rate=0.01 here)" in capsys.readouterr().err
    assert (result.stat().st_mtime_ns, Path("results/tiny.md").read_text()) == (stamp, shown)
    result.write_bytes(result.read_bytes()[:-100])
    assert main(words) == 0  # a damaged result is made again
    assert json.loads(result.read_text())["test"] == first["test"]


@pytest.mark.parametrize(
    ("file", "text"), [("result.json", "[1]"), ("result.json", "{"), ("result.json", "{}"), ("options.json", "\xff")]
)
def test_a_damaged_file_of_a_run_is_no_result(tmp_path: Path, file: str, text: str) -> None:
    (job,) = jobs("tiny", {"Linear": ROWS["Linear"]}, [1], tmp_path, [])
    job.folder.mkdir(parents=True)
    job.record.write_text(json.dumps(job.options))
    job.result_file.write_text(json.dumps({**made_up(1, 0.6), "checkpoint": "saved/x.pth"}))
    assert finished(job)
    (job.folder / file).write_text(text)
    assert (finished(job), result_of(job)) == (False, None)


def test_a_run_ends_with_its_pipe(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", "import runpy, sys, recbole_lisa.cli.main as cli, time\n"
         "cli.main = lambda: print('began', flush=True) or time.sleep(300)\n"
         "runpy.run_module('benchmarks.paper.job', run_name='__main__')"],
        stdin=reading, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "began\n"
            assert process.poll() is None
            os.close(writing)
            assert process.wait(60) == 143
        finally:
            process.kill()
            os.close(reading)


def test_an_interruption_ends_what_runs_and_begins_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def until_the_pipe_closes(job: Job, threads: int, alive: int) -> int:
        begun.append(job.row)
        if job.row == "Linear":
            return 0
        os.read(alive, 1)
        return 143

    def interrupt(*_: Any) -> None:
        while begun != ["Linear", "LISA-Soft"]:
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr("benchmarks.paper.ranking.run_job", until_the_pipe_closes)
    monkeypatch.setattr("benchmarks.paper.ranking.tqdm.update", interrupt)
    rows = {row: ROWS[row] for row in ("Linear", "LISA-Soft", "LISA-Mini", "LISA-Base")}
    with pytest.raises(KeyboardInterrupt):
        run_all(list(jobs("tiny", rows, [1], tmp_path, [])), parallel=1, threads=1)
    assert begun == ["Linear", "LISA-Soft"]


def test_a_failing_run_is_named_and_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_dataset(tmp_path / "data")
    todo = list(
        jobs("tiny", {"Linear": ROWS["Linear"]}, [1], tmp_path / "runs", [f"--data_path={tmp_path / 'data'}", *SMALL])
    )
    todo.insert(
        0, todo[0]._replace(row="Transformer", options=["--model=Nothing", "--dataset=tiny"], folder=tmp_path / "x")
    )
    failed = run_all(todo, parallel=2, threads=1)
    assert [job.row for job in failed] == ["Transformer"]
    assert "failed with status 2" in capsys.readouterr().out
    assert "unknown model 'Nothing'" in (tmp_path / "x" / "log.txt").read_text()
    assert [finished(job) for job in todo] == [False, True]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rank"], "unknown table 'rank'"),
        (["ranking", "--rows", "LSH1", "-d", "ml-100k"], "Did you mean 'LSH-1'"),
        (["ranking", "-d", "ml-100k", "--seed=3"], "use --seeds"),
        (["ranking", "-d", "ml-100k", "--epoch=3"], "Did you mean 'epochs'"),
        (["ranking", "-d", "ml-100k", "--parallel", "0"], "at least 1, got 0 and 1"),
        (
            ["ranking", "-d", "ml-100k", "--seeds", "1", "-1"],
            "seed (command line) is -1, it must be in [0, 4294967296)",
        ),
        (["ranking", "-d", "ml-100k", "--seeds", "1", "2", "1"], "name each one once"),
        (["ranking", "-d", "ml-100k", "--address=local", "--gpus_per_run=-1"], "is -1, it must be at least 0"),
        (["ranking", "-d", "ml-100k", "--runs=/dev/null"], "nothing can be written into '/dev/null/ml-100k"),
        (["ranking", "-d", "ml-100k", "--resume=auto"], "runs go on by themselves"),
        (["ranking", "-d", "ml-100k", "--checkpoint_dir=saved"], "use --runs"),
        (["ranking"], "--dataset"),
    ],
)
def test_mistakes_stop_before_anything_runs(
    isolated_run_dir: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["paper", *words]) == 2
    assert message in capsys.readouterr().err
    assert list(isolated_run_dir.iterdir()) == []


def test_a_table_without_its_page_is_somebody_elses(isolated_run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = Path("results/ml-100k-curve.csv")
    mine.parent.mkdir()
    mine.write_text("mine")
    assert main(["paper", "ranking", "-d", "ml-100k", "--only_page"]) == 2
    assert "holds ml-100k-curve.csv, but no ml-100k.md beside it" in capsys.readouterr().err
    assert mine.read_text() == "mine"
