"""One trial: the function that Ray Tune runs in a process of its own.

```python
from ray import tune
from recbole_lisa.tuning import trainable

space = {"model": "LISASoft", "dataset": "ml-100k", "learning_rate": tune.loguniform(3e-4, 3e-3)}
tune.Tuner(trainable, param_space=space, tune_config=tune.TuneConfig(metric="score", mode="max")).fit()
```
"""

import importlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recbole_lisa.config.config import LISAConfig
from recbole_lisa.data.split import held_out_parts
from recbole_lisa.datasets.obtain import ensure_data
from recbole_lisa.errors import UsageError
from recbole_lisa.quick_start import run_configured
from recbole_lisa.training.checkpoint import LAST_SUFFIX
from recbole_lisa.training.trainer import LISATrainer

RUN_TO_END = "run_to_end"
PRUNING_EPOCH = "pruning_epoch"
_INSTALL = "pip install 'recbole-lisa[tune]'"


def trainable(config: Mapping[str, Any]) -> None:
    """Train one model and report to Ray Tune after each validation.

    Reports: the validation metrics of the epoch (such as `ndcg@10`), `loss`, `epoch` (from 1), `score` (best value of
    `valid_metric` so far), `best_epoch`, `best` (all metrics of the best epoch) and `finished` (the last report). Each
    report has a checkpoint: a folder with `<run>.pth`, the best epoch, and `<run>-last.pth`, the newest. A trial that
    Ray restores continues after the epoch of its checkpoint.

    Args:
        config: `model`, `dataset`, and optionally `protocol` and `config_files`; all other keys are settings of
            `recbole_lisa.quick_start.run`. Paths must be absolute, as each trial works in a folder of its own.
            Settings equal to the optional dict `run_to_end` mark the trial that no scheduler may stop: its reports
            lack `pruning_epoch`, the time attribute of the scheduler of `recbole-lisa tune`.

    Raises:
        UsageError: Ray Tune is not installed, a setting is wrong, or the protocol has no validation items.
        TrainingDivergedError: The training loss is NaN or infinite.
    """
    checkpoint_class, get_checkpoint, report = ray_session()
    protected = config.get(RUN_TO_END)
    is_protected = protected is not None and all(config[key] == value for key, value in protected.items())
    reported = False

    def send(metrics: dict[str, Any], folder: str) -> None:
        time = {} if is_protected else {PRUNING_EPOCH: metrics["epoch"]}
        report({**metrics, **time}, checkpoint=checkpoint_class.from_directory(folder))

    with tempfile.TemporaryDirectory() as folder:
        earlier = get_checkpoint()
        if earlier is not None:
            with earlier.as_directory() as source:  # without Ray's own files, which name the old checkpoint
                for path in Path(source).glob("*.pth"):
                    shutil.copy(path, folder)
        newest = next(Path(folder).glob(f"*{LAST_SUFFIX}"), None)
        run_config = build_config(config, checkpoint_dir=folder, resume=newest and str(newest), show_progress=False)
        check_validation(run_config)

        def observe(trainer: LISATrainer) -> None:
            nonlocal reported
            reported = True
            send(_progress(trainer), folder)

        result = run_configured(run_config, ensure_data(run_config), observe=observe)
        if not reported:  # restored after its last epoch
            valid, loss = result["valid"], result["loss"][-1]
            end = {"epoch": result["epochs_run"], "best_epoch": result["best_epoch"], "best": valid, "finished": True}
            send({**valid, **end, "loss": loss, "score": valid[run_config["valid_metric"].lower()]}, folder)


def build_config(config: Mapping[str, Any], **settings: Any) -> LISAConfig:
    """The configuration of a trial.

    Args:
        config: See `trainable`.
        settings: Further settings, stronger than `config`.

    Raises:
        UsageError: `model` or `dataset` is missing; or see `LISAConfig`.
    """
    rest = {**config, **settings}
    rest.pop(RUN_TO_END, None)
    model, dataset = rest.pop("model", None), rest.pop("dataset", None)
    if model is None or dataset is None:
        raise UsageError("param_space has no 'model' or no 'dataset': write {'model': 'LISASoft', 'dataset': ...}")
    protocol, config_files = rest.pop("protocol", None), rest.pop("config_files", None) or []
    return LISAConfig(model, dataset, protocol=protocol, config_files=config_files, config_dict=rest)


def check_validation(config: LISAConfig) -> None:
    """Refuse a search without validation items: the test items must not choose settings.

    Raises:
        UsageError: The split has no validation part.
    """
    split = config["eval_args"]["split"]
    if not held_out_parts(split)["validation"]:
        raise UsageError(
            f"protocol '{config['protocol']}' has no validation items (split {split}), and a search must not choose by "
            "the test items: write --protocol=full_ranking, or keep the protocol with a validation item by "
            "--eval_args='{split: {LS: valid_and_test}}'"
        )


def import_tune() -> Any:
    """The module `ray.tune`.

    Raises:
        UsageError: Ray Tune, or pyarrow, which Ray Tune 2.6 misses only at the end of a search, is not installed.
    """
    try:
        importlib.import_module("pyarrow")
        return importlib.import_module("ray.tune")
    except ImportError as error:
        raise UsageError(f"recbole_lisa.tuning needs Ray Tune ({error}): {_INSTALL}") from error


def ray_session() -> tuple[Any, Any, Any]:
    """Ray's class of checkpoints, and its functions `get_checkpoint` and `report`.

    They are in `ray.tune` since Ray 2.43, in `ray.train` since 2.7, and in `ray.air` before.
    """
    tune = import_tune()
    for module in (tune, importlib.import_module("ray.train")):
        if hasattr(module, "get_checkpoint") and hasattr(module, "Checkpoint"):
            return module.Checkpoint, module.get_checkpoint, module.report
    from ray.air import Checkpoint, session

    return Checkpoint, session.get_checkpoint, session.report


def _progress(trainer: LISATrainer) -> dict[str, Any]:
    """The report after a validation."""
    config, newest = trainer.config, trainer.history[-1]
    epoch = len(trainer.history)
    is_last = epoch + config["eval_step"] > trainer.epochs or trainer.cur_step > trainer.stopping_step
    return {
        **{name: float(value) for name, value in newest["valid"].items()},
        "loss": float(newest["loss"]),
        "epoch": epoch,
        "score": float(trainer.best_valid_score),
        "best_epoch": (trainer.best_epoch or 0) + 1,
        "best": {name: float(value) for name, value in (trainer.best_valid_result or {}).items()},
        "finished": bool(is_last),
    }
