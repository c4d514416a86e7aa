"""What the tests let several processes do; each function gets the configuration and is called in all of them."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from recbole.utils import init_seed

from recbole_lisa.config.config import LISAConfig
from recbole_lisa.data.dataloader import create_loaders
from recbole_lisa.data.dataset import create_dataset
from recbole_lisa.distributed.processes import (
    copy_from_first,
    from_first,
    gathered,
    n_processes,
    rank,
    sum_in_place,
    wait_for_all,
)
from recbole_lisa.errors import TrainingDivergedError, UsageError
from recbole_lisa.training.shares import sum_gradients
from recbole_lisa.training.trainer import LISATrainer
from tests.tiny import tiny_config


def exchange(_: LISAConfig) -> list[dict[str, Any]]:
    """Everything that can be sent, by process."""
    mine = torch.tensor([1.0, 10.0]) * (rank() + 1)
    copied = torch.full((2,), float(rank() + 1))
    copy_from_first([copied])
    model = torch.nn.Linear(1, 1)
    frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    nowhere = torch.nn.Parameter(torch.ones(2))
    model.weight.grad = torch.full((1, 1), float(rank() + 1))
    if rank() == 1:
        model.bias.grad = torch.full((1,), 5.0)
    sum_gradients([model.weight, frozen, model.bias, nowhere])
    found = {
        "rank": rank(),
        "n": n_processes(),
        "sum": sum_in_place(mine).tolist(),
        "copied": copied.tolist(),
        "named": from_first(f"named by {rank()}"),
        "gradients": [None if p.grad is None else p.grad.tolist() for p in (model.weight, model.bias, nowhere)],
        "frozen": frozen.grad,
        "threads": torch.get_num_threads(),
    }
    wait_for_all()
    return gathered(found)


def train_and_evaluate(config: LISAConfig, folder: str, cases: list[tuple[str, str, dict[str, Any]]]) -> list[Any]:
    """(losses, weights, metrics) of each case of (model, protocol, settings), from every process.

    In one process `folder` and the cases give the same runs without company.
    """
    results = []
    for model, protocol, settings in cases:
        own = tiny_config(Path(folder), protocol, model, **settings)  # type: ignore[arg-type]  # a name serves
        train, valid, test = create_loaders(own, create_dataset(own))
        init_seed(own["seed"], own["reproducibility"])
        trainer = LISATrainer(own, own.model_class(own, train.dataset))
        trainer.fit(train, valid, saved=False)
        weights = torch.cat([x.flatten().float() for x in trainer.model.state_dict().values()])
        metrics = trainer.evaluate(test, load_best_model=False)
        parts = [part for epoch in trainer.history for part in epoch["parts"]]
        results.append({"parts": parts, "weights": weights, "valid": trainer.best_valid_result, "test": metrics})
    return gathered(results)


def fail(_: LISAConfig, way: str, folder: str) -> None:
    """End the second process in some way while the first one waits for it, or is busy for a minute."""
    Path(folder, f"{rank()}.pid").write_text(str(os.getpid()), encoding="utf-8")
    wait_for_all()
    if rank() == 1 and way != "interrupt":
        if way == "usage":
            raise UsageError("topk is wrong")
        if way == "diverged":
            raise TrainingDivergedError("the loss is nan")
        if way == "bug":
            raise KeyError("missing")
        os.kill(os.getpid(), signal.SIGKILL)
    if way in ("busy", "interrupt"):
        time.sleep(60)
    wait_for_all()


def exit_silently(_: LISAConfig) -> None:
    """End without a word."""
    os._exit(7)
