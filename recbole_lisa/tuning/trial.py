"""One trial, in a process of its own: an ordinary run that reports each validation and can be killed at any time."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from recbole_lisa.errors import TrainingDivergedError, UsageError
from recbole_lisa.quick_start import run_configured
from recbole_lisa.training.trainer import LISATrainer
from recbole_lisa.tuning.plan import Request
from recbole_lisa.tuning.space import Settings

Report = Callable[[dict[str, Any]], None]
"""Takes a report of a trial, and may raise to stop it."""


def trial_folder(folder: Path, number: int) -> Path:
    """Where a trial keeps checkpoints and logs."""
    return folder / "trials" / f"{number:04d}"


def surroundings(folder: Path, dataset: str, *, use_gpu: bool) -> Settings:
    """Settings of a trial that change nothing that is learnt.

    Args:
        folder: Of the search.
        dataset: Name of the data set, for the saved copy that all trials read.
        use_gpu: Whether a trial is given a share of a GPU; which one is for Ray to choose.
    """
    return {
        "show_progress": False,
        "dataset_save_path": str(folder / f"{dataset}.dataset"),
        **({} if use_gpu else {"use_gpu": False}),
    }


def run_trial_on_ray(arguments: tuple[Mapping[str, Any], int, str]) -> None:
    """What Tune calls in the process of a trial: `common`, `number` and `chosen`, as JSON, of `run_trial`."""
    from recbole_lisa.tuning.ray_adapter import report

    common, number, chosen = arguments
    run_trial(common, number, json.loads(chosen), report)


def run_trial(common: Mapping[str, Any], number: int, chosen: Settings, report: Report) -> None:
    """Train one trial to its end, from its own newest checkpoint if it has one.

    The last report has `end`: finished, or failed with `problem` where trying again would fail again.

    Args:
        common: `request` (of `Request.plain`), `folder` of the search, `surroundings`, and `threads` of a trial.
        number: Of the trial.
        chosen: What the search chose.
        report: Takes plain values (see `record.Trial`); may raise to stop the trial.
    """
    folder = trial_folder(Path(common["folder"]), number)
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(common["threads"])
    clock = _Clock()
    with _inside(folder):
        own = {**common["surroundings"], "checkpoint_dir": str(folder / "saved"), "resume": "auto"}
        told: dict[str, Any] = {"trial": number, "epoch": 0}

        def observe(trainer: LISATrainer) -> None:
            told.update(_progress(trainer))
            report({**told, "seconds": clock.lap()})

        try:
            config = Request(**common["request"]).config(chosen, own)
            result = run_configured(config, observe=observe)
        except (UsageError, TrainingDivergedError) as error:
            report({**told, "seconds": clock.lap(), "end": "failed", "problem": " ".join(str(error).split())})
            return
        final = {
            "epoch": result["epochs_run"],
            "best_epoch": result["best_epoch"],
            "valid": result["valid"],
            "score": result["valid"][config["valid_metric"].lower()],
            "best_file": result["checkpoint"],
        }
        told.setdefault("current", final["score"])
        report({**told, **final, "seconds": clock.lap(), "end": "finished"})


def _progress(trainer: LISATrainer) -> dict[str, Any]:
    """What is known after a validation."""
    assert trainer.best_epoch is not None and trainer.best_valid_result is not None  # it has validated
    metric = str(trainer.config["valid_metric"]).lower()
    return {
        "epoch": len(trainer.history),
        "current": float(trainer.history[-1]["valid"][metric]),
        "score": float(trainer.best_valid_result[metric]),
        "best_epoch": trainer.best_epoch + 1,
        "valid": {name: float(value) for name, value in trainer.best_valid_result.items()},
        "best_file": str(Path(trainer.saved_model_file).resolve()),
    }


class _Clock:
    """Wall seconds since the last look."""

    def __init__(self) -> None:
        self._last = perf_counter()

    def lap(self) -> float:
        """Seconds since the last call, or since the start."""
        last, self._last = self._last, perf_counter()
        return self._last - last


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Work in a folder, where a run puts its logs."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
