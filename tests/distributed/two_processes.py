"""What the tests run in two processes; each function gets the configuration and is called in all of them."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

from recbole_lisa.distributed.processes import from_first, gathered, n_processes, rank, sum_in_place
from recbole_lisa.errors import UsageError


def exchange(_: Any) -> list[dict[str, Any]]:
    """Everything that can be sent, by process."""
    total = sum_in_place(torch.tensor([1.0, 10.0]) * (rank() + 1)).tolist()
    return gathered({"rank": rank(), "n": n_processes(), "sum": total, "named": from_first(f"named by {rank()}")})


def train_and_evaluate(_: Any, folder: str, cases: list[tuple[str, str, dict[str, Any]]]) -> list[Any]:
    """(losses, weights, metrics) of each case of (model, protocol, settings), from every process.

    Called in a single process, it gives the same runs in one process.
    """
    from recbole.utils import init_seed

    from recbole_lisa.training.trainer import LISATrainer
    from tests.tiny import tiny_config, tiny_loaders

    results = []
    for model, protocol, settings in cases:
        config = tiny_config(Path(folder), protocol, model, **settings)
        train, valid, test = tiny_loaders(config)
        init_seed(config["seed"], config["reproducibility"])
        torch.manual_seed(config["seed"] + rank())  # the first process's parameters are sent to the others
        trainer = LISATrainer(config, config.model_class(config, train.dataset))
        trainer.fit(train, valid, saved=False)
        weights = torch.cat([x.flatten().float() for x in trainer.model.state_dict().values()])
        metrics = trainer.evaluate(test, load_best_model=False)
        parts = [part for epoch in trainer.history for part in epoch["parts"]]
        valid_metrics = trainer.best_valid_result
        results.append({"parts": parts, "weights": weights.tolist(), "valid": valid_metrics, "test": metrics})
    return gathered(results)


def fail(_: Any, way: str, folder: str) -> None:
    """End the second process in some way while the first one waits for it, or is busy for a minute."""
    Path(folder, f"{rank()}.pid").write_text(str(os.getpid()), encoding="utf-8")
    gathered(None)
    if rank() == 1 and way != "interrupt":
        if way == "usage":
            raise UsageError("topk is wrong")
        if way == "bug":
            raise KeyError("missing")
        if way == "status":
            os._exit(7)
        os.kill(os.getpid(), signal.SIGKILL)
    if way in ("busy", "interrupt"):
        time.sleep(60)
    gathered(None)
