"""The function that Ray runs: what it reports, and how it continues from a checkpoint of Ray."""

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recbole_lisa.errors import UsageError
from recbole_lisa.tuning import trainable, trial
from recbole_lisa.tuning.trial import build_config, check_validation
from tests.helpers import run_python
from tests.tiny import write_tiny_dataset

SMALL = {
    "model": "LISASoft", "dataset": "tiny", "epochs": 4, "hidden_size": 8, "inner_size": 8, "n_codebooks": 2,
    "train_batch_size": 8, "topk": [5, 10], "MAX_ITEM_LIST_LENGTH": 8, "learning_rate": 0.05, "n_codewords": 4,
    "use_gpu": False,
}  # fmt: skip


class StoppedByRayError(BaseException):
    """What a trial sees when Ray stops it."""


class FakeSession:
    """Keeps reports and checkpoints as Ray does; it is its own latest checkpoint."""

    from_directory = str  # Ray's Checkpoint.from_directory

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reports: list[dict[str, Any]] = []
        self.stop_after: int | None = None

    def latest(self) -> "FakeSession | None":
        """Ray's get_checkpoint."""
        return self if self.reports else None

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[Path]:
        """The folder of the latest checkpoint, with a file of Ray."""
        kept = self.folder / f"checkpoint-{len(self.reports) - 1}"
        (kept / ".metadata.pkl").touch()
        yield kept

    def report(self, metrics: dict[str, Any], checkpoint: str) -> None:
        """Keep a report and a copy of its checkpoint."""
        kept = self.folder / f"checkpoint-{len(self.reports)}"
        shutil.copytree(checkpoint, kept)
        assert ".metadata.pkl" not in {path.name for path in kept.iterdir()}
        self.reports.append(metrics)
        if metrics["epoch"] == self.stop_after:
            raise StoppedByRayError


@pytest.fixture
def config(isolated_run_dir: Path) -> dict[str, Any]:
    write_tiny_dataset(isolated_run_dir / "data")
    return {**SMALL, "data_path": str(isolated_run_dir / "data")}


def run(config: dict[str, Any], session: FakeSession, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    start = len(session.reports)
    monkeypatch.setattr(trial, "_ray_functions", lambda: (session, session.latest, session.report))
    trainable(config)
    return session.reports[start:]


def test_trial_continues_from_its_checkpoint(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = FakeSession(tmp_path / "whole"), FakeSession(tmp_path / "parts")
    reports = run(config, whole, monkeypatch)
    assert [report["epoch"] for report in reports] == [report["pruning_epoch"] for report in reports] == [1, 2, 3, 4]
    assert [report["finished"] for report in reports] == [False, False, False, True]
    for number, report in enumerate(reports):
        assert report["score"] == max(earlier["ndcg@10"] for earlier in reports[: number + 1])
        assert report["best"]["ndcg@10"] == report["score"] == reports[report["best_epoch"] - 1]["ndcg@10"]
    names = sorted(path.name.replace("-last", "") for path in (tmp_path / "whole" / "checkpoint-3").glob("*.pth"))
    assert len(names) == 2 and names[0] == names[1]

    parts.stop_after = 2
    with pytest.raises(StoppedByRayError):
        run(config, parts, monkeypatch)
    parts.stop_after = None
    assert [report["epoch"] for report in run(config, parts, monkeypatch)] == [3, 4]
    assert parts.reports == reports
    (again,) = run(config, parts, monkeypatch)  # restored after its last epoch: the best epoch is reported again
    assert again == {**reports[-1], **reports[-1]["best"]}


def test_early_stopping_ends_a_trial(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.update(epochs=30, stopping_step=1, run_to_end={"n_codewords": 4})
    reports = run(config, FakeSession(tmp_path / "session"), monkeypatch)
    assert 2 <= len(reports) < 30
    assert [report["finished"] for report in reports] == [False] * (len(reports) - 1) + [True]
    assert not any("pruning_epoch" in report for report in reports)


def test_mistakes_are_one_line(config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = FakeSession(tmp_path / "session")
    with pytest.raises(UsageError, match="no 'model' or no 'dataset'"):
        run({"model": "LISASoft"}, session, monkeypatch)
    with pytest.raises(UsageError, match="unknown key 'epocs'"):
        run({**config, "epocs": 3}, session, monkeypatch)
    with pytest.raises(UsageError, match="protocol 'paper' has no validation items .* write --protocol=full_ranking"):
        run({**config, "protocol": "paper"}, session, monkeypatch)
    assert session.reports == []


def test_configuration_of_a_trial_takes_files_and_texts(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("n_layers: 2\nhidden_dropout_prob: 0.3\n", encoding="utf-8")
    names = {"model": "LISASoft", "dataset": "ml-100k", "protocol": "paper", "config_files": [str(file)]}
    config = build_config({**names, "epochs": "7", "hidden_dropout_prob": 0.2}, show_progress=False)
    shown = [config[key] for key in ("protocol", "n_layers", "hidden_dropout_prob", "epochs", "show_progress")]
    assert shown == ["paper", 2, 0.2, 7, False]
    kept = build_config({**names, "eval_args": "{split: {LS: valid_and_test}}"})
    check_validation(kept)
    assert kept["eval_args"]["mode"] == {"valid": "uni100", "test": "uni100"}


@pytest.mark.parametrize("config", [None, [1], "LISASoft"])
def test_trainable_takes_settings_by_key(config: Any) -> None:
    with pytest.raises(UsageError, match="the configuration of a trial is .*, it must hold settings by key"):
        trainable(config)


@pytest.mark.parametrize("package", ["ray.tune", "pyarrow"])
def test_trainable_without_ray_names_the_extra(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=r"a search needs Ray Tune .*pip install -e '.*\[tune\]'"):
        trainable({})


def test_package_imports_without_torch_and_ray() -> None:
    code = "import sys, recbole_lisa.tuning; print({'torch', 'ray', 'recbole'} & {*sys.modules})"
    assert run_python(code)[0] == "set()\n"
