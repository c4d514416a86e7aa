"""Checkpoint files: plain, atomic, and clear about what is wrong with them."""

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytest import MonkeyPatch

from recbole_lisa.errors import UsageError
from recbole_lisa.training.checkpoint import capture_rng, restore_rng
from recbole_lisa.training.checkpoint_file import FORMAT, last_file, load_checkpoint, save_checkpoint
from recbole_lisa.training.checkpoint_schema import load_optimizer
from tests.tiny import tiny_config, tiny_trainer


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


def test_interrupted_save_keeps_the_old_file(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
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


def test_folders_and_unreadable_files_are_neither_missing_nor_damaged(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=f"'{tmp_path}' is not a file; give the path of a .pth file"):
        load_checkpoint(tmp_path)
    path = tmp_path / "run.pth"
    save_checkpoint({"format": FORMAT, "epoch": 1}, path)
    monkeypatch.setattr("os.access", lambda name, mode: name != path)
    with pytest.raises(UsageError, match=f"^'{path}' cannot be read: permission denied$"):
        load_checkpoint(path)


def test_load_names_what_is_wrong_and_runs_no_code(tmp_path: Path) -> None:
    class Code:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return Path.touch, (tmp_path / "ran",)

    path = tmp_path / "run.pth"
    with pytest.raises(UsageError, match=r"there is no checkpoint '.*run\.pth'"):
        load_checkpoint(path)
    for content, message in (
        ({"format": FORMAT, "config": Code()}, r"run\.pth' is damaged or is .*: give a .pth file of a run$"),
        ({"state_dict": {}}, "not a checkpoint of recbole-lisa: format None, not"),
        ([1, 2], "not a checkpoint of recbole-lisa: format None, not"),
        ({"format": "other 7"}, "not a checkpoint of recbole-lisa: format 'other 7', not"),
    ):
        torch.save(content, path)
        with pytest.raises(UsageError, match=message):
            load_checkpoint(path)
    save_checkpoint({"format": FORMAT, "w": torch.zeros(1000)}, path)
    content = path.read_bytes()
    for before, behind, where in (
        (b"", b"\0", "there are bytes after its end"),
        (b"", b"x" * 100, "there are bytes after"),
        (content, b"", "there are bytes before its|give a .pth file"),  # zipfile of Python 3.13 refuses it, too
    ):
        path.write_bytes(before + content + behind)
        with pytest.raises(UsageError, match=rf"run\.pth' is damaged .*: ({where})"):
            load_checkpoint(path)
    save_checkpoint({"format": FORMAT, "surprise": 1}, path)
    with pytest.raises(UsageError, match=r"run\.pth' is damaged or forged: it has the unknown key 'surprise'"):
        load_checkpoint(path)
    path.write_bytes(content[:2000])
    with pytest.raises(UsageError, match=r"run\.pth' is damaged or is not a checkpoint"):
        load_checkpoint(path)
    assert not (tmp_path / "ran").exists()


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


def stepped(kind: type[torch.optim.Optimizer], **settings: Any) -> torch.optim.Optimizer:
    weight = torch.nn.Parameter(torch.ones(3, 2))
    optimizer = kind([weight], lr=0.01, **settings)
    weight.grad = torch.ones(3, 2).to_sparse() if kind is torch.optim.SparseAdam else torch.ones(3, 2)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "Adagrad", "RMSprop", "SparseAdam"])
def test_the_state_of_every_optimizer_comes_back(name: str) -> None:
    before, after = (stepped(getattr(torch.optim, name)) for _ in range(2))
    load_optimizer(after, before.state_dict())
    assert str(after.state_dict()) == str(before.state_dict())
    load_optimizer(stepped(torch.optim.SGD, momentum=0.9), stepped(torch.optim.SGD, momentum=0.9).state_dict())


@pytest.mark.parametrize("fused", [None, False, True])
def test_adam_continues_in_one_pass_from_a_state_of_either_kind(fused: bool | None) -> None:
    in_one_pass = stepped(torch.optim.Adam, fused=True)
    load_optimizer(in_one_pass, stepped(torch.optim.Adam, fused=fused).state_dict())
    assert in_one_pass.param_groups[0]["fused"] is True
    in_one_pass.step()


@pytest.mark.parametrize(
    ("part", "name", "value", "message"),
    [
        *(
            ("state", "exp_avg", x, r"exp_avg of the optimizer is .*, it must be finite numbers \(3, 2\)")
            for x in (torch.zeros(1), torch.full((3, 2), torch.nan), None, "x")
        ),
        (
            "state",
            "exp_avg_sq",
            torch.full((3, 2), -1.0),
            r"exp_avg_sq of the optimizer is \(3, 2\), it must be finite",
        ),
        (
            "state",
            "step",
            torch.tensor(-5.0),
            r"step of the optimizer is tensor\(-5\.\), it must be finite numbers \(\)",
        ),
        ("state", "step", torch.ones(3), r"step of the optimizer is \(3,\), it must be finite numbers \(\)"),
        (
            "state",
            "surprise",
            torch.zeros(3, 2),
            "the optimizer has .*surprise of a parameter, not exp_avg, exp_avg_sq",
        ),
        *(("param_groups", "lr", x, "lr of the optimizer is") for x in (None, "x", math.nan, math.inf, -1.0)),
        ("param_groups", "betas", None, r"betas of the optimizer is None, not \(0.9, 0.999\)"),
        ("param_groups", "eps", "x", "eps of the optimizer is 'x', not 1e-08"),
        ("param_groups", "amsgrad", True, "amsgrad of the optimizer is True, not False"),
        ("param_groups", "capturable", 1, "capturable of the optimizer is 1, not False"),
    ],
)
def test_a_forged_optimizer_is_named(part: str, name: str, value: Any, message: str) -> None:
    state = stepped(torch.optim.Adam).state_dict()
    state[part][0][name] = value
    with pytest.raises(ValueError, match=message):
        load_optimizer(stepped(torch.optim.Adam), state)
