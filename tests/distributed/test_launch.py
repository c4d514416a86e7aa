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
from pytest import CaptureFixture, MonkeyPatch
from recbole.data.interaction import Interaction

from benchmarks.standin import FIELDS
from recbole_lisa.config.fields import FieldNames
from recbole_lisa.distributed import processes
from recbole_lisa.distributed.launch import launch
from recbole_lisa.distributed.processes import started_by_torchrun
from recbole_lisa.errors import ProcessFailedError, UsageError
from recbole_lisa.quick_start import run
from recbole_lisa.training.step import rows_of_process
from tests.distributed.two_processes import exchange, fail, train_and_evaluate
from tests.helpers import assert_close
from tests.tiny import TinyModel, tiny_config, tiny_settings

pytestmark = pytest.mark.usefixtures("isolated_run_dir")
# Plain gradient descent: Adam divides by the size of a gradient, and hides a factor that all of them share.
STILL = {"hidden_dropout_prob": 0.0, "epochs": 2, "hidden_size": 16, "learner": "sgd", "learning_rate": 0.1}
# A last batch of one window leaves the second process without any; one batch of evaluation leaves it without a user.
ODD = {**STILL, "train_batch_size": 47, "eval_batch_size": 50}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("LISASoft", "full_ranking", {**STILL, "reconstruction_weight": 0.0, "eval_seen": "both"}),
    ("LISABase", "paper", {**ODD, "loss_type": "CE", "n_codewords": 5}),
    ("LISAMini", "full_ranking", {**STILL, "supervision": "last_position", "n_codewords": 5, "n_target_codewords": 9}),
    ("Transformer", "paper", {**STILL, "attn_dropout_prob": 0.0, "clip_grad_norm": {"max_norm": 0.1}}),
    ("Transformer", "paper", {**ODD, "loss_type": "SSM", "shared_negatives": 9}),
    ("LISASoft", "paper", {**ODD, "reconstruction_weight": 0.0, "windows": "overlapping", "MAX_ITEM_LIST_LENGTH": 4}),
]


TWO = {"nproc": 2, "device": torch.device("cpu")}


def test_two_processes_exchange_what_they_have() -> None:
    first, second = launch(exchange, TWO)
    assert (first["rank"], second["rank"], first["n"], second["n"]) == (0, 1, 2, 2)
    assert first["sum"] == second["sum"] == [3.0, 30.0]
    assert first["named"] == second["named"] == "named by 0"


def test_two_processes_train_and_evaluate_as_one_does(tmp_path: Path) -> None:
    routing, weighted = {**ODD, "window_size": 2}, {**STILL, "reconstruction_weight": 0.1}
    averaged = [("RoutingTransformer", "full_ranking", routing), ("LISASoft", "full_ranking", weighted)]
    both = launch(train_and_evaluate, TWO, str(tmp_path), [*CASES, *averaged])
    (alone,) = train_and_evaluate(TWO, str(tmp_path), CASES)
    for first, second in zip(*both, strict=True):
        assert first == second, "losses, parameters, centroids and metrics are the same in all processes"
    for two, one in zip(both[0], alone, strict=False):
        assert_close(torch.tensor(two["parts"]), torch.tensor(one["parts"]))
        assert_close(torch.tensor(two["weights"]), torch.tensor(one["weights"]))
        assert two["test"] == pytest.approx(one["test"], abs=1e-6)
        assert one["test"].keys() == two["test"].keys()
        assert two["valid"] is None or two["valid"] == pytest.approx(one["valid"], abs=1e-6)


@pytest.mark.parametrize(
    ("lengths", "targets", "fractions"),
    [([1, 2, 3], True, [4 / 6, 2 / 6]), ([1, 2, 3], False, [2 / 3, 1 / 3]), ([5], True, [1, 0])],
)
def test_every_row_of_a_batch_goes_to_one_process(lengths: list[int], targets: bool, fractions: list[float]) -> None:
    fields = FieldNames(FIELDS)
    batch = Interaction({fields.item_length: torch.tensor(lengths)})
    if targets:
        batch.update(Interaction({fields.target_list: (torch.arange(9) < torch.tensor(lengths).unsqueeze(1)).long()}))
    parts = [rows_of_process(batch, fields, number, 2) for number in range(2)]
    assert [fraction for _, fraction in parts] == pytest.approx(fractions)
    rows = [row for part, fraction in parts if fraction for row in part[fields.item_length].tolist()]
    assert sorted(rows) == lengths and all(len(part) for part, _ in parts)


def test_a_run_of_two_processes_reports_once_and_goes_on_in_one(tmp_path: Path, capfd: CaptureFixture[str]) -> None:
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
        ("bug", ProcessFailedError, "process 1 of 2 failed: KeyError: 'missing'"),
        ("status", ProcessFailedError, "process 1 of 2 ended with status 7"),
        ("kill", ProcessFailedError, r"process 1 of 2 was killed by signal 9 \(SIGKILL\)"),
        ("busy", ProcessFailedError, r"process 1 of 2 was killed by signal 9 \(SIGKILL\)"),
        ("interrupt", KeyboardInterrupt, ""),
    ],
)
def test_the_end_of_one_process_ends_all(tmp_path: Path, way: str, kind: type[BaseException], message: str) -> None:
    files, begun = [tmp_path / f"{number}.pid" for number in (0, 1)], time.monotonic()

    def interrupt() -> None:
        while not all(file.is_file() for file in files):
            time.sleep(0.05)
        if way == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)

    # What a shell starts in the background ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    try:
        with pytest.raises(kind, match=f"^{message}$") as caught:
            launch(fail, TWO, way, str(tmp_path))
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()
    assert time.monotonic() - begun < 30
    assert ("in fail" in getattr(caught.value, "details", "")) is (way == "bug")
    for number in (int(file.read_text() or 0) for file in files):  # an entry to be reaped may be left
        assert not psutil.pid_exists(number) or psutil.Process(number).status() == psutil.STATUS_ZOMBIE


def test_a_class_that_other_processes_cannot_import_is_refused(tmp_path: Path) -> None:
    class Local(TinyModel):
        pass

    with pytest.raises(UsageError, match="nproc=2: this run cannot be sent to other processes .*Local"):
        launch(exchange, tiny_config(tmp_path, model=Local, nproc=2))


def test_more_processes_than_cores_are_warned_of(monkeypatch: MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(processes, "n_processes", lambda: 3)
    for cores, warned in ((3, False), (2, True)):
        monkeypatch.setattr(processes, "n_cores", lambda cores=cores: cores)
        processes.warn_if_crowded("cuda")
        assert not caplog.records
        processes.warn_if_crowded("cpu")
        assert ("nproc is 3, but there are 2 CPU cores: fewer are faster" in caplog.text) == warned


def test_torchrun_is_joined_when_nproc_agrees(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    configs = [tiny_config(tmp_path, nproc=nproc) for nproc in (1, 3, 2)]
    assert not any(started_by_torchrun(config) for config in configs)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert all(started_by_torchrun(config) for config in configs[:2])
    with pytest.raises(UsageError, match="nproc is 2, but torchrun started 3 processes: leave nproc out"):
        started_by_torchrun(configs[2])
