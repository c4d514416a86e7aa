"""Which checkpoints a run may continue from, and on which data a checkpoint may be used."""

import os
from collections.abc import Mapping
from logging import getLogger
from pathlib import Path
from typing import Any

from recbole_lisa.config.properties import properties_path
from recbole_lisa.config.schema import read_yaml
from recbole_lisa.errors import UsageError
from recbole_lisa.files import AnyPath
from recbole_lisa.training.checkpoint_file import LAST_SUFFIX, RUN_KEYS, load_checkpoint

_FREE_SETTINGS = {
    *("epochs", "stopping_step", "test_step", "resume", "result_file", "codebook_plot", "checkpoint_dir", "overwrite"),
    "per_user_file",
    *("show_progress", "state", "loss_decimal_place", "log_wandb", "wandb_project", "config_files", "data_path"),
    *("worker", "gpu_id", "use_gpu", "device", "eval_batch_size", "eval_seen", "compile"),
    *("nproc", "world_size", "local_rank", "offset", "ip", "port"),
    "recipe",  # its settings are compared one by one
    "amp",  # enable_amp and enable_scaler, which older files have too, say the same
    *("download", "archive", "source", "conversion", "archive_url", "archive_checksum"),
    *("memory_map", "save_dataset", "dataset_save_path", "save_dataloaders", "dataloaders_save_path"),
}
"""Settings that a continued run may change: they do not decide what the next epochs learn."""
OTHER_DATA = "it was trained on other interactions, or on items in another order, than the data set has now"


def check_resume(source: str | None) -> None:
    """Refuse a setting `resume` that is empty or no complete checkpoint, before the data is read."""
    if source is None or source == "auto":
        return
    if not source.strip():
        raise UsageError("resume is empty; name a checkpoint or auto, or leave the key out")
    load_checkpoint(source, needed=RUN_KEYS)


def check_data(state: Mapping[str, Any], path: AnyPath, data_fingerprint: str | None) -> None:
    """Refuse, as a UsageError, to use a checkpoint on other data than it was trained on; None does not compare."""
    if differ(state["data_fingerprint"], data_fingerprint):
        raise UsageError(f"cannot use '{path}' on '{state['dataset']}': {OTHER_DATA}")


def fingerprint_of(loader: Any) -> str | None:
    """The `data_fingerprint` of the data set behind a loader; None for loaders of RecBole."""
    return getattr(getattr(loader, "dataset", None), "data_fingerprint", None)


def differences(checkpoint: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """Why a run with these plain `settings` cannot continue: `learning_rate is 0.001 there and 0.01 here`, ..."""
    # A setting that the checkpoint lacks is newer than it and had its default there.
    names = ("overall", "model/AttentiveRecommender", f"model/{settings['model']}")
    files = filter(Path.is_file, (properties_path() / f"{name}.yaml" for name in names))
    saved = {key: value for file in files for key, value in read_yaml(file).items() if key in settings}
    saved.update(checkpoint["config"])
    decays = settings.get("learning_rate_decay", "none") != "none"
    keys = (saved.keys() | settings.keys()) - _FREE_SETTINGS | ({"epochs"} if decays else set())
    changed = sorted(key for key in keys if saved.get(key) != settings.get(key))
    changed = [key for key in ("model", "dataset") if key in changed] or changed
    return [f"{key} is {saved.get(key)!r} there and {settings.get(key)!r} here" for key in changed]


def find_resumable(
    settings: Mapping[str, Any],
    directory: AnyPath,
    data_fingerprint: str | None = None,
    since: float = 0.0,
    lazy: bool = False,
) -> Path | None:
    """The newest `-last.pth` in a folder that a run with these plain `settings` and this data can continue, or None.

    Damaged files and those of other data are skipped with a warning; `lazy` does not read their tensors. Only files
    written after `since`, in seconds since 1970, count.
    """
    files = [path for path in Path(directory).glob("*" + LAST_SUFFIX) if os.path.getmtime(path) >= since]
    for path in sorted(files, key=os.path.getmtime, reverse=True):
        try:
            checkpoint = load_checkpoint(path, needed=RUN_KEYS, lazy=True)
            if differences(checkpoint, settings):
                continue
            if differ(checkpoint["data_fingerprint"], data_fingerprint):
                getLogger().warning("resume=auto skips '%s': %s", path, OTHER_DATA)
                continue
            load_checkpoint(path, lazy=lazy)
        except UsageError as error:
            getLogger().warning("resume=auto skips a file: %s", error)
            continue
        return path
    return None


def advice_after_interruption(settings: Mapping[str, Any], directory: AnyPath, started: float) -> str:
    """How to continue a run with these plain `settings`, of a resumed run or one that began at `started` (seconds)."""
    path = find_resumable(settings, directory, since=0.0 if settings["resume"] else started, lazy=True)
    if path is None:
        return "no epoch is saved yet, start again by the same arguments"
    return f"continue from '{path}' by the same arguments and --resume=auto"


def differ(left: str | None, right: str | None) -> bool:
    """Whether two known fingerprints are of different data."""
    return left is not None and right is not None and left != right
