"""Make these models known to RecBole's functions by name. For other models the functions do not change."""

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar, cast

import recbole.data.dataset
import recbole.data.utils
from recbole.config import Config
from recbole.data.dataset import SequentialDataset
from recbole.evaluator.register import metrics_dict
from recbole.trainer import Trainer

from recbole_lisa import saved
from recbole_lisa.config.config import LISAConfig, known_keys
from recbole_lisa.config.model_defaults import model_defaults, settings_files
from recbole_lisa.config.notes import of_other_settings
from recbole_lisa.config.properties import properties_path
from recbole_lisa.config.query_time import reads_query_time
from recbole_lisa.config.registry import MODELS, OPTIONAL_MODELS, model_class
from recbole_lisa.config.schema import check_value, declared_keys, read_yaml
from recbole_lisa.config.validation import check_model, check_valid_metric, checked_negatives, valid_metric_of
from recbole_lisa.data.dataset import WindowDataset
from recbole_lisa.errors import RECBOLE, UsageError, shown
from recbole_lisa.model.attentive_recommender import AttentiveRecommender
from recbole_lisa.plugin.dataset import (
    check_columns,
    check_headers,
    check_ids,
    cut_histories,
    number_histories_as_items,
)
from recbole_lisa.training.checkpoint_file import load_checkpoint
from recbole_lisa.training.evaluation import check_topk
from recbole_lisa.training.memory import check_memory

P = ParamSpec("P")
R = TypeVar("R")

_RANGES_OF_A_RUN = {
    *("MAX_ITEM_LIST_LENGTH", "train_batch_size", "eval_batch_size", "learning_rate", "weight_decay", "seed"),
    *("loss_decimal_place", "metric_decimal_place"),
}
"""Settings that RecBole's own run reads as a run of this package does, by the same ranges."""
_OF_DATA = {"data.num_items", "data.num_users", "data.count_items", "data.count_users"}
"""Needs of a metric that are no tensors: RecBole's collector calls a method of tensors on each."""
_OF_A_DATASET = (
    *("query_time", "supervision", "windows", "loss_type", "train_neg_sample_args", "shared_negatives", "eval_args"),
    *("eval_seen", "encoding", "train_batch_size"),
)
"""Settings that an AllPositionsDataset reads: RecBole takes no saved data set that was made with other ones."""
_undo = ExitStack()
_read_defaults, _evaluate, _resume = Config._load_internal_config_dict, Trainer.evaluate, Trainer.resume_checkpoint
_final_settings, _build_trainer = Config._get_final_config_dict, Trainer.__init__
_load_files = recbole.data.dataset.Dataset._load_data
_set_alias, _read_presplit = SequentialDataset._init_alias, SequentialDataset._benchmark_presets


def register(dataset: type[Any] | None = None) -> None:
    """Make the models known to RecBole by name; a second call replaces the first.

    The defaults of this package override RecBole's files, and the user's settings override both. Where the user sets
    train_neg_sample_args to None and no loss, as RecBole's examples do, the loss is CE. Histories of pre-split files
    (`benchmark_filename`) get the ids of their items and keep their last MAX_ITEM_LIST_LENGTH items.
    `Trainer.evaluate`, `Trainer.resume_checkpoint` and `load_data_and_model` read the files of RecBole's trainer for
    these models, which torch 2.6 and later refuse to read. Code in such a file is run, so open only files that you
    trust. Import `load_data_and_model` after `register()`, or from `recbole_lisa`: a name that was imported earlier
    keeps RecBole's function. `objective_function` reports to Ray Tune 2.7 and later as well. `dataset` is the class
    that `create_dataset` uses for these models; by default RecBole's, which trains on prefixes. RecBole's own models
    keep theirs, so they train on prefixes in any case.

    Raises:
        UsageError: `dataset` is not a class of sequential data sets.
    """
    if dataset is not None and not (isinstance(dataset, type) and issubclass(dataset, SequentialDataset)):
        example = "such as AllPositionsDataset"
        raise UsageError(f"register takes a class of sequential data sets, {example}, got {shown(dataset)}")
    unregister()
    for name in (*MODELS, *OPTIONAL_MODELS):
        # Where `get_model` looks; the class keeps its own module, so that it can be pickled.
        path = f"recbole.model.sequential_recommender.{name.lower()}"
        sys.modules[path] = sys.modules[model_class(name).__module__]
        _undo.callback(sys.modules.pop, path, None)
        if dataset is not None:
            _change(recbole.data.dataset, f"{name}Dataset", dataset)
    _change(Config, "_load_internal_config_dict", _read_our_defaults)
    _change(Config, "_get_final_config_dict", _check_our_settings)
    _change(recbole.data.dataset.Dataset, "_load_data", _load_our_files)
    _change(SequentialDataset, "_init_alias", _set_our_alias)
    _change(SequentialDataset, "_benchmark_presets", _read_our_presplit)
    _change(recbole.data.utils, "dataset_arguments", [*recbole.data.utils.dataset_arguments, *_OF_A_DATASET])
    _change(Trainer, "__init__", _check_trainer)
    _change(Trainer, "evaluate", _evaluate_best)
    _change(Trainer, "resume_checkpoint", _resume_ours)
    quick_start = importlib.import_module("recbole.quick_start.quick_start")
    load = functools.partial(_load_data_and_model, quick_start.load_data_and_model)
    report = quick_start.tune.report
    if "metrics" in inspect.signature(report).parameters:  # since Ray 2.7; RecBole calls report(**metrics)
        _change(quick_start, "tune", SimpleNamespace(report=lambda **metrics: report(metrics)))
    for module in ("recbole.quick_start", "recbole.quick_start.quick_start"):
        _change(sys.modules[module], "load_data_and_model", load)


def unregister() -> None:
    """Undo `register`."""
    _undo.close()


def registered(function: Callable[P, R]) -> Callable[P, R]:
    """A picklable function that registers first, such as RecBole's `objective_function` in a new process."""
    if not callable(function):
        raise UsageError(f"registered takes a function, got {shown(function)}")
    return functools.partial(_register_and_call, function)


def _register_and_call(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    if Trainer.evaluate is _evaluate:
        register()
    return function(*args, **kwargs)


def _change(owner: Any, name: str, value: Any) -> None:
    before = (getattr(owner, name),) if hasattr(owner, name) else ()
    _undo.callback(setattr if before else delattr, owner, name, *before)
    setattr(owner, name, value)


def _read_our_defaults(self: Config, model: str, model_class: type[Any], dataset: str) -> None:
    """`Config._load_internal_config_dict` with our yaml files over RecBole's."""
    _read_defaults(self, model, model_class, dataset)
    if not issubclass(model_class, AttentiveRecommender):
        return
    settings, external = self.internal_config_dict, self.external_config_dict
    settings.update(model_defaults(model_class))
    if issubclass(getattr(recbole.data.dataset, f"{model}Dataset", SequentialDataset), WindowDataset):
        settings["supervision"] = "all_positions"
    keys = ("USER_ID_FIELD", "ITEM_ID_FIELD", "TIME_FIELD", "LIST_SUFFIX")
    user, item, time, suffix = (external.get(key, settings[key]) for key in keys)
    lists = [] if external.get("benchmark_filename") is None else [f"{item}{suffix}"]
    columns = (settings.get("load_col") or {}).get("inter")
    if columns == [settings["USER_ID_FIELD"], settings["ITEM_ID_FIELD"]]:
        # RecBole's default lacks the time, by which it sorts histories.
        settings["load_col"] = {"inter": [user, item, *filter(None, [time]), *lists]}
    if external.get("train_neg_sample_args", settings) is None:
        settings["loss_type"] = "CE"
    if external.get("loss_type", settings["loss_type"]) == "CE":
        settings["train_neg_sample_args"] = None


def _check_our_settings(self: Config) -> Any:
    """`Config._get_final_config_dict` that checks the user's settings of our models as a run of this package does."""
    settings = _final_settings(self)
    if issubclass(self.model_class, AttentiveRecommender):
        keys, overall = known_keys(settings_files(self.model_class), self.model), properties_path() / "overall.yaml"
        keys.update({name: key for name, key in declared_keys(overall).items() if name in _RANGES_OF_A_RUN})
        of_model = model_defaults(self.model_class)
        for name in self.external_config_dict.keys() & keys.keys():
            if settings[name] is not None or name in of_model:  # RecBole takes None for most of its keys
                settings[name] = check_value(keys[name], settings[name], "settings of RecBole")
        check_model(settings)
        self.model_class.check_settings(settings)
        checked_negatives(settings["train_neg_sample_args"], settings["loss_type"])
        names = [settings["metrics"]] if isinstance(settings["metrics"], str) else settings["metrics"]
        for name in names:
            if _OF_DATA & {*getattr(metrics_dict.get(name.lower()), "metric_need", ())}:
                why = f"RecBole {RECBOLE} cannot compute it in its own run: leave it out, or call recbole_lisa.run"
                raise UsageError(f"metrics has {name}, {why}")
        ranked = {**settings, "eval_seen": "rank"}  # RecBole's way
        settings["valid_metric"] = ranked["valid_metric"] = valid_metric_of(ranked, self.external_config_dict)
        if settings["eval_step"] > 0:
            check_valid_metric(ranked)
        if settings.get("item_codes", "learned") != "learned":
            raise UsageError(f"item_codes is {settings['item_codes']!r}, in RecBole's own run it must be learned")
        if settings.get("shared_negatives"):
            raise UsageError(f"shared_negatives is {settings['shared_negatives']}, in RecBole's own run it must be 0")
        if settings.get("windows") in ("random_offset", "whole"):
            raise UsageError(f"windows is {settings['windows']}, which only recbole_lisa.run can follow: leave it out")
    return settings


def _check_trainer(self: Any, config: Config, model: Any) -> None:
    """`Trainer.__init__` that refuses, for our models, a `topk` above the items, and logs settings without effect."""
    if isinstance(model, AttentiveRecommender):
        check_topk(config, model.n_items - 1, "items")
    _build_trainer(self, config, model)
    if isinstance(model, AttentiveRecommender) and not isinstance(config, LISAConfig):
        overall = read_yaml(properties_path() / "overall.yaml")
        has_windows = f"{config['model']}Dataset" in vars(recbole.data.dataset)
        read = {*known_keys([], config["model"]), "encoding", "tail_ratio", *(("windows", "supervision") * has_windows)}
        ours = {*overall, "codebook_init", "restart_dead_codewords", "protocol"} - read
        external, defaults = config.external_config_dict, overall | model_defaults(type(model))
        changed = {key: value for key, value in external.items() if value != defaults.get(key)}
        if idle := [key for key in external if key in ours and (key in changed or key == "supervision")]:
            self.logger.warning(f"no effect in RecBole's run, only in recbole_lisa.run: {', '.join(idle)}")
        rest = {key: value for key, value in changed.items() if key not in ours}
        for line in of_other_settings(config.final_config_dict, rest):
            self.logger.warning(line)


def _has_histories_in_files(dataset: Any) -> bool:
    """Whether RecBole's data set reads pre-split files for our models; WindowDataset reads plain ones by itself."""
    is_presplit = dataset.config["benchmark_filename"] is not None and not isinstance(dataset, WindowDataset)
    return is_presplit and issubclass(dataset.config.model_class, AttentiveRecommender)


def _load_our_files(self: Any, token: str, dataset_path: str) -> None:
    """`SequentialDataset._load_data` that checks the rows and the pre-split files of our models first."""
    is_ours = issubclass(self.config.model_class, AttentiveRecommender)
    if is_ours and not isinstance(self, WindowDataset):
        check_memory(self.config)
        right = "call recbole_lisa.register(AllPositionsDataset), or set another"
        if self.config["histogram_decay"] == "time":
            raise UsageError(f"histogram_decay is 'time', and RecBole's rows have no time between items: {right} decay")
        if reads_query_time(self.config):
            query_time = self.config["query_time"]
            raise UsageError(
                f"query_time is {query_time!r}, and RecBole's rows have no time of the target: {right} one"
            )
    if _has_histories_in_files(self):
        check_headers(self, token, dataset_path)
    try:
        _load_files(self, token, dataset_path)
    except ValueError as error:
        if not is_ours or isinstance(error, UsageError):
            raise
        if isinstance(error, UnicodeError):
            encoding = self.config["encoding"] or "utf-8"
            advice = f"not text in the encoding {encoding} ({error}): save it as UTF-8, or set encoding"
            raise UsageError(f"a file in {dataset_path} is {advice}") from error
        right = "call recbole_lisa.register(AllPositionsDataset), which reads quotes in ids and names a wrong cell"
        raise UsageError(f"RecBole cannot read a file in {dataset_path} ({error}): {right}") from error


def _set_our_alias(self: Any) -> None:
    """`SequentialDataset._init_alias` that checks the columns of our models and numbers histories as items."""
    if issubclass(self.config.model_class, AttentiveRecommender):
        check_columns(self)
        if _has_histories_in_files(self):
            number_histories_as_items(self)
    _set_alias(self)


def _read_our_presplit(self: Any) -> None:
    """`SequentialDataset._benchmark_presets` that checks and cuts the histories of our models."""
    if issubclass(self.config.model_class, AttentiveRecommender):
        check_ids(self)
        cut_histories(self)
    _read_presplit(self)


def _evaluate_best(
    self: Any, eval_data: Any, load_best_model: bool = True, model_file: Any = None, show_progress: bool = False
) -> Any:
    """`Trainer.evaluate` that reads the best epoch of our models."""
    if eval_data and load_best_model and _load_model(self, model_file or self.saved_model_file) is not None:
        load_best_model = False
    return _evaluate(self, eval_data, load_best_model, model_file, show_progress)


def _resume_ours(self: Any, resume_file: Any) -> Any:
    """`Trainer.resume_checkpoint` that continues the training of our models."""
    if (state := _load_model(self, resume_file)) is None:
        return _resume(self, resume_file)
    self.optimizer.load_state_dict(state["optimizer"])
    self.saved_model_file, self.start_epoch = str(resume_file), state["epoch"] + 1
    self.cur_step, self.best_valid_score = state["cur_step"], state["best_valid_score"]
    return None


def _load_model(trainer: Any, path: Any) -> dict[str, Any] | None:
    """Load what RecBole's trainer wrote of one of our models; None for another model or file."""
    if not isinstance(trainer.model, AttentiveRecommender) or not saved.is_recbole_file(path):
        return None
    model, state = cast(Any, trainer.model), saved.read_recbole_file(path)
    model.load_state_dict(state["state_dict"])
    model.load_other_parameter(state["other_parameter"])
    trainer.logger.info(f"loaded the model of epoch {state['epoch'] + 1} from {path}")
    return state


def _load_data_and_model(original: Callable[..., Any], model_file: Any) -> Any:
    """RecBole's function, for checkpoints of this package and for files of RecBole's trainer of our models as well."""
    if not saved.is_recbole_file(model_file):
        try:
            load_checkpoint(model_file, lazy=True)
        except UsageError:
            return original(model_file)
    return saved.load_data_and_model(model_file, trusted=True)
