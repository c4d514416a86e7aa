"""One trial: the function that Ray Tune runs in a new process.

```python
from ray import tune
from recbole_lisa.tuning import trainable

space = {"model": "LISASoft", "dataset": "ml-100k", "learning_rate": tune.loguniform(3e-4, 3e-3)}
tune.Tuner(trainable, param_space=space, tune_config=tune.TuneConfig(metric="score", mode="max")).fit()
```
"""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recbole_lisa.config.config import LISAConfig
from recbole_lisa.data.split import held_out_parts
from recbole_lisa.environment import make_allocation_cheap
from recbole_lisa.errors import UsageError, shown
from recbole_lisa.quick_start import run_configured
from recbole_lisa.training.checkpoint_file import LAST_SUFFIX
from recbole_lisa.training.trainer import LISATrainer
from recbole_lisa.tuning.session import import_tune

RUN_TO_END = "run_to_end"
PRUNING_EPOCH = "pruning_epoch"


def trainable(config: Mapping[str, Any]) -> None:
    """Train one model and report to Ray Tune after each validation.

    Reports: the validation metrics of the epoch (such as `ndcg@10`), `loss`, `epoch` (from 1), `score` (best value of
    `valid_metric` so far), `best_epoch`, `best` (all metrics of the best epoch) and `finished` (the last report). Each
    report has a checkpoint: a folder with `<run>.pth`, the best epoch, and `<run>-last.pth`, the newest. A trial that
    Ray restores continues after the epoch of its checkpoint.

    Args:
        config: `model`, `dataset`, and optionally `protocol` and `config_files`; all other keys are settings of
            `recbole_lisa.quick_start.run`. Paths must be absolute, since each trial has its own working folder.
            A trial whose settings equal the optional dict `run_to_end` is not stopped early: its reports lack
            `pruning_epoch`, the time attribute of the scheduler of `recbole-lisa tune`.

    Raises:
        UsageError: Ray Tune is not installed, a setting is wrong, or the protocol has no validation items.
        TrainingDivergedError: The training loss is NaN or infinite.
    """
    if not isinstance(config, Mapping):
        raise UsageError(f"the configuration of a trial is {shown(config)}, it must hold settings by key")
    checkpoint_class, get_checkpoint, report = _ray_functions()
    make_allocation_cheap()
    protected = config.get(RUN_TO_END)
    is_protected = protected is not None and all(config[key] == value for key, value in protected.items())
    with tempfile.TemporaryDirectory() as folder:
        earlier = get_checkpoint()
        if earlier is not None:
            with earlier.as_directory() as source:  # without Ray's own files, which name the old checkpoint
                for path in Path(source).glob("*.pth"):
                    shutil.copy(path, folder)
        newest = next(Path(folder).glob(f"*{LAST_SUFFIX}"), None)
        run_config = build_config(config, checkpoint_dir=folder, resume=newest and str(newest), show_progress=False)
        check_validation(run_config)
        reports = []

        def send(metrics: dict[str, Any]) -> None:
            time = {} if is_protected else {PRUNING_EPOCH: metrics["epoch"]}
            reports.append({**metrics, **time})
            report(reports[-1], checkpoint=checkpoint_class.from_directory(folder))

        result = run_configured(run_config, observe=lambda trainer: send(_progress(trainer)))
        if not reports:  # restored after its last epoch
            valid, score = result["valid"], result["valid"][run_config["valid_metric"].lower()]
            end = {"epoch": result["epochs_run"], "best_epoch": result["best_epoch"], "best": valid, "finished": True}
            send({**valid, **end, "loss": result["loss"][-1], "score": score})


def build_config(config: Mapping[str, Any], **settings: Any) -> LISAConfig:
    """The configuration of a trial: `config` as in `trainable`, with stronger `settings`."""
    rest = {**config, **settings}
    rest.pop(RUN_TO_END, None)
    model, dataset = rest.pop("model", None), rest.pop("dataset", None)
    if model is None or dataset is None:
        raise UsageError("param_space has no 'model' or no 'dataset': write {'model': 'LISASoft', 'dataset': ...}")
    protocol, config_files = rest.pop("protocol", None), rest.pop("config_files", ())
    return LISAConfig(model, dataset, protocol=protocol, config_files=config_files, config_dict=rest)


def check_validation(config: LISAConfig) -> None:
    """Refuse a search without validation items: the test items must not choose settings."""
    split = config["eval_args"]["split"]
    if not held_out_parts(split)["validation"]:
        raise UsageError(
            f"protocol '{config['protocol']}' has no validation items (split {split}), and the test items must "
            "not choose settings: write --protocol=full_ranking, or keep the protocol with a validation item by "
            "--eval_args='{split: {LS: valid_and_test}}'"
        )
    if not config["valid_metric_bigger"]:
        raise UsageError(f"a search needs a valid_metric whose highest value is the best, not {config['valid_metric']}")


def _ray_functions() -> tuple[Any, Any, Any]:
    """Checkpoint, get_checkpoint, report: of `ray.tune` in current releases, of `ray.air` in Ray 2.6."""
    tune = import_tune()
    if hasattr(tune, "get_checkpoint"):
        return tune.Checkpoint, tune.get_checkpoint, tune.report
    from ray.air import Checkpoint, session

    return Checkpoint, session.get_checkpoint, session.report


def _progress(trainer: LISATrainer) -> dict[str, Any]:
    """The report of a trial after a validation."""
    config, newest, epoch = trainer.config, trainer.history[-1], len(trainer.history)
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
