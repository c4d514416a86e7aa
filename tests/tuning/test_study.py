"""A search before its trials: the folder, the lock, the resources, the signals. No test starts Ray."""

import json
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pytest import MonkeyPatch

from recbole_lisa.errors import UsageError
from recbole_lisa.files import Termination, locked
from recbole_lisa.tuning import study as module
from recbole_lisa.tuning.session import check_resources, ray_session
from recbole_lisa.tuning.space import Domain
from recbole_lisa.tuning.study import Study, run_study
from recbole_lisa.tuning.trial import build_config
from tests.tiny import write_tiny_dataset

pytest.importorskip("ray.tune")
pytest.importorskip("pyarrow")


def study(**more: Any) -> Study:
    fixed = {"model": "LISASoft", "dataset": "ml-100k", "protocol": None, "config_files": [], "epochs": 5}
    settings: dict[str, Any] = {
        "fixed": fixed, "space": {"n_codewords": Domain("choice", (8, 16))}, "default": {"n_codewords": 16},
        "search": "random", "num_samples": 3, "halving": None, "seed": 2020, "valid_metric": "NDCG@10",
        "folder": Path("none"), "resources": (1.0, None),
    }  # fmt: skip
    return Study(**{**settings, **more})


@pytest.mark.parametrize(
    ("files", "resume", "message"),
    [
        ({}, True, "to resume: leave --resume out"),
        ({"search.json": "{"}, True, "is damaged"),
        ({"search.json": '{"seed": 1}'}, True, "seed is 1 there and 2020 here"),
        ({"search.json": '{"format": "recbole-lisa search 1"}'}, True, "format is 'recbole-lisa search 1' there"),
        ({"search.json": "{}"}, False, "already has a search: continue it with --resume"),
        ({"best.yaml": "", "results.csv": ""}, False, "has results.csv, best.yaml and no search.json"),
    ],
)
def test_folder_of_another_search_is_refused(tmp_path: Path, files: dict[str, str], resume: bool, message: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        run_study(study(folder=tmp_path), address=None, resume=resume)
    assert message in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} == set(files)


def test_same_search_may_have_more_trials_and_other_resources() -> None:
    assert study(num_samples=9, resources=(2.0, 1.0)).identity() == study().identity()
    for other in ({"seed": 1}, {"search": "optuna"}, {"halving": {"max_t": 6}}, {"valid_metric": "Hit@10"}):
        assert study(**other).identity() != study().identity()
    assert study().identity() == json.loads(json.dumps(study().identity()))


def test_second_driver_in_one_folder_is_refused(tmp_path: Path) -> None:
    with locked(tmp_path / ".lock", ""), pytest.raises(UsageError, match="another `recbole-lisa tune` runs in"):
        run_study(study(folder=tmp_path), address=None, resume=False)


def test_a_space_that_the_model_refuses_and_no_optuna_leave_nothing(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    space, new = {"n_heads": Domain("choice", (3, 5))}, {"folder": tmp_path / "new"}
    fixed = {**study().fixed, "model": "Transformer"}
    with pytest.raises(UsageError, match="refuses every combination of the space, the last one because n_heads"):
        run_study(study(fixed=fixed, space=space, default={"n_heads": 2}, **new), address=None, resume=False)
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="--search=optuna needs optuna: pip install"):
        run_study(study(search="optuna", **new), address=None, resume=False)
    assert list(tmp_path.iterdir()) == []


def test_data_is_read_once(isolated_run_dir: Path, monkeypatch: MonkeyPatch) -> None:
    write_tiny_dataset(isolated_run_dir / "data")
    small = {"topk": [5], "valid_metric": "NDCG@5", "use_gpu": False, "data_path": str(isolated_run_dir / "data")}
    fixed = {**study().fixed, "dataset": "tiny", **small}
    kept = module.save_data(fixed, isolated_run_dir)
    assert kept == {**fixed, "dataset_save_path": str(isolated_run_dir / "tiny.dataset")}
    monkeypatch.setattr("recbole_lisa.data.loading.atomic.read_columns", None)  # the text is not read again
    module.create_dataset(build_config(kept))
    with pytest.raises(UsageError, match="topk asks for the 100 best of only 30 items"):
        module.save_data({**kept, "topk": [5, 100]}, isolated_run_dir)


def test_what_is_refused_of_the_data_starts_no_ray(isolated_run_dir: Path, monkeypatch: MonkeyPatch) -> None:
    write_tiny_dataset(isolated_run_dir / "data")
    monkeypatch.setattr(module, "ray_session", lambda _: pytest.fail("Ray starts"))
    fixed = {**study().fixed, "dataset": "tiny", "topk": [10, 100], "data_path": str(isolated_run_dir / "data")}
    with pytest.raises(UsageError, match="topk asks for the 100 best of only 30 items"):
        run_study(study(fixed=fixed, folder=isolated_run_dir / "search"), address=None, resume=False)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        *((address, "no Ray cluster answers there") for address in ("127.0.0.1:1", "ray://[::1]:1", "a..b:6379")),
        *(
            (address, "must be auto, local or HOST:PORT")
            for address in ("127.0.0.1:99999", "a:x", "a", "", ":1", "a:²")
        ),
    ],
)
def test_an_address_without_an_answer_is_refused_before_data_is_read(
    tmp_path: Path, monkeypatch: MonkeyPatch, address: str, message: str
) -> None:
    monkeypatch.setattr(module, "ensure_data", lambda _: pytest.fail("data is read"))
    with pytest.raises(UsageError, match=re.escape(f"--address is '{address}'") + f".* {message}"):
        run_study(study(folder=tmp_path / "search"), address=address, resume=False)


def test_resources_that_no_node_has_are_refused(monkeypatch: MonkeyPatch) -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 4.0}},
        {"Alive": True, "Resources": {"CPU": 2.0, "GPU": 1.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 6.0, "GPU": 1.0})
    assert [check_resources(*numbers) for numbers in ((2, None), (4, 0), (2, 0.25))] == [1, 0, 0.25]
    with pytest.raises(UsageError) as caught:
        check_resources(4, 0.25)
    assert str(caught.value) == (
        "--cpus_per_trial=4 and --gpus_per_trial=0.25 are more than any node of Ray has (4 cores and 0 GPUs; "
        "2 cores and 1 GPUs): lower them"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, Termination), (signal.SIGINT, KeyboardInterrupt)])
def test_signals_end_the_session_and_handlers_are_put_back(
    monkeypatch: MonkeyPatch, number: signal.Signals, error: type[BaseException]
) -> None:
    monkeypatch.setattr("ray.init", lambda **_: signal.signal(signal.SIGTERM, signal.SIG_IGN))
    monkeypatch.setattr("ray.shutdown", lambda: None)
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    before = signal.getsignal(signal.SIGTERM)
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(error) as caught, ray_session(None):
            signal.raise_signal(number)
    finally:
        signal.signal(signal.SIGINT, interrupt)
    assert signal.getsignal(signal.SIGTERM) is before
    if isinstance(caught.value, Termination):
        assert caught.value.code == 143


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_signal_whose_exception_is_dropped_comes_again(monkeypatch: MonkeyPatch) -> None:
    class Dropped:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    dropped: list[object] = []
    monkeypatch.setattr("ray.init", lambda **_: None)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    monkeypatch.setattr("sys.unraisablehook", lambda one: dropped.append(one.exc_type))
    monkeypatch.setattr("recbole_lisa.tuning.session._AGAIN_SECONDS", 0.05)
    with pytest.raises(Termination) as caught, ray_session(None):
        Dropped()
        time.sleep(30)
    assert caught.value.code == 143 and dropped == [KeyboardInterrupt]
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
