"""The state of a run as a checkpoint holds it (`checkpoint_file.py`), and a new run put where the saved one was."""

import io
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recbole_lisa.data.tokens import joined_tokens
from recbole_lisa.distributed.processes import from_first
from recbole_lisa.environment import versions
from recbole_lisa.errors import UsageError
from recbole_lisa.files import AnyPath, resolved
from recbole_lisa.training.checkpoint_file import FORMAT, PROGRESS, RUN_KEYS, WEIGHT_KEYS, check_finite, load_checkpoint
from recbole_lisa.training.checkpoint_schema import load_optimizer
from recbole_lisa.training.resuming import OTHER_DATA, check_data, differ, differences, find_resumable, fingerprint_of
from recbole_lisa.training.schedule import WeightAverage


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
            **{name: getattr(run, name) for name in PROGRESS},
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
        for name in PROGRESS:
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
        if differ(state["data_fingerprint"], run.data_fingerprint):
            reasons.append(OTHER_DATA)
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
        state = load_checkpoint(path, needed=WEIGHT_KEYS)
        for key in ("model", "dataset"):
            if state[key] != self.run.config[key]:
                raise UsageError(f"'{path}' is of the {key} '{state[key]}', not '{self.run.config[key]}'")
        check_data(state, path, data_fingerprint)
        self.load_model(state)
        self.run.logger.info(f"Loading model structure and parameters from {path}")

    def adopt_data(self, train_data: Any) -> None:
        """Bind the run to the data set that it trains on; a run that began on another one is a UsageError."""
        fingerprint = fingerprint_of(train_data)
        if differ(self.run.data_fingerprint, fingerprint):
            raise UsageError(f"cannot go on with '{self.run.saved_model_file}': {OTHER_DATA}")
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
