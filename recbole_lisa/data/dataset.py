"""RecBole's data set, loaded by RecBole's keys, stored once, and split without copying.

RecBole reads, filters and renumbers; what it does slowly, inexactly or with rows x length memory is replaced here:
the reader, the interaction-count filter, the order by time, and the augmentation (windows are cut when a batch is
built, see ``dataloader.py``).
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from recbole.config import Config
from recbole.data.dataset import SequentialDataset
from recbole.utils import FeatureSource, FeatureType

from recbole_lisa.data import atomic
from recbole_lisa.data.histories import Histories, Index
from recbole_lisa.data.split import Part, split_targets
from recbole_lisa.errors import UsageError

_SAVED = ("save_dataset", "dataset_save_path", "save_dataloaders", "dataloaders_save_path")


def create_dataset(config: Config) -> WindowDataset:
    """Load the data set that the configuration names.

    Raises:
        UsageError: something in the configuration or in the files is wrong.
    """
    for key in _SAVED:
        if config[key]:
            raise UsageError(f"{key} is not supported: the atomic files load in seconds; leave it out")
    return WindowDataset(config)


class WindowDataset(SequentialDataset):
    """All interactions of a data set, or (after ``build``) the targets of one phase of it.

    Attributes:
        histories: the flat store, shared by all phases; set by ``build``.
        part: which targets belong to this phase; set by ``build``.
        item_counts: (V,) interactions of each item in the TRAINING part; set by ``build``.
        time_unit: median positive gap between a user's training interactions, seconds; 1.0 if there is none.

    Raises:
        UsageError: something in the configuration or in the files is wrong.
    """

    histories: Histories
    part: Part
    item_counts: Index
    time_unit: float

    def __init__(self, config: Config) -> None:
        if config["benchmark_filename"] is not None:
            raise UsageError(
                "benchmark_filename is not supported: give one .inter file and choose eval_args.split"
            )
        longest = config["MAX_ITEM_LIST_LENGTH"]
        if not isinstance(longest, int) or longest < 1:
            raise UsageError(f"MAX_ITEM_LIST_LENGTH must be a whole number of at least 1, got {longest!r}")
        super().__init__(config)

    def build(self) -> list[WindowDataset]:
        """Split by ``eval_args`` into training, validation and test targets; nothing is augmented.

        Returns:
            Three views of this data set; ``inter_feat`` of each holds the user and item columns of its own rows.

        Raises:
            UsageError: ``eval_args`` asks for a split or an order that sequences do not have.
        """
        self._change_feat_format()
        self.histories = self._sorted_histories()
        offsets = self.histories.offsets
        parts = split_targets(self.config["eval_args"], self.histories.lengths)
        # A history's first item is the target of no phase, but training sees it.
        train = Part(parts[0].first - 1, parts[0].count + 1)
        users, rows = train.targets(offsets)
        self.item_counts = np.bincount(self.histories.items[rows], minlength=self.item_num)
        gaps = self.histories.gaps[rows]
        gaps = gaps[gaps > 0]
        self.time_unit = float(np.median(gaps)) if len(gaps) else 1.0
        self.logger.info(
            f"{self.dataset_name}: {len(self.histories.users)} users, {self.item_num - 1} items, "
            f"{len(self.histories.items)} interactions after filtering"
        )
        return [
            self._phase(parts[0], users, rows),
            self._phase(parts[1], *parts[1].targets(offsets)),
            self._phase(parts[2], *parts[2].targets(offsets)),
        ]

    def _phase(self, part: Part, users: np.ndarray, rows: Index) -> WindowDataset:
        """A view of this data set with one phase's targets."""
        view = copy.copy(self)
        view.part = part
        view.inter_feat = pd.DataFrame(
            {
                self.uid_field: self.histories.users.astype(np.int32)[users],
                self.iid_field: self.histories.items[rows],
            }
        )
        return view

    def _sorted_histories(self) -> Histories:
        frame = self.inter_feat
        if self.time_field not in frame or self.field2type[self.time_field] != FeatureType.FLOAT:
            raise UsageError(
                f"the time column {self.time_field!r} (TIME_FIELD) of type float is needed to order the interactions; "
                f"loaded columns: {', '.join(frame.columns)}. Add it to load_col.inter"
            )
        return Histories.from_interactions(
            frame[self.uid_field].to_numpy(),
            frame[self.iid_field].to_numpy(),
            frame[self.time_field].to_numpy(),
        )

    def _change_feat_format(self) -> None:
        """Turn user and item features into tensors as RecBole does; interactions stay columns (and exact)."""
        for name in self.feat_name_list:
            if name != "inter_feat" and isinstance(getattr(self, name), pd.DataFrame):
                setattr(self, name, self._dataframe_to_interaction(getattr(self, name)))

    def _download(self) -> None:
        raise UsageError(
            f"the folder {self.dataset_path} does not exist: put {self.dataset_name}.inter there, or name the folder "
            f"above it with --data_path"
        )

    def _load_feat(self, filepath: str, source: FeatureSource | str) -> pd.DataFrame | None:
        """Read the columns that ``load_col`` and ``unload_col`` leave, and note their types."""
        wanted, unwanted = self._get_load_and_unload_col(source)
        path, separator, encoding = Path(filepath), self.config["field_separator"], self.config["encoding"]
        header = atomic.read_header(path, separator, encoding)
        fields = {
            name: kind
            for name, kind in header.items()
            if (wanted is None or name in wanted) and name not in (unwanted or ())
        }
        if not fields:
            return None
        for name, kind in fields.items():
            if source != "link":
                self.set_field_property(name, FeatureType(kind), source, 1)
            if kind.startswith("float"):
                self.field2bucketnum[name] = 2
        if source == FeatureSource.INTERACTION:
            self._check_ids(path, fields)
        frame = atomic.read_columns(
            path,
            fields,
            separator=separator,
            encoding=encoding,
            seq_separator=self.config["seq_separator"],
            tokens="category" if source == FeatureSource.INTERACTION else "str",
        )
        for name, kind in fields.items():
            if kind.endswith("seq"):
                self._cut_sequences(frame, name)
        return frame

    def _check_ids(self, path: Path, fields: dict[str, str]) -> None:
        for key, name in (("USER_ID_FIELD", self.uid_field), ("ITEM_ID_FIELD", self.iid_field)):
            if fields.get(name) != "token":
                raise UsageError(f"{path} has no loaded column {name}:token ({key}); loaded: {fields}")

    def _cut_sequences(self, frame: pd.DataFrame, name: str) -> None:
        """Honour ``seq_len`` and note the longest sequence of a feature."""
        limit = (self.config["seq_len"] or {}).get(name)
        frame[name] = [cell[:limit] for cell in frame[name]]
        self.field2seqlen[name] = max(map(len, frame[name]), default=0)

    def _filter_nan_user_or_item(self) -> None:
        for feat, fields in (
            (self.user_feat, [self.uid_field]),
            (self.item_feat, [self.iid_field]),
            (self.inter_feat, [self.uid_field, self.iid_field]),
        ):
            missing = feat[fields].isna().any(axis=1) if feat is not None else pd.Series(dtype=bool)
            if missing.any():
                self.logger.warning(f"{int(missing.sum())} rows without {' or '.join(fields)} are left out")
                feat.drop(index=feat.index[missing], inplace=True)

    def _remove_duplication(self) -> None:
        """Keep one interaction per user and item, the ``rm_dup_inter`` (first or last) one in time."""
        keep = self.config["rm_dup_inter"]
        if keep is None:
            return
        if keep not in ("first", "last"):
            raise UsageError(f"rm_dup_inter must be first or last, got {keep!r}")
        if self.time_field in self.inter_feat:
            # Stable, so that equal times keep file order.
            self.inter_feat.sort_values(by=self.time_field, kind="stable", inplace=True)
        self.inter_feat.drop_duplicates(subset=[self.uid_field, self.iid_field], keep=keep, inplace=True)

    def _filter_by_inter_num(self) -> None:
        intervals = {
            self.uid_field: atomic.parse_intervals(
                "user_inter_num_interval", self.config["user_inter_num_interval"]
            ),
            self.iid_field: atomic.parse_intervals(
                "item_inter_num_interval", self.config["item_inter_num_interval"]
            ),
        }
        codes = [self.inter_feat[field].cat.codes.to_numpy() for field in intervals]
        kept = atomic.core_rows(*codes, *intervals.values())
        if len(kept) < len(self.inter_feat):
            self.inter_feat = self.inter_feat.iloc[kept]
        for feat, field in ((self.user_feat, self.uid_field), (self.item_feat, self.iid_field)):
            if feat is not None and intervals[field] and intervals[field][0].low > 0:
                present = feat[field].isin(self.inter_feat[field].unique())
                feat.drop(index=feat.index[~present], inplace=True)

    def _remap(self, remap_list: list[tuple[pd.DataFrame, str, FeatureType]]) -> None:
        """Number tokens from 1 in order of appearance, as RecBole does; 0 is padding."""
        if len(remap_list) == 1 and isinstance(remap_list[0][0][remap_list[0][1]].dtype, pd.CategoricalDtype):
            frame, field, _ = remap_list[0]
            ids, tokens = pd.factorize(frame[field].array)
            self.field2id_token[field] = np.array(["[PAD]", *tokens])
            self.field2token_id[field] = {
                token: number for number, token in enumerate(self.field2id_token[field])
            }
            frame[field] = (ids + 1).astype(np.int32)
            return
        for frame, field, _ in remap_list:
            if isinstance(frame[field].dtype, pd.CategoricalDtype):
                frame[field] = frame[field].astype(object)
        super()._remap(remap_list)

    def _fill_nan(self) -> None:
        """Fill missing tokens with padding, numbers with the column's mean, sequences with nothing."""
        for name in self.feat_name_list:
            frame = getattr(self, name)
            for field in frame:
                frame[field] = self._filled(frame[field], self.field2type[field])

    def _normalize(self) -> None:
        """Normalise as RecBole does, but leave times in seconds (``normalize_all`` would scale them to 0..1)."""
        times = self.inter_feat.get(self.time_field)
        super()._normalize()
        if times is not None:
            self.inter_feat[self.time_field] = times

    def _filled(self, column: pd.Series, kind: FeatureType) -> pd.Series[Any] | list[np.ndarray]:
        if kind in (FeatureType.TOKEN_SEQ, FeatureType.FLOAT_SEQ):
            empty = np.array([], dtype=np.int64 if kind == FeatureType.TOKEN_SEQ else np.float64)
            return [empty if isinstance(cell, float) else cell for cell in column]
        missing = column.isna()
        if not missing.any():
            return column
        if kind == FeatureType.TOKEN:
            return column.fillna(0).astype(np.int64)
        if column.name == self.time_field:
            self.logger.warning(
                f"{int(missing.sum())} rows have no {column.name}: it is set to the mean time"
            )
        return column.fillna(column.mean())
