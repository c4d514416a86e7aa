"""Searches and runs through Ray itself, on a data set of a few users."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from recbole_lisa.cli.main import main
from recbole_lisa.tuning import trainable
from recbole_lisa.tuning.session import ray_session
from tests.tiny import write_tiny_dataset

pytest.importorskip("ray.tune")
pytest.importorskip("pyarrow")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of Ray's own
    pytest.mark.skipif(sys.platform == "win32", reason="signals"),
]

ROOT = Path(__file__).parents[2]
SMALL = {
    "topk": "[5,10]", "hidden_size": 8, "inner_size": 8, "n_codebooks": 2, "MAX_ITEM_LIST_LENGTH": 8,
    "train_batch_size": 8,
}  # fmt: skip
ARGUMENTS = ["tune", "-m", "LISASoft", "-d", "tiny", "--data_path=data", "--space=space.yaml"]
ARGUMENTS += [f"--{key}={value}" for key, value in SMALL.items()]


@pytest.fixture
def folder(isolated_run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with data, a default that learns fast, and a space whose values cannot learn."""
    monkeypatch.setenv("RAY_worker_niceness", "0")  # on a busy machine the trials would hardly run
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    write_tiny_dataset(isolated_run_dir / "data")
    Path("space.yaml").write_text("learning_rate: [1.0e-9, 2.0e-9, 3.0e-9]\n", encoding="utf-8")
    Path("mine.yaml").write_text("learning_rate: 0.01\n", encoding="utf-8")
    return isolated_run_dir / "tuned" / "LISASoft-tiny-full_ranking"


def epochs(folder: Path) -> dict[str, list[int]]:
    """Folder of a trial -> the epochs that Ray logged, in order."""
    files = sorted(folder.glob("trials*/trial_*/result.json"))
    lines = {file.parent.name: file.read_text().split("\n")[:-1] for file in files}  # the last may be half a line
    return {trial: [json.loads(line)["epoch"] for line in lines[trial]] for trial in lines}


def results(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "results.json").read_text()))


@pytest.fixture
def driver(folder: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts searches as processes, each in its own process group, and ends what is left of them."""
    started: list[subprocess.Popen[str]] = []

    def start(*more: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "recbole_lisa", *ARGUMENTS, "--scheduler=none", "--stopping_step=1000", *more]
        process = subprocess.Popen(
            command, stdout=-1, stderr=-2, text=True, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[str]", seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end and process.poll() is None, "the search does not go on"
        time.sleep(0.2)


def test_search_writes_its_results_and_takes_more_trials(folder: Path) -> None:
    arguments = [*ARGUMENTS, "--config_files=mine.yaml", "--epochs=2"]
    assert main([*arguments, "--scheduler=none", "--num_samples=2"]) == 0
    assert epochs(folder) == {"trial_00000": [1, 2], "trial_00001": [1, 2]}
    document = results(folder)
    assert [trial["status"] for trial in document["trials"]] == ["finished"] * 2
    assert document["default"]["settings"] == {"learning_rate": 0.01}
    assert document["best"]["score"] == max(trial["score"] for trial in document["trials"])
    assert 0 <= document["best"]["test"]["ndcg@10"] <= 1
    assert [path.name for path in folder.glob("*.dataset")] == ["tiny.dataset"]
    assert len(list(folder.glob("trials/*/events.out.tfevents.*"))) == 2

    best = f"--config_files={folder / 'best.yaml'}"
    assert main(["run", "-m", "LISASoft", "-d", "tiny", best, "--result_file=r.json"]) == 0
    again = json.loads(Path("r.json").read_text())
    assert again["valid"] == document["best"]["valid"] and again["test"] == document["best"]["test"]


@pytest.mark.slow
def test_asha_stops_trials_and_resume_adds_trials(folder: Path) -> None:
    """One trial at a time: the first that is drawn learns, those after it do not."""
    arguments = [*ARGUMENTS, "--config_files=mine.yaml", "--epochs=6", "--grace_period=1", "--reduction_factor=2"]
    arguments.append(f"--cpus_per_trial={os.cpu_count()}")
    Path("space.yaml").write_text("learning_rate: [1.0e-9, 0.02, 2.0e-9, 3.0e-9]\n", encoding="utf-8")
    assert main([*arguments, "--num_samples=4"]) == 0
    first = results(folder)["trials"]
    assert first[0]["status"] == "finished" and "stopped" in {trial["status"] for trial in first}
    assert main([*arguments, "--num_samples=5", "--resume"]) == 0
    trials = results(folder)["trials"]
    assert trials[:4] == first and len(trials) == 5
    assert sorted(path.name for path in folder.glob("trials*")) == ["trials", "trials-2"]


@pytest.mark.slow
def test_optuna_suggests_trials_and_adds_some(folder: Path) -> None:
    pytest.importorskip("optuna")
    text = "learning_rate: {log_uniform: [1.0e-4, 1.0e-2]}\nadam_betas: [[0.9, 0.98], [0.9, 0.999]]\n"
    Path("space.yaml").write_text(text + "n_codewords: {integers: [4, 9]}\n", encoding="utf-8")
    arguments = [*ARGUMENTS, "--epochs=1", "--search=optuna", "--scheduler=none"]
    assert main([*arguments, "--num_samples=4"]) == 0
    assert main([*arguments, "--num_samples=6", "--resume"]) == 0
    trials = results(folder)["trials"]
    assert [trial["status"] for trial in trials] == ["finished"] * 6
    assert trials[0]["settings"]["n_codewords"] == 16  # the default lies outside the space
    assert all(1e-4 <= trial["settings"]["learning_rate"] <= 1e-2 for trial in trials)
    assert all(4 <= trial["settings"]["n_codewords"] <= 9 for trial in trials[1:])


@pytest.mark.slow
def test_trainable_works_in_a_tuner_of_the_user(folder: Path) -> None:
    from ray import tune

    space = {
        "model": "LISASoft", "dataset": "tiny", "data_path": str(Path("data").resolve()), "epochs": 3, "use_gpu": False,
        **SMALL, "learning_rate": tune.grid_search([1e-9, 0.01]),
    }  # fmt: skip
    with ray_session(None):
        options = tune.TuneConfig(metric="score", mode="max")
        grid = tune.Tuner(trainable, param_space=space, tune_config=options).fit()
        best = grid.get_best_result()
    assert [len(result.metrics_dataframe) for result in grid] == [3, 3]
    assert best.config["learning_rate"] == 0.01
    with best.checkpoint.as_directory() as checkpoint:
        assert len(list(Path(checkpoint).glob("*.pth"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=["int", "term", "kill"])
def test_interrupted_search_is_restored(folder: Path, driver: Any, number: signal.Signals) -> None:
    """The signal goes to the whole process group, as from a terminal, `timeout` and schedulers."""
    Path("space.yaml").write_text("learning_rate: [0.001, 0.002, 0.004]\n", encoding="utf-8")
    options = ["--epochs=60", "--num_samples=2"]
    process = driver(*options)
    wait_for(lambda: sum(map(len, epochs(folder).values())) >= 10, process)
    os.killpg(process.pid, number)
    output, _ = process.communicate(timeout=60)
    if number == signal.SIGKILL:
        time.sleep(5)  # Ray's processes notice and end
    else:
        assert process.returncode == 128 + number
        assert output.startswith("interrupted: ") and output.endswith("--resume\n") and output.count("\n") == 1
    before = epochs(folder)
    assert max(map(max, before.values())) < 60
    restored = driver(*options, "--resume")
    output, _ = restored.communicate(timeout=300)
    assert restored.returncode == 0, output
    assert [trial["status"] for trial in results(folder)["trials"]] == ["finished"] * 2
    for name, after in epochs(folder).items():
        known = before.get(name, [])
        assert after[: len(known)] == known and after[-1] == 60
        repeated = len(after) - 60
        assert repeated <= 5, "the trial did not continue from its checkpoint"


@pytest.mark.slow
def test_trial_whose_process_dies_continues_from_its_checkpoint(folder: Path, driver: Any) -> None:
    process = driver("--epochs=60", "--num_samples=1")
    wait_for(lambda: sum(map(len, epochs(folder).values())) >= 5, process)
    children = psutil.Process(process.pid).children(recursive=True)
    (worker,) = [child for child in children if "ImplicitFunc" in " ".join(child.cmdline())]
    worker.kill()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert len(epochs(folder)["trial_00000"]) <= 62, "epochs were trained again"
