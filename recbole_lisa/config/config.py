"""The configuration of one run: RecBole's, with our defaults over RecBole's and the user's over both."""

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import recbole
from recbole.config import Config
from recbole.utils import dataset_arguments, evaluation_arguments, general_arguments, training_arguments

from recbole_lisa.config.data_checks import check_reading
from recbole_lisa.config.model_defaults import lineage, models_with, settings_files
from recbole_lisa.config.notes import WITHOUT_EFFECT, log_notes
from recbole_lisa.config.properties import properties_path
from recbole_lisa.config.registry import model_class
from recbole_lisa.config.schema import NULLS, Key, YamlLoader, as_plain, check_value, declared_keys, read_yaml
from recbole_lisa.config.validation import SEEN_SUFFIXES, check_settings, completed, device_of
from recbole_lisa.errors import UsageError, did_you_mean, shown
from recbole_lisa.files import path_of

# Dicts whose parts are merged: a user who sets one part keeps the others.
_MERGED = ("eval_args", "train_neg_sample_args")
_DEFAULT_PROTOCOL = "full_ranking"
BUNDLED_DATASET = "ml-100k"
_SYNONYMS = (
    *(("hidden_size", "embedding_size"), ("n_layers", "num_layers"), ("hidden_dropout_prob", "dropout_prob")),
    *(("train_neg_sample_args", "neg_sampling"), ("train_neg_sample_args", "training_neg_sample_num")),
)
"""Names of one setting in different models and versions of RecBole, and of this package."""
_OF_RECBOLE = Path(recbole.__file__).parent / "properties"
NAME_BYTES = 255  # of a file, on the usual file systems
# What RecBole or the constructor derives from other keys or from the machine.
_DERIVED = {
    *("model", "dataset", "protocol", "data_path", "MODEL_TYPE", "MODEL_INPUT_TYPE", "eval_type"),
    *("valid_neg_sample_args", "test_neg_sample_args", "device", "gpu_id", "local_rank", "single_spec"),
    "recipe",  # all its settings are saved
    *("nproc", "enable_amp", "enable_scaler"),  # nproc depends on the machine, the others on `amp`
    # Of knowledge graphs. RecBole's files of data sets leave them out; then they are None, which it does not accept.
    *("entity_kg_num_interval", "relation_kg_num_interval"),
}


class LISAConfig(Config):
    """RecBole's Config without its surprises: no sys.argv, no eval, no unknown key, no change of the devices.

    From strongest to weakest: command line, `config_dict`, `config_files` (a later file wins), our recipe file if
    `recipe` is set, our protocol file, the data set file's settings for the model, our data set, model and overall
    files, RecBole's files.

    Attributes:
        notes: Lines for the log: settings without effect, and settings that the program chose.
    """

    def __init__(
        self,
        model: str | type[Any],
        dataset: str | PathLike[str],
        *,
        protocol: str | None = None,
        config_files: str | PathLike[str] | Iterable[str | PathLike[str]] = (),
        config_dict: Mapping[str, Any] | None = None,
        command_line: Mapping[str, Any] | None = None,
        options: Iterable[str] = (),
        saved_settings: Mapping[str, Any] | None = None,
        saved_in: str = "saved settings",
    ) -> None:
        """Read, merge and check the settings; no data is read and no folder is made.

        The model is a name of the registry or a class, the data set a name with a yaml file or that of your own
        `<data_path>/<name>/<name>.inter`. `protocol` names a file in `properties/protocol`; None takes the strongest of
        the settings, and full_ranking without one. Text of settings is read as yaml, never evaluated. `options` of the
        command are not settings; an error may suggest one. `saved_settings`, of `saved_in`, are weaker than all others.

        A UsageError names the first key, name, type or value that is wrong.
        """
        if not isinstance(dataset, str | PathLike):
            raise UsageError(f"dataset is {shown(dataset)}, it must be the name of a data set, such as 'ml-100k'")
        self.model_class = model_class(model)
        self.model, self.dataset = self.model_class.__name__, str(dataset)
        self.files_read = _paths(config_files)
        if Path(self.dataset).name != self.dataset:
            right = "not a path; data_path is the folder above its folder"
            raise UsageError(f"dataset is {shown(self.dataset)}, it must be the name of a data set, {right}")
        sources = [(saved_in, saved_settings or {}), *_sources(self.files_read, config_dict, command_line)]
        protocol = str(protocol or _strongest(sources, "protocol") or _DEFAULT_PROTOCOL)
        recipe = _strongest(sources, "recipe")
        recipe_settings = read_yaml(_named_file("recipe", recipe)) if recipe else {}
        files = _packaged_files(self.model_class, self.dataset, protocol)
        self._keys = known_keys(files, _name_in_recbole(self.model_class))
        self._suggestions = [*self._keys, "model", "dataset", "protocol", "config_files", *options]
        self.external_config_dict: dict[str, Any] = {}
        for origin, settings in sources:
            _update(self.external_config_dict, self.checked(settings, origin))
        self._init_parameters_category()
        self.yaml_loader = YamlLoader
        self._load_internal_config_dict(_name_in_recbole(self.model_class), self.model_class, self.dataset)
        self.internal_config_dict.update(_packaged_settings(files, lineage(self.model_class)))
        self.internal_config_dict.update({key: recipe_settings[key] for key in recipe_settings if key in self._keys})
        self.final_config_dict = {**self._merged(), "protocol": protocol}
        self.notes = log_notes(self.final_config_dict, self.external_config_dict, self.internal_config_dict)
        if foreign := [key for key in recipe_settings if key not in self._keys]:
            self.notes.append(f"recipe {recipe}: {self.model} has no {', '.join(foreign)}")
        for key in self.final_config_dict.keys() & {*WITHOUT_EFFECT}:
            self.final_config_dict[key] = self.internal_config_dict.get(key)
        self._set_default_parameters()
        device = device_of(self.final_config_dict, self.external_config_dict)
        self.final_config_dict.update(device=device, single_spec=True, local_rank=0)
        self._set_train_neg_sample_args()
        self._set_eval_neg_sample_args("valid")
        self._set_eval_neg_sample_args("test")

    @classmethod
    def from_plain(
        cls,
        saved_settings: Mapping[str, Any],
        *,
        model: str | type[Any] | None = None,
        config_dict: Mapping[str, Any] | None = None,
        command_line: Mapping[str, Any] | None = None,
        saved_in: str = "saved settings",
    ) -> "LISAConfig":
        """Build the configuration of a saved run again; see the constructor.

        `saved_settings` is the result of `plain`; `config_dict` replaces saved settings, and `command_line` both.
        `saved_in` says in a UsageError where the saved settings are from.
        `model` is the class where it is not in the registry.
        """
        settings = {key: value for key, value in saved_settings.items() if key not in _DERIVED}
        if settings.get("use_gpu"):  # the default, which the user need not have written
            del settings["use_gpu"]
        if "amp" not in saved_settings:
            amp_keys = saved_settings.keys() & {"enable_amp", "enable_scaler"}
            settings.update({key: saved_settings[key] for key in amp_keys})
        if settings["train_neg_sample_args"]["distribution"] == "none":
            settings["train_neg_sample_args"] = None
        folder = Path(saved_settings["data_path"])
        if folder.name == saved_settings["dataset"]:  # the constructor adds the name
            settings["data_path"] = str(folder.parent)
        replaced = settings_by_key(config_dict, "config_dict") | settings_by_key(command_line, "command line")
        seen = replaced.get("eval_seen")
        if seen in ("rank", "mask"):  # the same metric, by its name in the other ranking
            settings["valid_metric"] = settings["valid_metric"].removesuffix("_masked") + SEEN_SUFFIXES[seen][0]
        if {"metrics", "topk"} & replaced.keys():  # the default, or the first that is left
            del settings["valid_metric"]
        settings = {key: value for key, value in settings.items() if key not in replaced}
        model, names = model or saved_settings["model"], {key: saved_settings[key] for key in ("dataset", "protocol")}
        user: dict[str, Any] = {"config_dict": config_dict, "command_line": command_line}
        return cls(model, **names, **user, saved_settings=settings, saved_in=saved_in)

    def plain(self) -> dict[str, Any]:
        """Copy the settings as values that JSON and `torch.load(weights_only=True)` can hold."""
        return {key: as_plain(value) for key, value in self.final_config_dict.items()}

    def checked(self, settings: Mapping[str, Any], origin: str) -> dict[str, Any]:
        """Check settings, or texts of a command line, and convert them to the types of their keys.

        `origin` says in a UsageError where the settings are from, such as `command line`.
        """
        arguments = {"model": self.model, "dataset": self.dataset, "protocol": settings.get("protocol")}
        for name, value in settings.items():
            if name in arguments and value != arguments[name]:
                raise UsageError(
                    f"{name} is '{value}' ({origin}) but '{arguments[name]}' was chosen: settings may repeat it, not "
                    f"change it; remove the key or choose '{value}'"
                )
            if name not in self._keys and name not in arguments:
                if name in _DERIVED:
                    raise UsageError(f"{name!r} ({origin}) follows from other settings: leave it out")
                if name in self._suggestions:
                    raise UsageError(f"{name!r} ({origin}) is no setting: give it as an argument of its own")
                if other := [key for pair in _SYNONYMS if name in pair for key in pair if key in self._keys]:
                    raise UsageError(f"unknown key {name!r} ({origin}): {self.model} has {other[0]!r} instead")
                if models := ", ".join(models_with(name)):
                    raise UsageError(f"unknown key {name!r} for {self.model} ({origin}): it is a setting of {models}")
                raise UsageError(f"unknown key {name!r} ({origin}).{did_you_mean(str(name), self._suggestions)}")
        rest = {name: value for name, value in settings.items() if name not in arguments}
        return {name: check_value(self._keys[name], value, origin) for name, value in rest.items()}

    def _merged(self) -> dict[str, Any]:
        """All settings, complete and checked."""
        external, settings = as_plain(self.external_config_dict), {**self.internal_config_dict}
        if external.get("loss_type", settings.get("loss_type")) == "CE":
            # The defaults have negatives. With CE they are dropped; negatives of the user are an error.
            settings["train_neg_sample_args"] = None
        _update(settings, external)
        settings.update(completed(settings, external))
        check_settings(settings)
        check_reading(settings)
        if settings["windows"] == "whole" and not getattr(self.model_class, "reads_any_length", False):
            limit = f"{self.model} reads at most MAX_ITEM_LIST_LENGTH items"
            raise UsageError(f"windows is whole, but {limit}: set windows to disjoint")
        if hasattr(self.model_class, "check_settings"):  # a class of the user may be any of RecBole's
            self.model_class.check_settings(settings)
        return settings

    def _set_default_parameters(self) -> None:
        super()._set_default_parameters()
        if self.dataset == BUNDLED_DATASET and "data_path" in self.external_config_dict:
            # RecBole always takes its bundled copy; here a file in the user's data_path comes first.
            folder = Path(self.external_config_dict["data_path"]) / self.dataset
            if (folder / f"{self.dataset}.inter").is_file():
                self.final_config_dict["data_path"] = str(folder)


def _paths(files: Any) -> list[Path]:
    """The paths of config_files, which may be one path or several."""
    paths = [files] if isinstance(files, str | PathLike) else list(files) if isinstance(files, Iterable) else [files]
    if isinstance(files, Mapping) or not all(isinstance(path, str | PathLike) for path in paths):
        right = "a yaml file or a list of them; config_dict has settings"
        raise UsageError(f"config_files is {shown(files)}, it must be {right}")
    return [path_of(path, "config_files") for path in paths]


def _sources(paths: list[Path], config_dict: Any, command_line: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """The user's settings with their origins, weakest first."""
    sources: list[tuple[str, Mapping[str, Any]]] = [(f"file {path}", read_yaml(path)) for path in paths]
    by_key = {"config_dict": config_dict, "command line": command_line}
    return [*sources, *((origin, settings_by_key(settings, origin)) for origin, settings in by_key.items())]


def settings_by_key(settings: Any, origin: str) -> dict[str, Any]:
    """The settings as a dictionary, {} for None; a UsageError for what is no mapping."""
    if settings is not None and not isinstance(settings, Mapping):
        raise UsageError(f"{origin} is {shown(settings)}, it must hold settings by key, such as {{'epochs': 10}}")
    for key, value in (settings or {}).items():
        try:
            plain = as_plain(value)
        except RecursionError as error:
            raise UsageError(f"{key} ({origin}) is nested without end") from error
        if any("\0" in part for part in (plain if isinstance(plain, list) else [plain]) if isinstance(part, str)):
            raise UsageError(f"{key} ({origin}) is {shown(value)}, it must not have the character NUL")
    return dict(settings or {})


def _strongest(sources: list[tuple[str, Mapping[str, Any]]], key: str) -> str | None:
    """The name that the strongest of the user's settings gives for a key, or None; `~` takes back a weaker one."""
    names = [settings[key] for _, settings in sources if key in settings]
    return str(names[-1]) if names and names[-1] not in (None, *NULLS) else None


def _named_file(kind: str, name: str) -> Path:
    """Our file of a protocol or a recipe."""
    folder = properties_path() / kind
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in names:
        raise UsageError(f"unknown {kind} '{name}': known are {', '.join(names)}.{did_you_mean(name, names)}")
    return folder / f"{name}.yaml"


def _packaged_files(model: type[Any], dataset: str, protocol: str) -> list[Path]:
    """Our files for this run, weakest first; a data set of the user has none."""
    root = properties_path()
    of_dataset = root / "dataset" / f"{dataset}.yaml"
    path_of(dataset, "dataset")
    if len(of_dataset.name.encode(errors="surrogateescape")) > NAME_BYTES:
        raise UsageError(f"dataset must be the name of a folder, got {len(dataset):,} characters: {dataset[:40]!r}...")
    files = [root / "overall.yaml", *settings_files(model), of_dataset, _named_file("protocol", protocol)]
    return [file for file in files if file != of_dataset or file.is_file()]


def _packaged_settings(files: list[Path], lineage: list[str]) -> dict[str, Any]:
    """Merge our files. A data set's `model_settings` come right after the other settings of its file."""
    settings: dict[str, Any] = {}
    for file in files:
        settings.update(read_yaml(file))
        by_model = settings.pop("model_settings", {})
        for name in lineage:
            settings.update(by_model.get(name, {}))
    return settings


def known_keys(files: list[Path], model: str) -> dict[str, Key]:
    """Every key of RecBole and of this package, with its types; a declaration of this package replaces RecBole's."""
    arguments = (*general_arguments, *training_arguments, *evaluation_arguments, *dataset_arguments)
    keys = {name: Key(name) for name in arguments if name != "config_file"}
    of_recbole = [_OF_RECBOLE / name for name in ("overall.yaml", "dataset/sample.yaml", f"model/{model}.yaml")]
    for file in [*filter(Path.is_file, of_recbole), *files]:
        keys.update(declared_keys(file))
    keys.pop("model_settings", None)
    return keys


def _name_in_recbole(model: type[Any]) -> str:
    """The name of a class, or of the nearest of its bases, for which RecBole has settings; else its own."""
    named = (name for name in reversed(lineage(model)) if (_OF_RECBOLE / "model" / f"{name}.yaml").is_file())
    return next(named, model.__name__)


def _update(settings: dict[str, Any], stronger: Mapping[str, Any]) -> None:
    """Overwrite settings in place; the parts of `_MERGED` dicts are overwritten one by one."""
    for key, value in stronger.items():
        if key in _MERGED and isinstance(value, dict) and isinstance(settings.get(key), dict):
            settings[key] = {**settings[key], **value}
        else:
            settings[key] = value
