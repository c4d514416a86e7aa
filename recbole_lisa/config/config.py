"""The configuration of one run: RecBole's, with our defaults over RecBole's and the user's over both."""

import copy
from collections.abc import Iterable, Mapping
from enum import Enum
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from recbole.config import Config
from recbole.utils import dataset_arguments, evaluation_arguments, general_arguments, training_arguments

from recbole_lisa.compat import restore_numpy_aliases
from recbole_lisa.config.data_checks import check_reading
from recbole_lisa.config.model_defaults import lineage, settings_files
from recbole_lisa.config.properties import properties_path
from recbole_lisa.config.registry import model_class
from recbole_lisa.config.schema import Key, YamlLoader, check_value, declared_keys, read_yaml
from recbole_lisa.config.validation import (
    check_effect,
    check_eval_args,
    check_metrics,
    check_model,
    check_negatives,
    check_optimizer,
    check_processes,
    check_surroundings,
    mixed_precision,
)
from recbole_lisa.errors import UsageError, did_you_mean

# Dicts whose parts are merged: a user who sets one part keeps the others.
_MERGED = ("eval_args", "train_neg_sample_args")
# Arguments of the constructor that a file may repeat but not contradict.
_ARGUMENTS = ("model", "dataset")
_DEFAULT_PROTOCOL = "full_ranking"
BUNDLED_DATASET = "ml-100k"
# What RecBole or the constructor derives from other keys or from the machine.
_DERIVED = {
    *("model", "dataset", "protocol", "data_path", "MODEL_TYPE", "MODEL_INPUT_TYPE", "eval_type"),
    *("valid_neg_sample_args", "test_neg_sample_args", "device", "gpu_id", "local_rank", "single_spec"),
    *("nproc", "enable_amp", "enable_scaler"),  # the machine's; `amp` says the others
    # Of knowledge graphs; None, which is no value of theirs, where RecBole's file of a data set leaves them out.
    *("entity_kg_num_interval", "relation_kg_num_interval"),
}


class LISAConfig(Config):
    """RecBole's Config without its surprises: no sys.argv, no eval, no unknown key, no change of the devices.

    From strongest to weakest: command line, `config_dict`, `config_files` (a later file wins), our protocol
    file, the data set file's settings for the model, our data set, model and overall files, RecBole's files.
    """

    def __init__(
        self,
        model: str | type[Any],
        dataset: str,
        *,
        protocol: str | None = None,
        config_files: Iterable[str | PathLike[str]] = (),
        config_dict: Mapping[str, Any] | None = None,
        command_line: Mapping[str, Any] | None = None,
    ) -> None:
        """Read, merge and check the settings; no data is read and no folder is made.

        Args:
            model: A name of the registry, or a model class.
            dataset: A name with a yaml file, or the name of your own `<data_path>/<name>/<name>.inter`.
            protocol: Name of a file in `properties/protocol`; None takes the strongest `protocol` of the settings,
                and full_ranking without one.
            config_files: yaml files of the user.
            config_dict: Settings by key.
            command_line: Settings by key; text is read as yaml, never evaluated.

        Raises:
            UsageError: A key, name, type or value is wrong.
        """
        found_class = model_class(model) if isinstance(model, str) else model
        self._arguments = {"model": found_class.__name__, "dataset": dataset}
        self._files = {Path(file): read_yaml(Path(file)) for file in config_files}
        if protocol is None:
            protocol = _protocol(command_line, config_dict, *reversed(self._files.values()))
        files = _packaged_files(found_class, dataset, protocol)
        self._packaged = _packaged_settings(files, lineage(found_class))
        self._keys = _known_keys(files, found_class.__name__)
        self._command_line = dict(command_line or {})
        super().__init__(found_class, dataset, list(self._files), dict(config_dict or {}))
        self.final_config_dict["protocol"] = protocol

    @classmethod
    def from_plain(
        cls,
        plain: Mapping[str, Any],
        *,
        model: str | type[Any] | None = None,
        config_dict: Mapping[str, Any] | None = None,
    ) -> "LISAConfig":
        """Build the configuration of a saved run again.

        Args:
            plain: What `plain` gave.
            model: The class, where it is not one of the registry.
            config_dict: Settings that replace saved ones.

        Raises:
            UsageError: See the constructor.
        """
        settings = {key: value for key, value in plain.items() if key not in _DERIVED}
        if "amp" not in plain:
            settings.update({key: plain[key] for key in ("enable_amp", "enable_scaler") if key in plain})
        if settings["train_neg_sample_args"]["distribution"] == "none":
            settings["train_neg_sample_args"] = None
        folder = Path(plain["data_path"])
        if (folder / f"{plain['dataset']}.inter").is_file():
            settings["data_path"] = str(folder.parent)
        settings.update(config_dict or {})
        return cls(model or plain["model"], plain["dataset"], protocol=plain["protocol"], config_dict=settings)

    def plain(self) -> dict[str, Any]:
        """Copy the settings as values that JSON and `torch.load(weights_only=True)` can hold.

        Returns:
            Key -> None, bool, int, float, str, or lists and string-keyed dicts of these.
        """
        return {key: _plain(value) for key, value in self.final_config_dict.items()}

    def compatibility_settings(self) -> None:
        """Restore the numpy names that RecBole uses; its own version fails on numpy 2."""
        restore_numpy_aliases()

    def _build_yaml_loader(self) -> type[YamlLoader]:
        return YamlLoader

    def _load_config_files(self, file_list: list[Path]) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        for path in file_list:
            _update(settings, self.checked(self._files[path], f"file {path}"))
        return settings

    def _load_variable_config_dict(self, config_dict: dict[str, Any]) -> dict[str, Any]:
        return self.checked(config_dict, "config_dict")

    def _load_cmd_line(self) -> dict[str, Any]:
        return self.checked(self._command_line, "command line")

    def checked(self, settings: Mapping[str, Any], origin: str) -> dict[str, Any]:
        """Check single settings of this model, without their effect on each other.

        Args:
            settings: Values, or texts of a command line, by key.
            origin: Where they were written, for the message.

        Returns:
            The values to use, without the arguments of the constructor.

        Raises:
            UsageError: A key is unknown, or a type or a value is wrong.
        """
        checked = {}
        for name, value in settings.items():
            if name in self._arguments:
                if value != self._arguments[name]:
                    raise UsageError(
                        f"{name} is '{value}' ({origin}) but '{self._arguments[name]}' was chosen: settings may repeat "
                        f"the {name} of the run, not change it; remove the key or choose '{value}'"
                    )
            elif name == "protocol":
                continue
            elif name not in self._keys:
                hint = did_you_mean(name, [*self._keys, *_ARGUMENTS, "protocol"])
                raise UsageError(f"unknown key '{name}' ({origin}).{hint}")
            else:
                checked[name] = check_value(self._keys[name], copy.deepcopy(value), origin)
        return checked

    def _merge_external_config_dict(self) -> None:
        self.external_config_dict: dict[str, Any] = {}
        for settings in (self.file_config_dict, self.variable_config_dict, self.cmd_config_dict):
            _update(self.external_config_dict, settings)

    def _load_internal_config_dict(self, model: str, model_class: type[Any], dataset: str) -> None:
        super()._load_internal_config_dict(model, model_class, dataset)
        self.internal_config_dict.update(copy.deepcopy(self._packaged))

    def _get_final_config_dict(self) -> dict[str, Any]:
        settings: dict[str, Any] = copy.deepcopy(self.internal_config_dict)
        if self.external_config_dict.get("loss_type", settings.get("loss_type")) == "CE":
            # Ours and RecBole's defaults hold negatives; only the user's own contradict CE.
            settings["train_neg_sample_args"] = None
        _update(settings, self.external_config_dict)
        check_effect(self.external_config_dict, self.internal_config_dict)
        check_eval_args(settings)
        check_metrics(settings)
        check_model(settings)
        if hasattr(self.model_class, "check_settings"):  # a class of the user may be any of RecBole's
            self.model_class.check_settings(settings)
        check_optimizer(settings)
        settings.update(mixed_precision(settings, self.external_config_dict))
        check_reading(settings)
        check_surroundings(settings)
        if "loss_type" in settings:
            check_negatives(settings)
        return settings

    def _set_default_parameters(self) -> None:
        super()._set_default_parameters()
        if self.dataset == BUNDLED_DATASET and "data_path" in self.external_config_dict:
            # RecBole always takes its bundled copy; a file in the folder that the user names comes first.
            named = Path(self.external_config_dict["data_path"]) / self.dataset
            if (named / f"{self.dataset}.inter").is_file():
                self.final_config_dict["data_path"] = str(named)

    def _init_device(self) -> None:
        """Pick one device and leave CUDA_VISIBLE_DEVICES as the surroundings set it."""
        settings = self.final_config_dict
        settings["single_spec"], settings["local_rank"] = True, 0
        if not settings["use_gpu"] or not torch.cuda.is_available():
            settings["device"] = torch.device("cpu")
        elif "gpu_id" not in self.external_config_dict:
            settings["device"] = torch.device("cuda")
        else:
            settings["device"] = _cuda_device(settings["gpu_id"])
        on_gpus = settings["device"].type == "cuda"
        check_processes(settings, self.external_config_dict, torch.cuda.device_count() if on_gpus else None)


def _cuda_device(gpu_id: Any) -> torch.device:
    count = torch.cuda.device_count()
    if not str(gpu_id).isdecimal() or int(gpu_id) >= count:
        raise UsageError(f"gpu_id is {gpu_id!r}, it must be one number from 0 to {count - 1}; use_gpu=False for CPU")
    return torch.device("cuda", int(gpu_id))


def _protocol(*settings: Mapping[str, Any] | None) -> str:
    """The protocol of the first settings that name one."""
    named = (str(part["protocol"]) for part in settings if part and part.get("protocol") is not None)
    return next(named, _DEFAULT_PROTOCOL)


def _names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.yaml"))


def _packaged_files(model: type[Any], dataset: str, protocol: str) -> list[Path]:
    """Our files for this run, weakest first.

    A data set of the user has no file.
    """
    root = properties_path()
    protocols = _names(root / "protocol")
    if protocol not in protocols:
        hint = did_you_mean(protocol, protocols)
        raise UsageError(f"unknown protocol '{protocol}': known are {', '.join(protocols)}.{hint}")
    own_dataset = root / "dataset" / f"{dataset}.yaml"
    return [
        root / "overall.yaml",
        *settings_files(model),
        *([own_dataset] if own_dataset.is_file() else []),
        root / "protocol" / f"{protocol}.yaml",
    ]


def _packaged_settings(files: list[Path], lineage: list[str]) -> dict[str, Any]:
    """Merge our files, the data set's settings for the model right after the data set's own."""
    settings: dict[str, Any] = {}
    for file in files:
        settings.update(read_yaml(file))
        by_model = settings.pop("model_settings", {})
        for name in lineage:
            settings.update(by_model.get(name, {}))
    return settings


def _known_keys(files: list[Path], model: str) -> dict[str, Key]:
    """Every key that RecBole or we read, with the types that the yaml comments declare; ours win."""
    specification = find_spec("recbole")
    assert specification is not None and specification.origin is not None  # the class above derives from it
    recbole = Path(specification.origin).parent / "properties"
    arguments = (*general_arguments, *training_arguments, *evaluation_arguments, *dataset_arguments)
    keys = {name: Key(name) for name in arguments if name != "config_file"}
    for part in ("overall.yaml", "dataset/sample.yaml", f"model/{model}.yaml"):
        if (recbole / part).is_file():
            keys.update(declared_keys(recbole / part))
    for file in files:
        keys.update(declared_keys(file))
    keys.pop("model_settings", None)
    return keys


def _update(settings: dict[str, Any], stronger: Mapping[str, Any]) -> None:
    """Overwrite settings in place; the parts of `_MERGED` dicts are overwritten one by one."""
    for key, value in stronger.items():
        if key in _MERGED and isinstance(value, dict) and isinstance(settings.get(key), dict):
            settings[key] = {**settings[key], **value}
        else:
            settings[key] = value


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(part) for part in value]
    return str(value)
