"""RecBole's own model classes in a run of this package: their batches, and a trial before the training.

Their loss reads one target a row, and their batches have `MAX_ITEM_LIST_LENGTH` columns, as in RecBole.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from recbole.config import Config

from recbole_lisa.config.registry import has_loss_of_recbole
from recbole_lisa.data.dataloader import EvalLoader, TrainLoader
from recbole_lisa.errors import UsageError
from recbole_lisa.training.evaluation import candidate_scores
from recbole_lisa.training.memory import check_class, named_allocation_errors
from recbole_lisa.training.step import loss_parts


def fit_supervision(config: Config) -> list[str]:
    """Fit `supervision` to a class with RecBole's loss, of one target a row, else UsageError; lines for the log."""
    model = config.model_class
    if not has_loss_of_recbole(model):
        return []
    if config["transform"]:
        raise UsageError(f"{model.__name__} needs masked items ({config['transform']}): use RecBole's own run for it")
    if config["train_neg_sample_args"]["distribution"] != "none":
        needs = "one negative a row: set loss_type to CE if it has one, or use RecBole's own run"
        raise UsageError(f"{model.__name__} needs {needs}")
    if config["supervision"] == "last_position":
        return []
    config["supervision"] = "last_position"
    return [f"supervision is last_position: {model.__name__} of RecBole trains on one target a row"]


@contextmanager
def needs_in_one_line(config: Config) -> Iterator[None]:
    """Turn an error of one of RecBole's classes into a UsageError that names the class and what it lacks."""
    try:
        with named_allocation_errors():
            yield
    except Exception as error:
        if isinstance(error, UsageError) or not has_loss_of_recbole(config.model_class):
            raise
        reason = (str(error) or "no reason given").splitlines()[0] + _setting_of(error, config)
        raise UsageError(
            f"{config['model']} of RecBole cannot be trained on {config['dataset']} here ({type(error).__name__}: "
            f"{reason}): give the values that its settings allow (a recipe is for models of this package), load what "
            f"it needs, such as item features (load_col is {config['load_col']}), or use RecBole's own run, "
            "recbole.quick_start.run_recbole"
        ) from error


def _setting_of(error: Exception, config: Config) -> str:
    """The settings that hold the missing key of a KeyError: `, of selected_features`, or an empty text."""
    key = error.args[0] if isinstance(error, KeyError) and error.args else None
    lists = {name: value if isinstance(value, list) else [value] for name, value in config.final_config_dict.items()}
    names = [name for name, values in lists.items() if isinstance(key, str) and key in values]
    return f", of {', '.join(names)}" if names else ""


def try_class(config: Config, train: TrainLoader, *evaluations: EvalLoader | None) -> None:
    """Compute loss and scores of one batch by one of RecBole's classes; a UsageError where the data lacks its needs."""
    if not has_loss_of_recbole(config.model_class):
        return
    with needs_in_one_line(config):
        check_class(config, train.dataset)
        network: Any = config.model_class(config, train.dataset).to(config["device"])
        network.train()
        batch = train.shortest_batch().to(config["device"])
        torch.autograd.backward(loss_parts(network.calculate_loss(batch)))
        network.eval()
        for loader in filter(None, evaluations):
            candidate_scores(network, next(iter(loader.batches(range(1)))), config["device"])
