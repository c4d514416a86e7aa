"""Data sets in RecBole's own pipeline: one that trains every position, and checks of RecBole's own for our models.

Below the class, the argument `dataset` is RecBole's `SequentialDataset`, which may read pre-split files
(`benchmark_filename`) with histories in a column. Each function raises a UsageError for files that do not fit.
"""

import copy
from collections.abc import Callable
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recbole.config import Config
from recbole.data.interaction import Interaction
from recbole.utils import FeatureType

from recbole_lisa.config.fields import FieldNames
from recbole_lisa.config.validation import check_model, checked_eval_args, checked_negatives
from recbole_lisa.data.atomic import read_header
from recbole_lisa.data.dataloader import TrainLoader, gather_inputs
from recbole_lisa.data.dataset import WindowDataset
from recbole_lisa.data.histories import Index
from recbole_lisa.data.split import Part, check_held_out
from recbole_lisa.data.windows import Windows, preceding
from recbole_lisa.errors import UsageError
from recbole_lisa.training.memory import check_memory

_NEGATIVES_STREAM = 3
_PARTS = 3


class AllPositionsDataset(WindowDataset):
    """A `WindowDataset` for RecBole's `data_preparation`, loaders and `Trainer`; `config` is RecBole's.

    A training row is a window with a target and negatives at every position. An evaluation row is one held-out item
    with its history. Rows are built for each batch: memory does not grow with `MAX_ITEM_LIST_LENGTH`. Unlike in the
    loaders of this package, a batch mixes windows of all lengths, sampled evaluation (`uniN`) draws new negatives each
    time, also from the history, and with `sample_num` R > 1 RecBole repeats every row R times, which changes nothing.
    """

    def __init__(self, config: Config) -> None:
        if config["benchmark_filename"] is not None:
            raise UsageError(
                "AllPositionsDataset reads one .inter file: leave benchmark_filename out, or call "
                "recbole_lisa.register() without a data set, which reads rows with their histories"
            )
        config["supervision"] = config["supervision"] or "all_positions"
        check_model(config.final_config_dict)
        check_memory(config)
        super().__init__(config)

    def build(self) -> list[WindowDataset]:
        """Split by `eval_args`; see `WindowDataset.build`, and `check_held_out` for a part without items."""
        checked_eval_args(self.config["eval_args"])  # RecBole's own configuration does not check them
        if self.config["loss_type"]:
            checked_negatives(self.config["train_neg_sample_args"], self.config["loss_type"])
        train, valid, test = super().build()
        check_held_out(self.config["eval_args"], self.config["eval_step"], self.histories.lengths)
        # RecBole's samplers read the popularity of items as a tensor.
        columns = (self.uid_field, self.iid_field)
        self.inter_feat = Interaction({name: self.inter_feat[name].to_numpy(np.int64) for name in columns})
        loader = TrainLoader(self.config, train)
        rng = np.random.default_rng([_NEGATIVES_STREAM, self.config["seed"]])
        return [_Rows(train, loader.windows, partial(loader.batch, rng=rng)), _held_out(valid), _held_out(test)]

    def __getitem__(self, index: int | slice | Index) -> Interaction:
        """Rows of all phases together; RecBole's `run_recbole` counts operations with one row."""
        if "histories" not in vars(self):  # RecBole has read loaders from a file, without `build`
            self.build()
        whole = copy.copy(self)
        lengths = self.histories.lengths
        whole.part = Part(np.ones_like(lengths), np.maximum(lengths - 1, 0))
        return _held_out(whole)[index]


class _Rows(AllPositionsDataset):
    """The rows of one part, for RecBole's loaders; `columns` returns the rows with given numbers."""

    def __init__(self, part: WindowDataset, windows: Windows, columns: Callable[[Index], Interaction]) -> None:
        self.__dict__.update(vars(part))
        self.columns = columns
        users = torch.from_numpy(self.histories.users[windows.history])
        items = torch.from_numpy(self.histories.items[windows.end].astype(np.int64))
        self.inter_feat = Interaction({self.uid_field: users, self.iid_field: items})

    def __len__(self) -> int:
        return len(self.inter_feat)

    def __getitem__(self, index: int | slice | Index) -> Interaction:
        row_numbers = np.atleast_1d(np.arange(len(self))[index])
        rows = self.columns(row_numbers)
        # RecBole draws a negative for this column. In training the model uses the negatives of every position instead.
        rows.update(Interaction({self.iid_field: self.inter_feat[self.iid_field][row_numbers]}))
        return rows

    def sort(self, by: str, ascending: bool = True) -> None:
        """Do nothing: rows are already sorted by user, as RecBole's sampled evaluation needs them."""


def _held_out(part: WindowDataset) -> _Rows:
    """Held-out items, each after its history."""
    offsets = part.histories.offsets
    windows = preceding(offsets[:-1], *part.part.targets(offsets), part.config["MAX_ITEM_LIST_LENGTH"])
    return _Rows(part, windows, partial(_padded_inputs, part, windows))


def _padded_inputs(part: WindowDataset, windows: Windows, row_numbers: Index) -> Interaction:
    """Histories padded to the longest window, so that RecBole can join them to a batch."""
    fields, longest = FieldNames(part.config), part.config["MAX_ITEM_LIST_LENGTH"]
    columns, _, _ = gather_inputs(part.histories, windows, fields, row_numbers, longest)
    return Interaction(columns)


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
    config, names, loaded = dataset.config, FieldNames(dataset.config), dataset.field2type
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


def check_ids(dataset: Any) -> None:
    """Refuse histories in other ids than the items, and log how many of their items are the target of no row."""
    frame, names = dataset.inter_feat, FieldNames(dataset.config)
    is_target, is_read = np.zeros((2, dataset.item_num), bool)
    is_target[frame[dataset.iid_field]] = True
    for items in frame[names.item_list]:
        is_read[items] = True
    if not (is_target & is_read).any():
        raise UsageError(
            f"no item of {names.item_list} is the {dataset.iid_field} of a row of the files of benchmark_filename: "
            "histories and items must have the same ids"
        )
    if frame[names.item_list].map(len).max() == 1:
        separator = dataset.config["seq_separator"]
        getLogger().warning(
            f"every {names.item_list} holds one item: where a list of items was meant, set seq_separator to what "
            f"stands between its items, it is {separator!r}"
        )
    if unknown := int((is_read & ~is_target).sum()):
        getLogger().info(f"{unknown:,} of {int(is_read.sum()):,} items of {names.item_list} are the target of no row")


def cut_histories(dataset: Any) -> None:
    """Keep the last `MAX_ITEM_LIST_LENGTH` values of each list; call this before RecBole stores lengths."""
    config, frame, names = dataset.config, dataset.inter_feat, FieldNames(dataset.config)
    if empty := int((frame[names.item_list].map(len) == 0).sum()):
        raise UsageError(f"{empty} rows of the files of benchmark_filename have no item in {names.item_list}")
    longest = config["MAX_ITEM_LIST_LENGTH"]
    for field in frame.columns:
        listed = f"{field}{config['LIST_SUFFIX']}"
        if listed in frame and field not in (config["numerical_features"] or ()):
            frame[listed] = frame[listed].map(lambda cell: cell[-longest:])
    dataset.item_id_list_field = names.item_list  # RecBole reads it, and sets it only for the name item_id
