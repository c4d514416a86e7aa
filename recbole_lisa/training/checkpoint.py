"""Checkpoints: what a run's files hold, how they are written and read, and which runs may continue from them.

A file is one plain dictionary of tensors and Python values, so `torch.load(path, weights_only=True)` reads it without
running code. RecBole's keys (`config`, `epoch`, `cur_step`, `best_valid_score`, `state_dict`, `other_parameter`,
`optimizer`) keep their names. A run writes `<name>.pth`, its best epoch, and `<name>-last.pth`, its newest one; both
hold all that is needed to continue. The file is a zip archive: the CRC-32 of each record is its checksum.
"""

import errno
import io
import os
import random
import zipfile
from collections.abc import Iterable, Mapping
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recbole_lisa.config.properties import properties_path
from recbole_lisa.config.schema import read_yaml
from recbole_lisa.data.tokens import joined_tokens
from recbole_lisa.distributed.processes import from_first
from recbole_lisa.environment import versions
from recbole_lisa.errors import UsageError
from recbole_lisa.files import AnyPath, atomic_writer, path_of, resolved
from recbole_lisa.training.checkpoint_schema import check_entries, load_optimizer
from recbole_lisa.training.schedule import WeightAverage

FORMAT = "recbole-lisa checkpoint 1"
LAST_SUFFIX = "-last.pth"
# Attributes of the trainer that change from epoch to epoch.
_PROGRESS = ("cur_step", "best_valid_score", "best_valid_result", "best_epoch", "history", "curve")
_WEIGHT_KEYS = ("model", "dataset", "data_fingerprint", "state_dict", "other_parameter")
RUN_KEYS = (*_WEIGHT_KEYS, *_PROGRESS, "config", "epoch", "best_file", "optimizer", "scaler", "rng")
_ZIP_END_BYTES = 22
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
_OTHER_DATA = "it was trained on other interactions, or on items in another order, than the data set has now"


class Checkpoint:
    """The state of a run, a `LISATrainer`, after an epoch, as a dictionary that a file holds."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def state_dict(self, epoch: int) -> dict[str, Any]:
        """All that testing the model and continuing the run needs; `epoch` is the last complete one, -1 for none."""
        run = self.run
        return {
            "format": FORMAT,
            **{key: run.config[key] for key in ("model", "dataset", "protocol")},
            "data_fingerprint": run.data_fingerprint,
            "config": run.config.plain(),
            "versions": versions(),
            "epoch": epoch,
            "best_file": Path(run.saved_model_file).name,
            **{name: getattr(run, name) for name in _PROGRESS},
            "state_dict": run.model.state_dict(),
            "other_parameter": other_parameter_of(run.model),
            "optimizer": run.optimizer.state_dict(),
            "scaler": run.step.scaler.state_dict(),
            **{name: part.state_dict() for name, part in _optional_parts(run).items()},
            "rng": capture_rng(),
            **({} if run.item_ids is None else {"item_ids": run.item_ids}),
            **({} if run.latest_time is None else {"latest_time": run.latest_time}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a new run where the saved run was after its epoch."""
        run = self.run
        run.start_epoch = state["epoch"] + 1
        run.data_fingerprint = run.data_fingerprint or state["data_fingerprint"]
        for name in _PROGRESS:
            setattr(run, name, state[name])
        run.train_loss_dict = {entry["epoch"] - 1: entry["loss"] for entry in run.history}
        self.load_model(state)
        load_optimizer(run.optimizer, state["optimizer"])
        run.step.scaler.load_state_dict(state["scaler"])
        for name, part in _optional_parts(run).items():
            part.load_state_dict(state[name])
        restore_rng(state["rng"])

    def resume(self, path: AnyPath) -> None:
        """Continue the run of `<name>-last.pth`, or of `<name>.pth` from its best epoch, under its old file names.

        A UsageError where the file is no whole checkpoint of a run with these settings and data, or its best file is
        missing.
        """
        run, state = self.run, load_checkpoint(path, needed=RUN_KEYS)
        reasons = differences(state, run.config.plain())
        if _differ(state["data_fingerprint"], run.data_fingerprint):
            reasons.append(_OTHER_DATA)
        best_file = Path(path).with_name(state["best_file"])
        if not reasons and state["best_epoch"] is not None and not best_file.is_file():
            reasons.append(f"'{best_file}', its best epoch, is missing")
        if reasons:
            raise UsageError(f"cannot resume from '{path}': {'; '.join(reasons)}")
        run.saved_model_file = str(best_file)
        run.saver.saved.add(str(best_file))
        try:
            self.load_state_dict(state)
        except (KeyError, IndexError, AttributeError, TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"'{path}' is damaged or forged: {type(error).__name__}: {error}") from error
        run.logger.info(f"Resuming {path} after epoch {run.start_epoch}")
        if resolved(best_file.parent) != resolved(folder := run.config["checkpoint_dir"]):
            run.logger.warning(f"its files stay in '{best_file.parent}': checkpoint_dir='{folder}' has no effect")

    def resume_as_configured(self) -> None:
        """Follow the setting `resume`: a path, `auto` for the newest run that fits, or None."""
        config, source = self.run.config, self.run.config["resume"]
        if source == "auto":
            folder = config["checkpoint_dir"]
            source = from_first(find_resumable(config.plain(), folder, self.run.data_fingerprint))
            if source is None:
                self.run.logger.info(f"resume=auto: no run in '{folder}' fits these settings and data, starting fresh")
        if source:
            self.run.resume_checkpoint(source)

    def load_weights(self, path: AnyPath, data_fingerprint: str | None = None) -> None:
        """Put the parameters of a file into the model; a file of another model or data set is a UsageError."""
        state = load_checkpoint(path, needed=_WEIGHT_KEYS)
        for key in ("model", "dataset"):
            if state[key] != self.run.config[key]:
                raise UsageError(f"'{path}' is of the {key} '{state[key]}', not '{self.run.config[key]}'")
        check_data(state, path, data_fingerprint)
        self.load_model(state)
        self.run.logger.info(f"Loading model structure and parameters from {path}")

    def adopt_data(self, train_data: Any) -> None:
        """Bind the run to the data set that it trains on; a run that began on another one is a UsageError."""
        fingerprint = fingerprint_of(train_data)
        if _differ(self.run.data_fingerprint, fingerprint):
            raise UsageError(f"cannot go on with '{self.run.saved_model_file}': {_OTHER_DATA}")
        self.run.data_fingerprint = fingerprint or self.run.data_fingerprint
        # One a line: a file of interactions has no id with a line break.
        ids = joined_tokens(train_data.dataset.field2id_token[train_data.dataset.iid_field], "\n")
        self.run.item_ids = torch.frombuffer(bytearray(ids), dtype=torch.uint8)
        self.run.latest_time = getattr(train_data.dataset, "latest_time", None)

    def load_model(self, state: Mapping[str, Any]) -> None:
        """Put the parameters of a state into the model; a UsageError where they do not fit."""
        check_finite(state["state_dict"])
        try:
            self.run.model.load_state_dict(state["state_dict"])
        except RuntimeError as error:
            raise UsageError(f"the checkpoint does not fit the model: {error}") from error
        self.run.model.load_other_parameter(state["other_parameter"])
        if self.run.average is not None:
            self.run.average = WeightAverage(self.run.model, self.run.average.decay)


def _optional_parts(run: Any) -> dict[str, Any]:
    """The parts of a run that only some settings have."""
    parts = {"schedule": run.schedule, "average": run.average}
    return {name: part for name, part in parts.items() if part is not None}


def other_parameter_of(model: Any) -> dict[str, Any]:
    """RecBole's `other_parameter` without the modules of the model, whose weights `state_dict` has."""
    modules = {*map(id, model.modules())}
    return {name: value for name, value in (model.other_parameter() or {}).items() if id(value) not in modules}


def check_contents(model: Any) -> None:
    """Refuse, as a UsageError, a model whose checkpoint would not be readable again; call this before the training."""
    weights = model.state_dict().items()
    wrong = {f"state_dict has {name!r}": value for name, value in weights if not isinstance(value, torch.Tensor)}
    for name, value in other_parameter_of(model).items():
        try:
            torch.save(value, content := io.BytesIO())
            torch.load(io.BytesIO(content.getvalue()), weights_only=True)
        except Exception:  # whatever the class of the value raises
            wrong[f"other_parameter has {name!r}"] = value
    for entry, value in wrong.items():
        raise UsageError(
            f"{type(model).__name__} cannot be saved: its {entry} of the type {type(value).__name__}; a checkpoint "
            "holds tensors, and in other_parameter numbers, text, lists and dicts"
        )


def save_checkpoint(state: Mapping[str, Any], path: AnyPath) -> None:
    """Write `state` to `path`; an interruption or a full disk (OSError) leaves the old file intact."""
    with atomic_writer(path) as stream:
        torch.save(dict(state), stream)


class Saver:
    """Writes the checkpoints of a run; one that cannot be written is logged, and the training continues.

    `unsaved` is path -> error of such files, `saved` the others; `best` has the bytes of the best state while its file
    is unsaved.
    """

    def __init__(self) -> None:
        self.unsaved: dict[str, OSError] = {}
        self.saved: set[str] = set()
        self.best: bytes | None = None

    def save(self, state: Mapping[str, Any], path: AnyPath, *, is_best: bool) -> None:
        """Write `state`, but no newer state while the best one is unsaved: a resumed run needs two files that fit."""
        if self.best is not None and not is_best:
            best_path = str(path).removesuffix(LAST_SUFFIX) + ".pth"
            self.save(torch.load(io.BytesIO(self.best), weights_only=True), best_path, is_best=True)
            if self.best is not None:
                return
        error = self.unsaved.pop(str(path), None)
        try:
            save_checkpoint(state, path)
            self.saved.add(str(path))
            self.best = None
        except OSError as new_error:
            self.unsaved[str(path)] = new_error
            self.saved.discard(str(path))
            if error is None:
                getLogger().warning(f"'{path}' cannot be written: {new_error.strerror}; the training continues")
            if is_best:
                torch.save(dict(state), content := io.BytesIO())
                self.best = content.getvalue()

    def is_removed(self, path: AnyPath) -> bool:
        """Whether another program has removed a file that is saved."""
        return str(path) in self.saved and not Path(path).is_file()

    def check(self) -> None:
        """Raise the OSError of a file that is not written."""
        for error in self.unsaved.values():
            raise error


def load_checkpoint(path: AnyPath, *, needed: Iterable[str] = (), lazy: bool = False) -> dict[str, Any]:
    """The dictionary of a checkpoint that this package wrote, with its tensors on the CPU.

    `lazy` maps the tensors from the file instead of reading and checking them, for a look at the plain values. A
    UsageError where the file is missing, damaged or of another program, or a key is missing or has another type.
    """
    if not path_of(path, "the checkpoint").is_file():
        what = f"'{path}' is not a file" if Path(path).exists() else f"there is no checkpoint '{path}'"
        raise UsageError(f"{what}; give the path of a .pth file of an earlier run")
    if not os.access(path, os.R_OK):
        raise UsageError(f"'{path}' cannot be read: permission denied")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = None if lazy else archive.testzip()
            if min(record.header_offset for record in archive.infolist()):
                raise OSError(errno.EINVAL, "there are bytes before its start, such as those of another file")
        with open(path, "rb") as stream:
            stream.seek(-_ZIP_END_BYTES, os.SEEK_END)
            if not stream.read().startswith(b"PK\5\6"):
                raise OSError(errno.EINVAL, "there are bytes after its end")
        is_text = str(path) == str(path).encode(errors="replace").decode()  # torch maps no path of other bytes
        mmap = lazy and is_text
        checkpoint: dict[str, Any] = torch.load(str(path), map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # torch raises whatever the broken bytes lead to: many unrelated types
        reason = getattr(error, "strerror", None) or "give a .pth file of a run"  # torch's text is of no use here
        raise UsageError(f"'{path}' is damaged or is not a checkpoint of recbole-lisa: {reason}") from error
    if damaged:
        raise UsageError(f"'{path}' is damaged: the checksum of its record {damaged} is wrong; take another checkpoint")
    file_format = checkpoint.get("format") if isinstance(checkpoint, dict) else None
    if file_format != FORMAT:
        raise UsageError(f"'{path}' is not a checkpoint of recbole-lisa: format {file_format!r}, not {FORMAT!r}")
    if missing := [key for key in needed if key not in checkpoint]:
        raise UsageError(f"'{path}' is incomplete: it lacks {', '.join(missing)}; give a file that a run has written")
    check_entries(checkpoint, path)
    return checkpoint


def item_ids_of(state: Mapping[str, Any]) -> bytes | None:
    """The raw ids of items 1, 2, ... in a checkpoint, one a line; None in files of earlier versions."""
    if (ids := state.get("item_ids")) is None:
        return None
    try:
        content: bytes = ids.numpy().astype("u1", casting="no").tobytes()
        content.decode("utf-8", "surrogatepass")
    except (TypeError, ValueError) as error:
        raise UsageError("the checkpoint is damaged or forged: item_ids must be the bytes of a text") from error
    return content


def last_file(best_file: AnyPath) -> Path:
    """The file with the newest state beside the best one: `<name>.pth` -> `<name>-last.pth`."""
    return Path(best_file).with_name(Path(best_file).stem + LAST_SUFFIX)


def check_finite(weights: Mapping[str, torch.Tensor]) -> None:
    """Refuse, as a UsageError, weights with a number that is not finite, and a unit of time that is not above 0."""
    for name, weight in weights.items():
        if weight.is_floating_point() and not bool(weight.isfinite().all()):
            raise UsageError(f"the checkpoint is damaged or forged: {name} has a number that is not finite")
    if "time_unit" in weights and not bool((weights["time_unit"] > 0).all()):
        raise UsageError("the checkpoint is damaged or forged: time_unit is not above 0")


def check_resume(source: str | None) -> None:
    """Refuse a setting `resume` that is empty or no complete checkpoint, before the data is read."""
    if source is None or source == "auto":
        return
    if not source.strip():
        raise UsageError("resume is empty; name a checkpoint or auto, or leave the key out")
    load_checkpoint(source, needed=RUN_KEYS)


def check_data(state: Mapping[str, Any], path: AnyPath, data_fingerprint: str | None) -> None:
    """Refuse, as a UsageError, to use a checkpoint on other data than it was trained on; None does not compare."""
    if _differ(state["data_fingerprint"], data_fingerprint):
        raise UsageError(f"cannot use '{path}' on '{state['dataset']}': {_OTHER_DATA}")


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
            if _differ(checkpoint["data_fingerprint"], data_fingerprint):
                getLogger().warning("resume=auto skips '%s': %s", path, _OTHER_DATA)
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


def capture_rng() -> dict[str, Any]:
    """The states of all global random number generators, as tensors and plain values."""
    version, numbers, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [str(name), np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "python": [version, list(numbers), gauss],
    }


def restore_rng(state: Mapping[str, Any]) -> None:
    """Set all global random number generators to the states of `capture_rng`."""
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))


def _differ(left: str | None, right: str | None) -> bool:
    """Whether two known fingerprints are of different data."""
    return left is not None and right is not None and left != right
