"""Checkpoint files: plain, atomic, and clear about what is wrong with them."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from recbole_lisa.errors import UsageError
from recbole_lisa.training.checkpoint import (
    FORMAT,
    capture_rng,
    last_file,
    load_checkpoint,
    restore_rng,
    save_checkpoint,
)
from tests.tiny import tiny_config, tiny_trainer


def test_load_gives_back_what_save_wrote(tmp_path: Path) -> None:
    state = {"format": FORMAT, "epoch": 3, "score": float("-inf"), "state_dict": {"w": torch.arange(5.0)}}
    save_checkpoint(state, tmp_path / "run.pth")
    loaded = load_checkpoint(tmp_path / "run.pth")
    assert loaded.pop("state_dict")["w"].equal(torch.arange(5.0))
    assert loaded == {"format": FORMAT, "epoch": 3, "score": float("-inf")}


@pytest.mark.usefixtures("isolated_run_dir")
@pytest.mark.parametrize("protocol", ["full_ranking", "paper"])
def test_files_of_a_run_load_with_weights_only(tmp_path: Path, protocol: str) -> None:
    trainer, (train, valid, _) = tiny_trainer(tiny_config(tmp_path, protocol, epochs=2))
    trainer.fit(train, valid)
    for path in (trainer.saved_model_file, last_file(trainer.saved_model_file)):
        checkpoint = torch.load(path, weights_only=True)
        recbole_keys = {"config", "epoch", "cur_step", "best_valid_score", "state_dict", "optimizer"}
        assert recbole_keys | {"other_parameter", "rng", "versions", "protocol"} <= checkpoint.keys()
        assert checkpoint["config"]["learning_rate"] == 0.05
        assert (checkpoint["model"], checkpoint["dataset"]) == ("TinyModel", "tiny")


def test_interrupted_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.pth"
    save_checkpoint({"format": FORMAT, "epoch": 1}, path)

    def half_of_a_save(state: object, stream: object) -> None:
        stream.write(b"PK\x03\x04 half")  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", half_of_a_save)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint({"format": FORMAT, "epoch": 2}, path)
    assert load_checkpoint(path)["epoch"] == 1
    assert list(tmp_path.iterdir()) == [path]


def test_load_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no checkpoint '.*gone\.pth'"):
        load_checkpoint(tmp_path / "gone.pth")


def test_load_refuses_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "run.pth"
    save_checkpoint({"format": FORMAT, "w": torch.zeros(1000)}, path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(UsageError, match=r"run\.pth' is damaged or is no checkpoint"):
        load_checkpoint(path)


def test_load_refuses_a_file_with_code_and_does_not_run_it(tmp_path: Path) -> None:
    class Code:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "ran",)

    torch.save({"format": FORMAT, "config": Code()}, tmp_path / "foreign.pth")
    with pytest.raises(UsageError, match=r"foreign\.pth' is damaged or is no checkpoint of recbole-lisa: [^.]*$"):
        load_checkpoint(tmp_path / "foreign.pth")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [{"state_dict": {}}, [1, 2], {"format": "other 7"}], ids=str)
def test_load_refuses_a_foreign_format(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "foreign.pth")
    with pytest.raises(UsageError, match="no checkpoint of recbole-lisa: format"):
        load_checkpoint(tmp_path / "foreign.pth")


def test_generators_continue_where_they_were_captured() -> None:
    def draws() -> list[float]:
        return [random.random(), float(np.random.rand()), float(np.random.randn()), float(torch.rand(()))]

    random.gauss(0.0, 1.0)
    np.random.randn()  # leaves a second value waiting inside the generator
    state = capture_rng()
    expected = draws()
    draws()
    restore_rng(state)
    assert draws() == expected


def test_last_file_lies_beside_the_best_one() -> None:
    assert last_file("saved/run-1.pth") == Path("saved/run-1-last.pth")
