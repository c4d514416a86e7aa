"""Several processes as one run: they exchange, train and evaluate like one, and end together."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from recbole_lisa.config.config import LISAConfig
from recbole_lisa.distributed import launch as launching
from recbole_lisa.distributed.launch import joins_torchrun, launch
from recbole_lisa.errors import ProcessFailedError, TrainingDivergedError, UsageError
from recbole_lisa.quick_start import run
from tests.distributed.two_processes import exchange, exit_silently, fail, train_and_evaluate
from tests.helpers import assert_close
from tests.tiny import TinyModel, tiny_config, tiny_settings

pytestmark = pytest.mark.usefixtures("isolated_run_dir")
# Plain gradient descent: Adam divides by the size of a gradient, and hides a factor that all of them share.
STILL = {"hidden_dropout_prob": 0.0, "epochs": 2, "hidden_size": 16, "learner": "sgd", "learning_rate": 0.1}
# A last batch of one window leaves the second process without any; one batch of evaluation leaves it without a user.
ODD = {**STILL, "train_batch_size": 47, "eval_batch_size": 50}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("LISASoft", "full_ranking", STILL),
    ("LISABase", "paper", {**ODD, "loss_type": "CE", "n_codewords": 5}),
    ("LISAMini", "full_ranking", {**STILL, "supervision": "last_position", "n_codewords": 5, "n_target_codewords": 9}),
    ("Transformer", "paper", {**STILL, "attn_dropout_prob": 0.0, "clip_grad_norm": {"max_norm": 0.1}}),
]


@pytest.fixture
def two(tmp_path: Path) -> LISAConfig:
    """A configuration of two processes."""
    return tiny_config(tmp_path, nproc=2)


def test_two_processes_exchange_what_they_have(two: LISAConfig) -> None:
    first, second = launch(exchange, two)
    assert (first["rank"], second["rank"], first["n"], second["n"]) == (0, 1, 2, 2)
    assert first["sum"] == second["sum"] == [3.0, 30.0]
    assert first["copied"] == second["copied"] == [1.0, 1.0]
    assert first["named"] == second["named"] == "named by 0"
    assert first["gradients"] == second["gradients"] == [[[3.0]], [5.0], None]
    assert first["frozen"] is None


def test_two_processes_train_and_evaluate_as_one_does(two: LISAConfig, tmp_path: Path) -> None:
    routed = ("RoutingTransformer", "full_ranking", {**ODD, "window_size": 2})
    both = launch(train_and_evaluate, two, str(tmp_path), [*CASES, routed])
    (alone,) = train_and_evaluate(two, str(tmp_path), CASES)
    for first, second in zip(*both, strict=True):
        assert first["weights"].equal(second["weights"]), "parameters and centroids are the same in all processes"
        assert (first["parts"], first["valid"], first["test"]) == (second["parts"], second["valid"], second["test"])
    for found, wanted in zip(both[0], alone, strict=False):
        assert_close(torch.tensor(found["parts"]), torch.tensor(wanted["parts"]))
        assert_close(found["weights"], wanted["weights"])
        assert found["test"] == pytest.approx(wanted["test"], abs=1e-6)
        assert found["valid"] is None or found["valid"] == pytest.approx(wanted["valid"], abs=1e-6)


def test_a_run_of_two_processes_reports_once_and_goes_on_in_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = tiny_settings(tmp_path, **STILL, result_file="two.json", show_progress=False)
    both = run("LISABase", "tiny", config_dict={**settings, "epochs": 1, "nproc": 2})
    printed = capfd.readouterr()
    assert printed.out.count("LISABase on tiny") == 1
    assert printed.err.count("epoch 1 training") == 1
    assert json.loads(Path("two.json").read_text(encoding="utf-8")) == both
    assert (both["nproc"], both["epochs_run"]) == (2, 1)
    assert both["sequences_per_second"] == pytest.approx(48 / both["seconds_per_epoch"])  # 24 users, two windows each
    assert len(list(Path("log/LISABase").iterdir())) == len(list(Path("log_tensorboard").iterdir())) == 1
    assert len(list((tmp_path / "saved").iterdir())) == 2
    resumed = run("LISABase", "tiny", config_dict={**settings, "resume": "auto"})
    assert (resumed["nproc"], resumed["epochs_run"]) == (1, 2)
    assert resumed["checkpoint"] == both["checkpoint"]
    alone = run("LISABase", "tiny", config_dict={**settings, "result_file": None})
    assert resumed["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    assert resumed["test"] == pytest.approx(alone["test"], abs=1e-6)


@pytest.mark.parametrize(
    ("way", "kind", "message"),
    [
        ("usage", UsageError, "topk is wrong"),
        ("diverged", TrainingDivergedError, "the loss is nan"),
        ("bug", ProcessFailedError, "process 1 of 2 failed: KeyError: 'missing'"),
        ("kill", ProcessFailedError, r"process 1 of 2 was killed by signal 9 \(SIGKILL\)"),
        ("busy", ProcessFailedError, r"process 1 of 2 was killed by signal 9 \(SIGKILL\)"),
    ],
)
def test_the_end_of_one_process_ends_all_and_tells_why(
    two: LISAConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, kind: type[Exception], message: str
) -> None:
    monkeypatch.setattr(launching, "LAST_WORDS_S", 1.0)
    begun = time.monotonic()
    with pytest.raises(kind, match=f"^{message}$") as caught:
        launch(fail, two, way, str(tmp_path))
    assert time.monotonic() - begun < 30
    assert ("in fail" in getattr(caught.value, "details", "")) is (way == "bug")
    assert not any(is_running(number, tmp_path) for number in (0, 1))


def test_an_interruption_leaves_no_process(two: LISAConfig, tmp_path: Path) -> None:
    def interrupt() -> None:
        while not all(Path(tmp_path, f"{number}.pid").is_file() for number in (0, 1)):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    # What a shell starts in the background ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            launch(fail, two, "interrupt", str(tmp_path))
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()
    assert not any(is_running(number, tmp_path) for number in (0, 1))


def is_running(number: int, folder: Path) -> bool:
    """Whether the process that wrote its number there still exists, other than as an entry to be reaped."""
    try:
        return psutil.Process(int(Path(folder, f"{number}.pid").read_text())).status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, ValueError, FileNotFoundError):
        return False


def test_a_process_that_ends_without_a_word_is_named(two: LISAConfig) -> None:
    with pytest.raises(ProcessFailedError, match="^process [01] of 2 ended with status 7$"):
        launch(exit_silently, two)


def test_a_class_that_other_processes_cannot_import_is_refused(tmp_path: Path) -> None:
    class Local(TinyModel):
        pass

    with pytest.raises(UsageError, match="nproc=2: this run cannot be sent to other processes .*Local"):
        launch(exchange, tiny_config(tmp_path, model=Local, nproc=2))


@pytest.mark.parametrize(("nproc", "joins"), [(1, True), (3, True), (2, False)])
def test_torchrun_is_joined_when_nproc_agrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nproc: int, joins: bool
) -> None:
    config = tiny_config(tmp_path, nproc=nproc)
    assert not joins_torchrun(config)
    for name, value in {"RANK": 1, "WORLD_SIZE": 3, "LOCAL_RANK": 1, "MASTER_ADDR": "x", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    if joins:
        assert joins_torchrun(config)
    else:
        with pytest.raises(UsageError, match="nproc is 2, but torchrun started 3 processes: leave nproc out"):
            joins_torchrun(config)
