"""One run from the files to the metrics."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from logging import getLogger
from os import PathLike
from time import perf_counter
from typing import Any

from recbole.utils import init_seed

from recbole_lisa.checkpoint import check_checkpoint_dir
from recbole_lisa.codebook_watch import check_codebook_plot, draw_codebooks
from recbole_lisa.config import LISAConfig
from recbole_lisa.data.dataloader import create_loaders
from recbole_lisa.data.dataset import create_dataset
from recbole_lisa.data.raw.obtain import with_data
from recbole_lisa.evaluation import check_loader
from recbole_lisa.results import check_result_file, collect_result, result_table, write_result
from recbole_lisa.resume import resume_if_asked
from recbole_lisa.run_log import run_log
from recbole_lisa.trainer import LISATrainer


def run(
    model: str | type[Any],
    dataset: str,
    *,
    protocol: str | None = None,
    config_files: Iterable[str | PathLike[str]] = (),
    config_dict: Mapping[str, Any] | None = None,
    command_line: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train a model on a data set, test its best epoch, print the metrics.

    A public data set whose file is missing is downloaded and converted first, unless `download` is False.

    Args:
        model: A name of the registry, or a model class.
        dataset: A data set name.
        protocol: How to split and score: the name of a file in `properties/protocol`; None takes the strongest
            `protocol` of the settings, and full_ranking without one.
        config_files: yaml files of the user; a later one wins.
        config_dict: Settings by key; stronger than files.
        command_line: Settings by key; stronger than `config_dict`.

    Returns:
        The result, see `recbole_lisa.results.collect_result` (`test` is None without test targets); with
        `result_file` it is also written there.

    Raises:
        UsageError: A setting or a file is wrong; the message says which and what would be right.
        TrainingDivergedError: The training loss is NaN or infinite.
    """
    build = partial(
        LISAConfig,
        model,
        dataset,
        protocol=protocol,
        config_files=list(config_files),
        config_dict=config_dict,
        command_line=command_line,
    )
    return run_configured(*with_data(build))


def run_configured(
    config: LISAConfig,
    notes: Iterable[str] = (),
    *,
    prepare: Callable[[Any], None] | None = None,
    observe: Callable[[LISATrainer], None] | None = None,
) -> dict[str, Any]:
    """As `run`, from a configuration.

    Args:
        config: Of the run.
        notes: Lines for the log, before the configuration.
        prepare: Called with the new model before training, for instance to give it parameters.
        observe: Called with the trainer after each validation, once its checkpoints are written: the metrics are
            `trainer.history[-1]["valid"]`. May raise to stop.

    Returns:
        The result, see `run`.

    Raises:
        UsageError: See `run`.
        TrainingDivergedError: See `run`.
    """
    started = perf_counter()
    check_result_file(config["result_file"])
    check_checkpoint_dir(config["checkpoint_dir"])
    check_codebook_plot(config["codebook_plot"])
    with run_log(config) as log:
        for line in (*notes, config):
            getLogger().info(line)
        init_seed(config["seed"], config["reproducibility"])
        train, valid, test = create_loaders(config, create_dataset(config))
        for loader in filter(None, (valid, test)):
            check_loader(loader, config)

        init_seed(config["seed"], config["reproducibility"])
        network = config.model_class(config, train.dataset).to(config["device"])
        if prepare is not None:
            prepare(network)
        getLogger().info(network)

        trainer = LISATrainer(config, network, run_name=log.name, data_fingerprint=train.dataset.data_fingerprint)
        resume_if_asked(trainer)
        bars = bool(config["show_progress"])
        told = None if observe is None else lambda _epoch, _score: observe(trainer)
        trainer.fit(train, valid, show_progress=bars, callback_fn=told, test_data=test)
        if config["codebook_plot"] and not draw_codebooks(trainer.history, config["codebook_plot"]):
            getLogger().warning(f"codebook_plot: {config['model']} has no codebooks, nothing is drawn")
        metrics = trainer.evaluate(test, show_progress=bars)

        seconds = perf_counter() - started
        result = collect_result(trainer, metrics, seconds=seconds, log_file=log.path)
        table = result_table(result)
        log.note(f"result\n{table}")
        print(table, flush=True)  # first, so that no failing disk takes the metrics
        if config["result_file"]:
            write_result(result, config["result_file"])
    return result
