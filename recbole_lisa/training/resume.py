"""Continuing a run: what belongs to its state, and which runs may continue from which file."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recbole_lisa.distributed.processes import from_first
from recbole_lisa.environment import versions
from recbole_lisa.errors import UsageError
from recbole_lisa.training.checkpoint import FORMAT, LAST_SUFFIX, capture_rng, load_checkpoint, restore_rng

if TYPE_CHECKING:
    from recbole_lisa.training.trainer import LISATrainer

# Settings that do not decide what the next epochs learn; a run may be continued under other values.
_FREE_SETTINGS = {
    *("epochs", "stopping_step", "test_step", "resume", "result_file", "codebook_plot", "checkpoint_dir", "overwrite"),
    "data_path",
    *("show_progress", "state", "loss_decimal_place", "log_wandb", "wandb_project", "config_files"),
    *("worker", "gpu_id", "use_gpu", "device", "eval_batch_size"),
    *("nproc", "world_size", "local_rank", "offset", "ip", "port", "compile"),
    "amp",  # enable_amp and enable_scaler, which older files have too, say the same
    *("download", "archive", "source", "conversion", "archive_url", "archive_checksum"),
    *("save_dataset", "dataset_save_path", "save_dataloaders", "dataloaders_save_path"),
}

# What the trainer remembers from epoch to epoch, beside the model, the optimizer and the random generators.
_PROGRESS = ("cur_step", "best_valid_score", "best_valid_result", "best_epoch", "history", "curve")
_WEIGHT_KEYS = ("model", "dataset", "data_fingerprint", "state_dict", "other_parameter")
RUN_KEYS = (*_WEIGHT_KEYS, *_PROGRESS, "config", "epoch", "best_file", "optimizer", "scaler", "rng")
_OTHER_DATA = "it was trained on other interactions, or on items in another order, than the data set has now"


def run_state(trainer: "LISATrainer", epoch: int) -> dict[str, Any]:
    """Everything that a checkpoint holds: enough to test the model, and to continue the run.

    Args:
        trainer: The run.
        epoch: The last complete epoch, from 0; -1 before the first.

    Returns:
        A dictionary of tensors and plain values.
    """
    return {
        "format": FORMAT,
        "model": trainer.config["model"],
        "dataset": trainer.config["dataset"],
        "data_fingerprint": trainer.data_fingerprint,
        "protocol": trainer.config["protocol"],
        "config": trainer.config.plain(),
        "versions": versions(),
        "epoch": epoch,
        "best_file": Path(trainer.saved_model_file).name,
        **{name: getattr(trainer, name) for name in _PROGRESS},
        "state_dict": trainer.model.state_dict(),
        "other_parameter": trainer.model.other_parameter(),
        "optimizer": trainer.optimizer.state_dict(),
        "scaler": trainer.step.scaler.state_dict(),
        "rng": capture_rng(),
    }


def restore_run(trainer: "LISATrainer", path: str | os.PathLike[str]) -> None:
    """Put a fresh trainer where the run of `path` was when the file was written.

    Args:
        trainer: A trainer with the same settings (`epochs` and settings of the surroundings may differ).
        path: `<name>-last.pth`, or `<name>.pth` to go back to the best epoch.

    Raises:
        UsageError: The file is no checkpoint or incomplete, belongs to a run with other settings or other data, or
            its best file is gone.
    """
    state = load_checkpoint(path, needed=RUN_KEYS)
    found = differences(state, trainer.config.plain())
    if _differ(state["data_fingerprint"], trainer.data_fingerprint):
        found.append(_OTHER_DATA)
    if found:
        raise UsageError(f"cannot resume from '{path}': {'; '.join(found)}")
    best_file = Path(path).with_name(state["best_file"])
    if state["best_epoch"] is not None and not best_file.is_file():
        raise UsageError(f"cannot resume from '{path}': '{best_file}', its best epoch, is missing")
    trainer.saved_model_file = str(best_file)
    trainer.start_epoch = state["epoch"] + 1
    trainer.data_fingerprint = trainer.data_fingerprint or state["data_fingerprint"]
    for name in _PROGRESS:
        setattr(trainer, name, state[name])
    trainer.train_loss_dict = {entry["epoch"] - 1: entry["loss"] for entry in trainer.history}
    _restore_model(trainer, state)
    trainer.optimizer.load_state_dict(state["optimizer"])
    trainer.step.scaler.load_state_dict(state["scaler"])
    restore_rng(state["rng"])


def restore_weights(trainer: "LISATrainer", path: str | os.PathLike[str], data_fingerprint: str | None = None) -> None:
    """Put the parameters of a checkpoint into the trainer's model, to test it.

    Args:
        trainer: A trainer of the same model and data set.
        path: The checkpoint.
        data_fingerprint: That of the data to test on; None does not compare.

    Raises:
        UsageError: The file is no checkpoint or incomplete, or one of another model or data set.
    """
    state = load_checkpoint(path, needed=_WEIGHT_KEYS)
    for key in ("model", "dataset"):
        if state[key] != trainer.config[key]:
            raise UsageError(f"'{path}' is of the {key} '{state[key]}', not '{trainer.config[key]}'")
    check_data(state, path, data_fingerprint)
    _restore_model(trainer, state)
    trainer.logger.info(f"Loading model structure and parameters from {path}")


def check_data(state: Mapping[str, Any], path: str | os.PathLike[str], data_fingerprint: str | None) -> None:
    """Refuse to put the model of a checkpoint to other data than it was trained on.

    Args:
        state: The checkpoint.
        path: Its file, for the message.
        data_fingerprint: That of the data; None does not compare.

    Raises:
        UsageError: The interactions, or the order of the items, are others.
    """
    if _differ(state["data_fingerprint"], data_fingerprint):
        raise UsageError(f"cannot test '{path}' on '{state['dataset']}': {_OTHER_DATA}")


def fingerprint_of(loader: Any) -> str | None:
    """The `data_fingerprint` of the data set behind a loader; None for loaders of RecBole."""
    return getattr(getattr(loader, "dataset", None), "data_fingerprint", None)


def adopt_data(trainer: "LISATrainer", train_data: Any) -> None:
    """Tie a run to the data set that it trains on; its checkpoints name it.

    Args:
        trainer: The run, before its epochs.
        train_data: The training loader.

    Raises:
        UsageError: The run began on another data set.
    """
    found = fingerprint_of(train_data)
    if _differ(trainer.data_fingerprint, found):
        raise UsageError(f"cannot go on with '{trainer.saved_model_file}': {_OTHER_DATA}")
    trainer.data_fingerprint = found or trainer.data_fingerprint


def check_resume(source: str | None) -> None:
    """Refuse a checkpoint that no run could go on from, before the data is read.

    Args:
        source: The setting `resume`.

    Raises:
        UsageError: `source` is empty, or names a file that is missing, damaged, incomplete or no checkpoint.
    """
    if source is None or source == "auto":
        return
    if not source.strip():
        raise UsageError("resume is empty; name a checkpoint or auto, or leave the key out")
    load_checkpoint(source, needed=RUN_KEYS, lazy=True)


def resume_if_asked(trainer: "LISATrainer") -> None:
    """Follow `resume` of the configuration: a path, `auto` for the newest run that fits, or nothing.

    Raises:
        UsageError: See `restore_run`.
    """
    config = trainer.config
    source = config["resume"]
    if source == "auto":
        source = from_first(find_resumable(config.plain(), config["checkpoint_dir"], trainer.data_fingerprint))
        if source is None:
            folder = config["checkpoint_dir"]
            trainer.logger.info(f"resume=auto: no run in '{folder}' fits these settings and data, starting fresh")
    if source:
        trainer.resume_checkpoint(source)


def differences(checkpoint: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """Why a run with `settings` cannot continue from `checkpoint`: a phrase per difference, empty if it can.

    Args:
        checkpoint: What `load_checkpoint` gave.
        settings: The plain configuration of the run that wants to continue.

    Returns:
        Phrases such as `learning_rate is 0.001 there and 0.01 here`.
    """
    saved = checkpoint["config"]
    keys = (saved.keys() | settings.keys()) - _FREE_SETTINGS
    changed = sorted(key for key in keys if _comparable(saved.get(key)) != _comparable(settings.get(key)))
    return [f"{key} is {saved.get(key)!r} there and {settings.get(key)!r} here" for key in changed]


def find_resumable(
    settings: Mapping[str, Any], directory: str | os.PathLike[str], data_fingerprint: str | None = None
) -> Path | None:
    """The newest `-last.pth` in `directory` that a run with `settings` can continue from.

    Args:
        settings: The plain configuration of the run.
        directory: The checkpoint folder.
        data_fingerprint: That of the data of the run; None does not compare.

    Returns:
        The file, or None when there is none; unreadable files and those of other data are skipped with a warning.
    """
    candidates = sorted(Path(directory).glob("*" + LAST_SUFFIX), key=os.path.getmtime, reverse=True)
    for path in candidates:
        try:
            checkpoint = load_checkpoint(path, needed=RUN_KEYS, lazy=True)
        except UsageError as error:
            logging.getLogger().warning("resume=auto skips a file: %s", error)
            continue
        if differences(checkpoint, settings):
            continue
        if not _differ(checkpoint["data_fingerprint"], data_fingerprint):
            return path
        logging.getLogger().warning("resume=auto skips '%s': %s", path, _OTHER_DATA)
    return None


def _differ(left: str | None, right: str | None) -> bool:
    """Whether two fingerprints are known to be of different data."""
    return left is not None and right is not None and left != right


def _restore_model(trainer: "LISATrainer", state: Mapping[str, Any]) -> None:
    try:
        trainer.model.load_state_dict(state["state_dict"])
    except RuntimeError as error:
        raise UsageError(f"the checkpoint does not fit the model: {error}") from error
    trainer.model.load_other_parameter(state["other_parameter"])


def _comparable(value: Any) -> Any:
    """`value` with tuples as lists, so that a setting equals its copy from a file."""
    if isinstance(value, Mapping):
        return {key: _comparable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable(entry) for entry in value]
    return value
