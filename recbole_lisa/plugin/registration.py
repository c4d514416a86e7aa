"""These models by name in RecBole's own functions: what is changed in RecBole, and how it is changed back.

Each change acts on models of this package alone; every other model finds RecBole as it was. See `register`.
"""

import functools
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any, ParamSpec, TypeVar

import recbole.data.dataset
import recbole.trainer
import torch
from recbole.config import Config
from recbole.data.dataset import SequentialDataset

from recbole_lisa.config.config import LISAConfig
from recbole_lisa.config.model_defaults import LOSS_WITHOUT_NEGATIVES, model_defaults
from recbole_lisa.config.registry import MODELS, model_class
from recbole_lisa.errors import UsageError
from recbole_lisa.model.attentive_recommender import AttentiveRecommender
from recbole_lisa.saved import is_recbole_file, leave_absent_gpu, load_data_and_model, read_recbole_file

P = ParamSpec("P")
R = TypeVar("R")

# Where `get_model` looks; its fifth place needs lightgbm to be looked at, and holds two models known by name.
_KINDS = (
    "sequential_recommender",
    "general_recommender",
    "context_aware_recommender",
    "knowledge_aware_recommender",
)
_ABSENT = object()
# (owner, attribute, what was there), in the order of the changes.
_changes: list[tuple[Any, str, Any]] = []
_stock_functions: dict[FunctionType, Callable[..., Any]] = {}
_aliases: dict[str, ModuleType] = {}
_torch_load = threading.RLock()


def register(dataset: type[Any] | None = None) -> None:
    """Make the models known to RecBole by name; calling it again changes nothing more.

    `get_model`, `Config`, `run_recbole`, `objective_function`, `create_dataset` and `get_trainer` then take the
    names of `MODELS`, with our default settings under RecBole's files; where `train_neg_sample_args` is set to None
    and no loss is named, as in RecBole's examples, the loss is CE. RecBole's `Trainer` and `load_data_and_model` read
    the files that they wrote of these models, which torch 2.6 and later refuse to.

    Args:
        dataset: The data set class that RecBole's `create_dataset` gives these models; None for its own
            `SequentialDataset`, which trains on prefixes.

    Raises:
        UsageError: RecBole has a model of the same name, or `dataset` is no data set class.
    """
    if dataset is not None and not (isinstance(dataset, type) and issubclass(dataset, SequentialDataset)):
        raise UsageError(
            f"register takes a class of sequential data sets, such as AllPositionsDataset, got {dataset!r}"
        )
    unregister()
    for name in MODELS:
        _alias(name)
        if dataset is not None:
            _change(recbole.data.dataset, f"{name}Dataset", dataset)
    _change(Config, "_load_internal_config_dict", _with_our_defaults(Config._load_internal_config_dict))
    trainer = recbole.trainer.Trainer
    _change(trainer, "evaluate", _with_readable_best(trainer.evaluate))
    _change(trainer, "resume_checkpoint", _with_readable_file(trainer.resume_checkpoint))
    try:
        quick_start = importlib.import_module("recbole.quick_start")
    except ImportError:  # it needs ray, which nothing here does
        return
    _change_body(quick_start.load_data_and_model, _load_here)


def unregister() -> None:
    """Undo `register`: RecBole is as it was."""
    while _changes:
        owner, name, original = _changes.pop()
        if original is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
    for path, module in _aliases.items():
        if sys.modules.get(path) is module:
            del sys.modules[path]
    _aliases.clear()


def registered(function: Callable[P, R]) -> Callable[P, R]:
    """A function that registers first, wherever it runs: also in a fresh process of multiprocessing or of ray.

    Args:
        function: For instance RecBole's `objective_function`; picklable when it is to travel.

    Returns:
        A picklable function with the same arguments and result.
    """
    return functools.partial(_register_and_call, function)


def _register_and_call(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    if not _changes:
        register()
    return function(*args, **kwargs)


def _alias(name: str) -> None:
    """Put our module where `get_model` looks for one; its classes keep their own paths, so that they pickle."""
    for kind in _KINDS:
        if importlib.util.find_spec(f"recbole.model.{kind}.{name.lower()}"):
            raise UsageError(f"RecBole has a {kind} named {name} of its own: give the class instead of the name")
    path = f"recbole.model.{_KINDS[0]}.{name.lower()}"
    sys.modules[path] = _aliases[path] = sys.modules[model_class(name).__module__]


def _change(owner: Any, name: str, value: Any) -> None:
    _changes.append((owner, name, vars(owner).get(name, _ABSENT)))
    setattr(owner, name, value)


def _change_body(function: FunctionType, body: FunctionType) -> None:
    """Change a function itself, so that whoever imported it before has the change too, and keep what it did."""
    _changes.append((function, "__code__", function.__code__))
    stock = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    _stock_functions[body] = functools.update_wrapper(stock, function)
    function.__code__ = body.__code__


def _is_ours(model: Any) -> bool:
    return isinstance(model, type) and issubclass(model, AttentiveRecommender)


def _with_our_defaults(original: Callable[..., None]) -> Callable[..., None]:
    """Our yaml files over RecBole's, which know nothing of these models, and under all that the user says."""

    @functools.wraps(original)
    def load(self: Config, model: str, model_class: type[Any], dataset: str) -> None:
        original(self, model, model_class, dataset)
        if not _is_ours(model_class) or isinstance(self, LISAConfig):
            return
        settings = self.internal_config_dict
        settings.update(model_defaults(model_class))
        columns = (settings.get("load_col") or {}).get("inter")
        if columns == [settings["USER_ID_FIELD"], settings["ITEM_ID_FIELD"]]:
            # RecBole's sample.yaml, which lacks what it sorts histories by.
            settings["load_col"] = {"inter": [*columns, settings["TIME_FIELD"]]}
        said = self.external_config_dict
        if said.get("train_neg_sample_args", settings) is None:
            settings["loss_type"] = LOSS_WITHOUT_NEGATIVES  # as RecBole's examples have it
        if said.get("loss_type", settings["loss_type"]) == LOSS_WITHOUT_NEGATIVES:
            settings["train_neg_sample_args"] = None

    return load


def _with_readable_best(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Trainer.evaluate` that reads the best model, as torch 2.6 no longer does by default."""

    @functools.wraps(original)
    def evaluate(
        self: Any, eval_data: Any, load_best_model: bool = True, model_file: Any = None, show_progress: bool = False
    ) -> Any:
        path = model_file or self.saved_model_file
        if eval_data and load_best_model and is_recbole_file(path) and _is_ours(type(self.model)):
            state = read_recbole_file(path)
            self.model.load_state_dict(state["state_dict"])
            self.model.load_other_parameter(state["other_parameter"])
            self.logger.info(f"Loading model structure and parameters from {path}")
            load_best_model = False
        return original(self, eval_data, load_best_model, model_file, show_progress)

    return evaluate


def _with_readable_file(original: Callable[..., None]) -> Callable[..., None]:
    """`Trainer.resume_checkpoint` that reads what the trainer wrote of our models."""

    @functools.wraps(original)
    def resume_checkpoint(self: Any, resume_file: Any) -> None:
        with _whole_files(_is_ours(type(self.model)) and is_recbole_file(resume_file)):
            original(self, resume_file)

    return resume_checkpoint


def _load_here(model_file):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Body of RecBole's function, and so run among its globals."""
    from recbole_lisa.plugin.registration import load_of_both

    return load_of_both(model_file)


def load_of_both(model_file: Any) -> Any:
    """RecBole's `load_data_and_model`, for the checkpoints of this package and for those of RecBole of our models."""
    if _is_of_this_package(model_file):
        return load_data_and_model(model_file)
    with _whole_files(is_recbole_file(model_file)):
        return _stock_functions[_load_here](model_file)


def _is_of_this_package(path: Any) -> bool:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception:  # noqa: BLE001 - whatever broken or foreign bytes lead to: RecBole's function tells
        return False
    return isinstance(state, dict) and str(state.get("format")).startswith("recbole-lisa")


@contextmanager
def _whole_files(wanted: bool) -> Iterator[None]:
    """Let `torch.load` read objects besides tensors, in this thread and for this call."""
    if not wanted:
        yield
        return
    with _torch_load:
        original, thread = torch.load, threading.get_ident()

        @functools.wraps(original)
        def load(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return original(*args, **kwargs)
            kwargs.setdefault("weights_only", False)
            kwargs.setdefault("map_location", None if torch.cuda.is_available() else "cpu")
            state = original(*args, **kwargs)
            leave_absent_gpu(state)
            return state

        torch.load = load
        try:
            yield
        finally:
            torch.load = original
