"""The data set: loaded by RecBole's keys, stored once, split into phases without copying.

Where RecBole stores one row of length L per interaction, this keeps the flat store of `histories.py`; windows are
cut when a batch is built (`dataloader.py`), so that memory does not grow with the maximum length.
"""

from __future__ import annotations

import copy
import hashlib
from dataclasses import replace
from functools import cached_property
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from recbole.config import Config
from recbole.data.dataset import SequentialDataset
from recbole.utils import FeatureSource, FeatureType

from recbole_lisa.config.fields import FieldNames
from recbole_lisa.config.query_time import check_gaps, check_query_times, reads_query_time
from recbole_lisa.data.atomic import joined
from recbole_lisa.data.cache import restore_dataset
from recbole_lisa.data.filtering import filter_interactions
from recbole_lisa.data.histories import Histories, Index, Times
from recbole_lisa.data.loading import PART, filled, load_columns, number_tokens, register_part
from recbole_lisa.data.mapped import MappedFolder
from recbole_lisa.data.split import Part, by_file, by_time, split_targets
from recbole_lisa.data.tokens import TokenNumbers, joined_tokens
from recbole_lisa.datasets.obtain import check_data, interaction_files
from recbole_lisa.distributed.processes import from_first, is_first
from recbole_lisa.errors import UsageError, did_you_mean

_STATISTICS_USERS = 2**18
_UNSAVED = ("save_dataloaders", "dataloaders_save_path")


def create_dataset(config: Config) -> WindowDataset:
    """Load the data set that the configuration names into memory, or map its files; see `mapped.py`.

    A UsageError says what is wrong in the configuration or in the files.
    """
    for key in _UNSAVED:
        if config[key]:
            raise UsageError(f"{key} is not supported: loaders are made in seconds; leave it out, or set save_dataset")
    check_data(config)
    folder = MappedFolder.of(config)
    dataset = WindowDataset(config) if folder is None else MappedDataset(config, folder)
    if unknown := [name for name in config["seq_len"] or () if name not in dataset.field2type]:
        hint = did_you_mean(str(unknown[0]), dataset.field2type)
        raise UsageError(f"seq_len names {unknown[0]!r}, which is not a loaded column.{hint}")
    return dataset


class WindowDataset(SequentialDataset):  # type: ignore[misc]  # RecBole has no annotations
    """All interactions of a data set, or (after `build`) the targets of one phase of it.

    Loading is RecBole's, with the steps of `loading.py` and the filters of `filtering.py` in place of its own.
    A UsageError says what is wrong in the configuration or in the files.
    """

    folder: Path | None = None  # where its files are mapped from; None for a data set in memory
    # Set by `build`:
    histories: Histories  # the flat store, shared by all phases
    part: Part  # which targets belong to this phase
    training: WindowDataset  # the view of the training part; its rows are all interactions that training sees
    item_counts: Index  # (V,) interactions of each item in the TRAINING part
    time_unit: float  # median positive gap between a user's training interactions, seconds; 1.0 if there is none
    latest_time: float | None  # of all interactions, where the model reads gaps of time; else None
    data_fingerprint: str  # equal for equal tokens under equal ids with equal histories; whatever the split

    def build(self) -> list[WindowDataset]:
        """Three views of this data set: training, validation and test targets by `eval_args`; nothing is augmented.

        The `inter_feat` of each holds the users and items of its own rows.

        Raises:
            UsageError: There is no time to order the histories by.
        """
        self._change_feat_format()
        self.histories = self._sorted_histories()
        if self.histories.times is not None:
            check_query_times(self.dataset_name, float(self.histories.times.max(initial=0)))
        self.field2seqlen[FieldNames(self.config).item_list] = self.config["MAX_ITEM_LIST_LENGTH"]  # CORE reads it
        train, valid, test = self._split()
        self._log_split(train, valid, test)
        # A history's first item is the target of no phase, but training sees it.
        trained = Part(train.first - 1, train.count + train.first)
        self.item_counts, self.time_unit = _training_statistics(self.histories, trained, self.item_num)
        self.latest_time = None
        if self.config["histogram_decay"] == "time" and self.time_field:
            self.latest_time = self._latest_time()
            check_gaps(self.dataset_name, self.latest_time)
        self.data_fingerprint = self._fingerprint()
        self._release_pages()
        self.training = self._phase(train, trained)
        return [self.training, self._phase(valid, valid), self._phase(test, test)]

    def _split(self) -> tuple[Part, Part, Part]:
        """The targets of training, validation and test."""
        split, n_users = self.config["eval_args"]["split"], len(self.histories.users)
        if PART in self.field2type:
            return by_file(*self._timed_rows(), self._parts(), n_users)
        if "TS" in split:
            return by_time(split, *self._timed_rows(), n_users)
        return split_targets(self.config["eval_args"], self.histories.lengths)

    def _timed_rows(self) -> tuple[Index, Times]:
        """The number of the history and the seconds of each interaction, in one order."""
        frame, time = self.inter_feat, self.time_field
        times = frame[time].to_numpy() if time else np.arange(len(frame), dtype=np.float64)
        return np.searchsorted(self.histories.users, frame[self.uid_field]), times

    def _latest_time(self) -> float:
        return float(self.inter_feat[self.time_field].max())

    def _parts(self) -> Index:
        """The number of the file of each interaction, in the order of `_timed_rows`."""
        return self.inter_feat[PART].to_numpy().astype(np.int64)

    def _release_pages(self) -> None:
        """Nothing: the histories are in memory."""

    def _log_split(self, *parts: Part) -> None:
        store = self.histories
        self.logger.info(
            f"{self.dataset_name}: {len(store.users)} users, {self.item_num - 1} items, "
            f"{len(store.items)} interactions after filtering"
        )
        tied = int((store.gaps == 0).sum()) - len(store.users)
        if tied:
            self.logger.info(
                f"{tied} interactions have the time of the user's previous interaction: the order of the file decides"
            )
        for phase, part in zip(("training", "validation", "test"), parts, strict=True):
            self.logger.info(f"{phase}: {int(part.count.sum())} targets of {int((part.count > 0).sum())} users")

    def _phase(self, part: Part, rows: Part) -> WindowDataset:
        """A view of this data set with the targets of one phase; `rows` are those of its `inter_feat`."""
        view = copy.copy(self)
        view.part, view._rows = part, rows
        view.__dict__.pop("inter_feat", None)
        return view

    @cached_property
    def inter_feat(self) -> pd.DataFrame:
        """The loaded columns of interactions; of a phase users and items, made when something reads them."""
        history, row = self._rows.targets(self.histories.offsets)
        users = self.histories.users.astype(np.int32)[history]
        frame: pd.DataFrame = pd.DataFrame({self.uid_field: users, self.iid_field: self.histories.items[row]})
        return frame

    def _fingerprint(self) -> str:
        """SHA-256 over the tokens in the order of their ids, and over the histories."""
        digest = hashlib.sha256()
        for field in (self.uid_field, self.iid_field):
            digest.update(b"[PAD]\0" + joined_tokens(self.field2id_token[field], "\0") + b"\0\0")
        store = self.histories
        for array in (store.users, store.offsets, store.items, store.gaps):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def _sorted_histories(self) -> Histories:
        frame, time = self.inter_feat, self.time_field
        if time is None:
            self.logger.info("TIME_FIELD is ~: interactions keep the order of the file, one time unit apart")
            times = frame.groupby(self.uid_field).cumcount().to_numpy(np.float64)
        else:
            if time not in frame or frame[time].dtype != np.float64:
                loaded = ", ".join(f"{name}:{self.field2type[name].value}" for name in frame)
                raise UsageError(
                    f"histories are ordered by a column {time}:float (TIME_FIELD), which {self.dataset_name} does not "
                    f"give; loaded are {loaded}: name the column, write {time}:float in the first line where its type "
                    "is another, or set TIME_FIELD to ~ where the file is in the order of time"
                )
            times = frame[time].to_numpy()
            if not np.isfinite(times).all():
                raise UsageError(f"column {time} of {self.dataset_name} has values that are not finite numbers")
        users, items = (frame[name].to_numpy() for name in (self.uid_field, self.iid_field))
        return Histories.from_interactions(users, items, times, keep_times=reads_query_time(self.config))

    # The steps of RecBole's loading that are replaced, in the order of its calls.

    def _load_data(self, token: str, dataset_path: str) -> None:
        """Load all files; never download: RecBole's addresses are dead, and half a folder would be left."""
        check_data(self.config)
        for suffix in {**(self.config["load_col"] or {}), **(self.config["unload_col"] or {})}:
            path = Path(dataset_path, f"{token}.{suffix}")
            if suffix == "inter":  # which file is missing is said where it is read
                continue
            if suffix not in ("user", "item") or not path.is_file():
                reason = f"there is no file {path}" if not path.is_file() else "these models read inter, user and item"
                self.logger.info(f"no effect: '{suffix}' in load_col or unload_col, {reason}")
        super()._load_data(token, dataset_path)

    def _load_inter_feat(self, token: str, dataset_path: str) -> None:
        """Read the interactions; of pre-split files all in one numbering, with the number of the file in a column."""
        self.benchmark_filename_list = None  # RecBole's steps for it would leave the filters out
        files = interaction_files(self.config)
        frames: list[Any] = [load_columns(self, path, FeatureSource.INTERACTION) for path in files]
        register_part(self, files, frames)
        if len(frames) > 1:
            parts = np.repeat(np.arange(3.0), [len(frame) for frame in frames])
            frames = [joined(frames).assign(**{PART: parts})]
        self.inter_feat = frames[0]

    def _benchmark_presets(self) -> None:
        """Nothing: the rows have no histories in list columns."""

    _load_feat = load_columns
    _data_filtering = filter_interactions
    _remap = number_tokens

    def _fill_nan(self) -> None:
        for name in self.feat_name_list:
            frame = getattr(self, name)
            for field in frame:
                missing = int(frame[field].isna().sum()) if field == self.time_field else 0
                if missing:
                    self.logger.warning(f"{missing} rows without {field} are ordered as if at the mean time")
                frame[field] = filled(frame[field], self.field2type[field])

    def _normalize(self) -> None:
        """Normalise as RecBole does, but leave times in seconds."""
        for field in self.config["normalize_field"] or ():
            if self.field2type.get(field) not in (FeatureType.FLOAT, FeatureType.FLOAT_SEQ):
                hint = did_you_mean(str(field), self.field2type)
                raise UsageError(f"normalize_field names {field!r}, which is not a loaded column of numbers.{hint}")
        kept = {name: self.inter_feat[name] for name in (self.time_field, PART) if name in self.inter_feat}
        super()._normalize()
        self.inter_feat = self.inter_feat.assign(**kept)

    def _change_feat_format(self) -> None:
        """Turn user and item features into tensors as RecBole does; interactions stay columns, and exact."""
        for name in self.feat_name_list[1:]:
            if isinstance(getattr(self, name), pd.DataFrame):
                setattr(self, name, self._dataframe_to_interaction(getattr(self, name)))


def _training_statistics(store: Histories, trained: Part, n_items: int) -> tuple[Index, float]:
    """`item_counts` and `time_unit` of the rows `trained`, a number of users at a time."""
    counts, gaps = np.zeros(n_items, dtype=np.int64), [np.empty(0, dtype=np.float32)]
    for start in range(0, len(store.users), _STATISTICS_USERS):
        users = slice(start, start + _STATISTICS_USERS)
        part = Part(trained.first[users], trained.count[users])
        row = part.targets(store.offsets[start : start + _STATISTICS_USERS + 1])[1]
        counts += np.bincount(store.items[row], minlength=n_items)
        gap = store.gaps[row]
        gaps.append(gap[gap > 0])
    positive = np.concatenate(gaps)
    return counts, float(np.median(positive)) if len(positive) else 1.0


class MappedDataset(WindowDataset):
    """A data set whose interactions and tokens are memory-mapped files; see `mapped.py`."""

    def __init__(self, config: Config, folder: MappedFolder) -> None:
        self.config, self.dataset_name, self.logger = config, config["dataset"], getLogger()
        self._get_preset()
        self._get_field_from_config()
        self.folder, state = folder.path, folder.read()
        if state is None:
            if is_first():
                state = folder.prepare(self)
            from_first(None)  # the other processes wait
            state = state or folder.read() or {}
        restore_dataset(self, state)
        self.histories, self._times, self._files = state["histories"], state["times"], state["parts"]
        if reads_query_time(config):
            self.histories = replace(self.histories, times=self._times)
        self._rows = Part(np.zeros_like(self.histories.users), self.histories.lengths)  # all
        self.field2id_token = dict(zip((self.uid_field, self.iid_field), state["ids"], strict=True))
        self.field2token_id = TokenNumbers(self.field2id_token)
        self._init_alias()

    def _sorted_histories(self) -> Histories:
        return self.histories

    def _timed_rows(self) -> tuple[Index, Times]:
        return np.repeat(np.arange(len(self.histories.users)), self.histories.lengths), self._times

    def _latest_time(self) -> float:
        return float(self._times.max())

    def _parts(self) -> Index:
        return self._files.astype(np.int64)  # type: ignore[no-any-return]  # of an array in a dictionary of Any

    def _release_pages(self) -> None:
        """Map the histories anew: the pages that the statistics have read no longer count as memory of the process."""
        if isinstance(self.histories.gaps.base, np.memmap):
            paths = {name: f"{self.folder}/{name}.npy" for name in ("items", "gaps")}
            arrays = {name: np.load(path, mmap_mode="r").view(np.ndarray) for name, path in paths.items()}
            self.histories = replace(self.histories, **arrays)
