"""The columns that our models need, and RecBole's pre-split files (`benchmark_filename`) with histories in a column.

The argument `dataset` is RecBole's `SequentialDataset`. Each function raises a UsageError for files that do not fit.
"""

from pathlib import Path
from typing import Any

from recbole.utils import FeatureType

from recbole_lisa.config.fields import field_names
from recbole_lisa.data.atomic import read_header
from recbole_lisa.data.dataset import WindowDataset
from recbole_lisa.errors import UsageError

_PARTS = 3


def check_columns(dataset: Any) -> None:
    """Refuse loaded columns of users, items or times that are missing or of another type; call this after reading."""
    config, loaded = dataset.config, dataset.field2type
    kinds = {"USER_ID_FIELD": FeatureType.TOKEN, "ITEM_ID_FIELD": FeatureType.TOKEN}
    if config["benchmark_filename"] is None and not isinstance(dataset, WindowDataset):  # which may take none
        kinds["TIME_FIELD"] = FeatureType.FLOAT
        if config["TIME_FIELD"] is None:
            right = "name the column, or call recbole_lisa.register(AllPositionsDataset) for files in the order of time"
            raise UsageError(f"TIME_FIELD is None, but RecBole sorts its rows by time: {right}")
    for key, kind in kinds.items():
        if loaded.get(config[key]) != kind:
            columns = ", ".join(f"{name}:{loaded_kind.value}" for name, loaded_kind in loaded.items())
            raise UsageError(
                f"the files of {dataset.dataset_name} need a column {config[key]}:{kind.value} ({key}); loaded are "
                f"{columns}: set {key}, or name the column in load_col"
            )


def check_headers(dataset: Any, token: str, dataset_path: str) -> None:
    """Check the first lines of pre-split files before they are read: three files, and one type for each column."""
    config, parts = dataset.config, dataset.config["benchmark_filename"]
    if len(parts) != _PARTS:
        raise UsageError(f"benchmark_filename is {parts!r}, it must name the files of training, validation and test")
    first: dict[str, str] = {}
    for path in (Path(dataset_path, f"{token}.{part}.inter") for part in parts):
        if not path.is_file():
            raise UsageError(f"there is no file {path}, which benchmark_filename names")
        for column, kind in read_header(path, config["field_separator"], config["encoding"] or "utf-8").items():
            if first.setdefault(column, kind) != kind:
                raise UsageError(f"{path} has a column {column}:{kind}, a file before it {column}:{first[column]}")


def number_histories_as_items(dataset: Any) -> None:
    """Let RecBole give histories and items the same ids; call this before it numbers the tokens."""
    config, names, loaded = dataset.config, field_names(dataset.config), dataset.field2type
    alias = config["alias_of_item_id"] or []
    columns = ", ".join(f"{name}:{kind.value}" for name, kind in loaded.items())
    if loaded.get(names.item_list) != FeatureType.TOKEN_SEQ:
        raise UsageError(
            f"files of benchmark_filename need a column {names.item_list}:token_seq, the history of each row; loaded "
            f"are {columns}: name it in load_col, or set LIST_SUFFIX"
        )
    for column in alias:
        if column not in loaded:
            raise UsageError(f"alias_of_item_id names {column!r}; loaded are {columns}")
    config["alias_of_item_id"] = list(dict.fromkeys([*alias, names.item_list]))


def cut_histories(dataset: Any) -> None:
    """Keep the last `MAX_ITEM_LIST_LENGTH` values of each list; call this before RecBole stores lengths."""
    config, frame, names = dataset.config, dataset.inter_feat, field_names(dataset.config)
    empty = int((frame[names.item_list].map(len) == 0).sum())
    if empty:
        raise UsageError(f"{empty} rows of the files of benchmark_filename have no item in {names.item_list}")
    longest = config["MAX_ITEM_LIST_LENGTH"]
    for field in frame.columns:
        listed = f"{field}{config['LIST_SUFFIX']}"
        if listed in frame and field not in (config["numerical_features"] or ()):
            frame[listed] = frame[listed].map(lambda cell: cell[-longest:])
    dataset.item_id_list_field = names.item_list  # RecBole reads it, and sets it only for the name item_id
