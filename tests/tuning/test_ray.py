"""Searches and runs through Ray itself, on a data set of a few users."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paper.paper import ROWS
from benchmarks.paper.ranking import Cluster, finished, jobs, run_all
from recbole_lisa.cli.main import main
from recbole_lisa.errors import UsageError
from recbole_lisa.tuning.ray_adapter import check_resources, ray_session
from recbole_lisa.tuning.record import ENDED, FINISHED, STOPPED, Record
from tests.tiny import write_tiny_dataset

pytest.importorskip("ray.tune")
pytest.importorskip("pyarrow")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of Ray's own
    pytest.mark.skipif(sys.platform == "win32", reason="signals"),
]

ROOT = Path(__file__).parents[2]
WORDS = [
    *("tune", "-m", "LISASoft", "-d", "tiny", "--data_path=data", "--space=space.yaml", "--topk=[5,10]"),
    *("--hidden_size=8", "--inner_size=8", "--n_codebooks=2", "--MAX_ITEM_LIST_LENGTH=8", "--train_batch_size=8"),
]


@pytest.fixture
def folder(isolated_run_dir: Path) -> Path:
    """A working folder with data, a default that learns fast, and a space whose values cannot learn."""
    write_tiny_dataset(isolated_run_dir / "data")
    Path("space.yaml").write_text("learning_rate: [1.0e-9, 2.0e-9, 3.0e-9]\n", encoding="utf-8")
    Path("mine.yaml").write_text("learning_rate: 0.05\n", encoding="utf-8")
    return isolated_run_dir / "tuned" / "LISASoft-tiny-full_ranking"


def test_a_search_runs_through_ray_and_writes_its_results(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_worker_niceness", "0")  # on a busy machine the trials would hardly be served
    assert main([*WORDS, "--config_files=mine.yaml", "--epochs=2", "--scheduler=none", "--num_samples=2"]) == 0
    trials = Record.read(folder).trials
    assert [[report["epoch"] for report in trial.reports] for trial in trials.values()] == [[1, 2, 2]] * 2
    assert [trial.status for trial in trials.values()] == [FINISHED] * 2
    document = json.loads((folder / "results.json").read_text())
    assert document["best"]["score"] == max(trial["score"] for trial in document["trials"])
    assert 0 <= document["best"]["test"]["ndcg@10"] <= 1
    assert [path.name for path in folder.glob("*.dataset")] == ["tiny.dataset"]


@pytest.mark.slow
def test_a_search_prunes_and_takes_more_trials(folder: Path) -> None:
    words = [*WORDS, "--config_files=mine.yaml", "--epochs=6", "--grace_period=3"]
    assert main([*words, "--num_samples=2"]) == 0
    assert Record.read(folder).trials[0].status == FINISHED
    first = (folder / "events.jsonl").read_text()
    assert main([*words, "--num_samples=3", "--resume"]) == 0
    again = Record.read(folder)
    assert (folder / "events.jsonl").read_text().startswith(first)
    assert [trial.status in ENDED for trial in again.trials.values()] == [True] * 3
    added = [json.loads(line)["trial"] for line in (folder / "events.jsonl").read_text()[len(first) :].splitlines()]
    assert set(added) == {2}, "a trial that had ended was run again"
    # The default has reported before the third trial begins, which stays where it starts.
    assert again.trials[2].status == STOPPED
    assert again.trials[2].reports[-1]["epoch"] == 3
    best = again.best()
    assert best is not None and best.number == 0


def test_resources_that_no_node_has_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 4.0}},
        {"Alive": True, "Resources": {"CPU": 2.0, "GPU": 1.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    check_resources({"--cpus_per_trial": 4, "--gpus_per_trial": 0})
    check_resources({"--cpus_per_trial": 2, "--gpus_per_trial": 0.25})
    with pytest.raises(UsageError) as caught:
        check_resources({"--cpus_per_trial": 4, "--gpus_per_trial": 0.25})
    assert str(caught.value) == (
        "--cpus_per_trial 4 and --gpus_per_trial 0.25 fit on no node of Ray, which has 4 cores and 0 GPUs; "
        "2 cores and 1 GPUs: ask for less"
    )


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_told() -> None:
    with pytest.raises(UsageError, match="no Ray cluster answers there"), ray_session("127.0.0.1:1"):
        pass


@pytest.mark.slow
def test_runs_of_a_table_go_through_ray(folder: Path) -> None:
    small = ["--epochs=1", "--hidden_size=8", "--inner_size=8", "--eval_args={mode: uni12}"]
    shared = [f"--data_path={Path('data').resolve()}", *small]
    rows = {name: ROWS[name] for name in ("Linear", "Transformer")}
    todo = list(jobs("tiny", rows, [1], Path("runs").resolve(), shared))
    todo[1] = todo[1]._replace(options=["--model=Nothing", "--dataset=tiny"])
    failed = run_all(todo, parallel=1, threads=1, cluster=Cluster("local", None))
    assert [job.row for job in failed] == ["Transformer"]
    assert [finished(job) for job in todo] == [True, False]


def _wait_for(told: Any, seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not told():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.2)


def _search(words: list[str]) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with Path("log.txt").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", "recbole_lisa", *words], stdout=log, stderr=log, env=environment)


@pytest.mark.parametrize("ignored", [False, True], ids=["caught", "ignored"])
def test_a_request_to_terminate_is_taken_for_an_interruption(monkeypatch: pytest.MonkeyPatch, ignored: bool) -> None:
    monkeypatch.setattr("ray.init", lambda **_: None)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), ray_session(None):
            signal.raise_signal(signal.SIGTERM)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.slow
def test_a_killed_search_goes_on_without_repeating_an_epoch(folder: Path) -> None:
    Path("space.yaml").write_text("learning_rate: [0.001, 0.01, 0.02]\n", encoding="utf-8")
    words = [*WORDS, "--epochs=40", "--scheduler=none", "--num_samples=3", "--stopping_step=100"]
    process = _search(words)

    def halfway() -> bool:
        try:
            trials = Record.read(folder).trials
        except (UsageError, FileNotFoundError):
            return False
        return any(trial.status == FINISHED for trial in trials.values())

    _wait_for(halfway)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(5)  # Ray's processes notice and end
    before = Record.read(folder)
    done = [trial.number for trial in before.trials.values() if trial.status in ENDED]
    assert main([*words, "--resume"]) == 0
    after = Record.read(folder)
    assert [trial.status for trial in after.trials.values()] == [FINISHED] * 3
    for trial in after.trials.values():
        epochs = [report["epoch"] for report in trial.reports]
        assert epochs == sorted(epochs)
        assert epochs.count(40) <= 2  # the last validation, and the end
        if trial.number in done:
            assert trial.reports == before.trials[trial.number].reports


@pytest.mark.slow
def test_a_trial_whose_process_dies_goes_on_from_its_checkpoint(folder: Path) -> None:
    words = [*WORDS, "--epochs=60", "--scheduler=none", "--num_samples=1", "--stopping_step=100"]
    process = _search(words)

    def started() -> bool:
        try:
            return bool(Record.read(folder).trials[0].reports)
        except (UsageError, FileNotFoundError, KeyError):
            return False

    _wait_for(started)
    (worker,) = _workers_of(process.pid)
    os.kill(worker, signal.SIGKILL)
    assert process.wait(timeout=300) == 0
    trial = Record.read(folder).trials[0]
    epochs = [report["epoch"] for report in trial.reports]
    assert trial.status == FINISHED
    assert epochs == sorted(epochs) and len(epochs) <= 61, "epochs were trained twice"


def _workers_of(driver: int) -> list[int]:
    """The processes of trials below a driver."""
    import psutil

    children = psutil.Process(driver).children(recursive=True)
    return [child.pid for child in children if "ImplicitFunc" in " ".join(child.cmdline())]
