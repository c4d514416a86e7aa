"""RecBole's pre-split files (`benchmark_filename`): each row has its history in a list column.

The argument of both functions is RecBole's `SequentialDataset` after it has read the files.
"""

from typing import Any

from recbole.utils import FeatureType

from recbole_lisa.config.fields import field_names
from recbole_lisa.errors import UsageError

_PARTS = 3


def number_histories_as_items(dataset: Any) -> None:
    """Let RecBole give histories and items the same ids; call this before it numbers the tokens.

    Raises:
        UsageError: There are not three files, or a column is missing.
    """
    config, names, loaded = dataset.config, field_names(dataset.config), dataset.field2type
    files, alias = config["benchmark_filename"], config["alias_of_item_id"] or []
    columns = ", ".join(f"{name}:{kind.value}" for name, kind in loaded.items())
    if len(files) != _PARTS:
        raise UsageError(f"benchmark_filename is {files!r}, it must name the files of training, validation and test")
    for column in (names.user, names.item):
        if loaded.get(column) != FeatureType.TOKEN:
            raise UsageError(f"files of benchmark_filename need a column {column}:token; loaded are {columns}")
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
    """Keep the last `MAX_ITEM_LIST_LENGTH` values of each list; call this before RecBole stores lengths.

    Raises:
        UsageError: A history is empty.
    """
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
