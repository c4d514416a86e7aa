"""One run from the files to the metrics."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from glob import escape
from logging import getLogger
from os import PathLike
from pathlib import Path
from threading import RLock
from time import perf_counter, time
from typing import Any

import torch
from recbole.utils import init_seed

from recbole_lisa.config.config import LISAConfig
from recbole_lisa.data.dataloader import EvalLoader, create_loaders
from recbole_lisa.data.dataset import create_dataset
from recbole_lisa.datasets.obtain import ensure_data, interaction_files
from recbole_lisa.distributed.launch import launch
from recbole_lisa.distributed.processes import is_first, process_group, started_by_torchrun
from recbole_lisa.errors import UsageError
from recbole_lisa.files import advise_after_interruption, check_output, resolved
from recbole_lisa.item_codes import set_item_codes
from recbole_lisa.training.checkpoint import Checkpoint
from recbole_lisa.training.codebook_usage import check_codebook_plot, draw_codebooks, log_equal_codes
from recbole_lisa.training.compilation import check_compiler, compile_encoder
from recbole_lisa.training.evaluation import check_phases
from recbole_lisa.training.logging import RunLog, log_settings, run_log
from recbole_lisa.training.memory import check_memory, named_allocation_errors
from recbole_lisa.training.recbole_classes import fit_supervision, needs_in_one_line, try_class
from recbole_lisa.training.result import collect_result, log_tied_targets, result_table, write_per_user, write_result
from recbole_lisa.training.resuming import advice_after_interruption, check_resume
from recbole_lisa.training.trainer import LISATrainer

_ENDINGS = {"result_file": (".json",), "codebook_plot": (".png",), "per_user_file": (".csv", ".json")}
_RUNNING = RLock()  # held during a run: the runs of a process would share the global random generators


def run(
    model: str | type[Any],
    dataset: str | PathLike[str],
    *,
    protocol: str | None = None,
    config_files: str | PathLike[str] | Iterable[str | PathLike[str]] = (),
    config_dict: Mapping[str, Any] | None = None,
    command_line: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train a model on a data set, test its best epoch, print the metrics.

    A public data set whose file is missing is downloaded and converted first, unless `download` is False.

    Args:
        model: A name of the registry, or a model class.
        dataset: A data set name.
        protocol: How to split and score: a file of `properties/protocol`; None takes that of the settings, if any.
        config_files: yaml files of the user; a later one wins.
        config_dict: Settings by key; stronger than files.
        command_line: Settings by key; stronger than `config_dict`.

    Returns:
        The result, see `recbole_lisa.training.result.collect_result`; with `result_file` it is also written there.

    Raises:
        UsageError: A setting or a file is wrong; the message says which and what would be right. So for a second run
            at the same time in another thread.
        TrainingDivergedError: The training loss is NaN or infinite.
        ProcessFailedError: One of several processes (`nproc`) was killed or failed.
        OSError: A file cannot be written; the other files are, and the metrics are printed.
    """
    settings: dict[str, Any] = {"config_dict": config_dict, "command_line": command_line}
    return run_configured(LISAConfig(model, dataset, protocol=protocol, config_files=config_files, **settings))


def run_configured(
    config: LISAConfig,
    *,
    prepare: Callable[[Any], None] | None = None,
    observe: Callable[[LISATrainer], None] | None = None,
) -> dict[str, Any]:
    """As `run`, from a configuration.

    `prepare` is called with the new model before training, `observe` in the first process with the trainer after each
    validation, once its checkpoints are written: the metrics are `trainer.history[-1]["valid"]`. It may raise to stop.
    With `nproc` both must be picklable.
    """
    if not _RUNNING.acquire(blocking=False):
        raise UsageError("another run is going on in a thread of this process: start each run in its own process")
    try:
        check_run(config)
        notes = ensure_data(config)
        advice = partial(advice_after_interruption, config.plain(), config["checkpoint_dir"], time())
        with advise_after_interruption(advice):
            if started_by_torchrun(config):
                with process_group(config):
                    return train_and_test(config, notes, prepare, observe)
            if config["nproc"] > 1:
                return launch(train_and_test, config, notes, prepare, observe)
            return train_and_test(config, notes, prepare, observe)
    finally:
        _RUNNING.release()


def check_run(config: LISAConfig) -> None:
    """Raise a UsageError for what can be known before the data is read: outputs, checkpoint, compiler, memory."""
    outputs: dict[Path, str] = {}
    sources = [config[key] for key in ("resume", "item_codes", "item_codes_checkpoint") if config[key]]
    sources += [*config.files_read, *interaction_files(config)]
    sources += Path(config["data_path"]).glob(f"{escape(config['dataset'])}.*")  # of users and items as well
    saved = config["dataset_save_path"]
    sources += Path(saved).glob("*") if saved else Path(config["checkpoint_dir"] or "").glob("*.dataset/*")
    inputs = {resolved(path): path for path in sources}
    for key, endings in _ENDINGS.items():
        if config[key] is not None:
            path = resolved(config[key])
            check_output(config[key], overwrite=may_overwrite(config), source=inputs.get(path))
            if not str(config[key]).endswith(endings):
                raise UsageError(f"{key} is '{config[key]}', it must end in {' or '.join(endings)}")
            if (other := outputs.setdefault(path, key)) != key:
                raise UsageError(f"{other} and {key} are both '{config[key]}': each needs its own file")
    check_output(config["checkpoint_dir"] or "", overwrite=True, folder=True)
    check_codebook_plot(config["codebook_plot"])
    check_resume(config["resume"])
    check_compiler(config)
    check_memory(config)


def train_and_test(
    config: LISAConfig,
    notes: Iterable[str],
    prepare: Callable[[Any], None] | None,
    observe: Callable[[LISATrainer], None] | None,
) -> dict[str, Any]:
    """The run in this process, which may be one of several."""
    started = perf_counter()
    gradients = torch.inference_mode(False), torch.enable_grad()  # a notebook may have turned them off
    with gradients[0], gradients[1], run_log(config) as log, named_allocation_errors():
        log_settings(config, [*notes, *config.notes, *fit_supervision(config)], log)
        init_seed(config["seed"], config["reproducibility"])
        with needs_in_one_line(config):
            train, valid, test = create_loaders(config, create_dataset(config))
        check_phases(config, train, valid, test)
        check_memory(config, train.dataset.item_num, train.windows)
        try_class(config, train, valid, test)
        init_seed(config["seed"], config["reproducibility"])
        network = config.model_class(config, train.dataset).to(config["device"])
        set_item_codes(network, config, train.dataset)
        if prepare is not None:
            prepare(network)
        if config["compile"]:
            compile_encoder(network)
        log.note(str(network))

        trainer = LISATrainer(config, network, run_name=log.name, data_fingerprint=train.dataset.data_fingerprint)
        Checkpoint(trainer).resume_as_configured()
        bars = bool(config["show_progress"])
        callback = (lambda *_: observe(trainer)) if observe is not None and is_first() else None
        trainer.fit(train, valid, show_progress=bars, callback_fn=callback, test_data=test)
        metrics = trainer.evaluate(test, show_progress=bars)

        result = collect_result(trainer, metrics, seconds=perf_counter() - started, log_file=log.path)
        if is_first():
            report(result, trainer, log, test)
    return result


def report(result: dict[str, Any], trainer: LISATrainer, log: RunLog, test: EvalLoader | None) -> None:
    """Write the files of the result, print the metrics, draw the codebooks: each step even if one before it fails."""
    config, table = trainer.config, result_table(result)
    overwrite = may_overwrite(config)

    def write(step: Callable[..., object], *arguments: Any, **options: Any) -> None:
        try:
            step(*arguments, **options)
        except OSError as error:  # of several, the program's last line names one
            getLogger().warning(f"'{error.filename}' cannot be written: {error.strerror}")
            raise

    def write_users(loader: EvalLoader) -> None:
        path, result["per_user_file"] = result["per_user_file"], None
        result["per_user_file"] = str(write_per_user(loader, config, trainer.collected, path, overwrite=overwrite))

    with ExitStack() as later:  # the last one is the first
        if config["codebook_plot"]:
            later.callback(write, draw_codebooks, trainer.history, config["codebook_plot"], overwrite=overwrite)
        later.callback(print, table, flush=True)
        later.callback(log.note, f"result\n{table}")
        later.callback(log_tied_targets, result)
        later.callback(log_equal_codes, trainer.model)
        if config["result_file"]:
            later.callback(write, write_result, result, config["result_file"], overwrite=overwrite)
        if config["per_user_file"] and test:
            later.callback(write, write_users, test)
        trainer.saver.check()


def may_overwrite(config: LISAConfig) -> bool:
    """Whether a run may replace its outputs: a resumed one continues its own."""
    return bool(config["overwrite"]) or config["resume"] is not None
