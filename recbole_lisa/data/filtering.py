"""RecBole's filters of interactions, as array arithmetic, each with the counts of what it left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from recbole.data.dataset import SequentialDataset
from recbole.utils import FeatureType

from recbole_lisa.config.data_checks import parse_intervals
from recbole_lisa.data import atomic
from recbole_lisa.errors import UsageError, did_you_mean

_INTERVAL_KEYS = ("user_inter_num_interval", "item_inter_num_interval")


class Counts(NamedTuple):
    """What interactions hold."""

    interactions: int
    users: int
    items: int

    def __str__(self) -> str:
        """For the log and for messages."""
        return f"{self.interactions:,} interactions of {self.users:,} users with {self.items:,} items"


class FilteredDataset(SequentialDataset):
    """The filters; RecBole's own keys keep their meaning. Ids are categories here, of missing ones the code is -1."""

    inter_feat: pd.DataFrame

    def _data_filtering(self) -> None:
        """Apply the filters one by one, and log what each leaves.

        Raises:
            UsageError: A filter leaves nothing.
        """
        config = self.config
        intervals = ", ".join(f"{key}={config[key]!r}" for key in _INTERVAL_KEYS)
        steps = {
            "rows without user or item are left out": self._filter_nan_user_or_item,
            f"rm_dup_inter={config['rm_dup_inter']!r}": self._remove_duplication,
            f"val_interval={config['val_interval']!r}": self._filter_by_field_value,
            "only users and items of the .user and .item files": self._filter_inter_by_user_or_item,
            intervals: self._filter_by_inter_num,
        }
        left = self._counts()
        self.logger.info(f"{self.dataset_name}: {left} read")
        if not left.interactions:
            raise UsageError(f"{self.dataset_name} holds no interactions: its file has a header and no rows")
        for name, step in steps.items():
            before = left
            most = self._most() if step == self._filter_by_inter_num else ""
            step()
            left = before if len(self.inter_feat) == before.interactions else self._counts()
            if not left.interactions:
                raise UsageError(
                    f"no interaction of {self.dataset_name} passes the filters: {name} leaves nothing of "
                    f"{before}{most}; loosen it"
                )
            if left != before:
                self.logger.info(f"{self.dataset_name}: {left} left after {name}")
        self._reset_index()

    def _counts(self) -> Counts:
        sizes = (self._sizes(field) for field in (self.uid_field, self.iid_field))
        return Counts(len(self.inter_feat), *(int(np.count_nonzero(size)) for size in sizes))

    def _sizes(self, field: str) -> Any:
        """(ids,) how often each id occurs."""
        codes = self.inter_feat[field].cat.codes.to_numpy()
        return np.bincount(codes[codes >= 0])

    def _most(self) -> str:
        user, item = (self._sizes(field).max(initial=0) for field in (self.uid_field, self.iid_field))
        return f" (a user has at most {user:,}, an item {item:,})"

    def _filter_nan_user_or_item(self) -> None:
        ids = {"user_feat": [self.uid_field], "item_feat": [self.iid_field]}
        for name, fields in {**ids, "inter_feat": [self.uid_field, self.iid_field]}.items():
            feat = getattr(self, name)
            if feat is not None and (missing := feat[fields].isna().any(axis=1)).any():
                self.logger.warning(f"{name}: {int(missing.sum())} rows without {' or '.join(fields)} left out")
                setattr(self, name, feat[~missing].reset_index(drop=True))

    def _remove_duplication(self) -> None:
        """Keep one interaction per user and item: the first or the last in time; equal times keep file order."""
        keep = self.config["rm_dup_inter"]
        if keep is None:
            return
        if keep not in ("first", "last"):
            raise UsageError(f"rm_dup_inter must be first or last, got {keep!r}")
        if self.time_field in self.inter_feat:
            self.inter_feat = self.inter_feat.sort_values(by=self.time_field, kind="stable")
        self.inter_feat = self.inter_feat.drop_duplicates(subset=[self.uid_field, self.iid_field], keep=keep)

    def _filter_by_field_value(self) -> None:
        """Keep the rows whose numbers lie in the intervals, and whose tokens are in the lists, of `val_interval`."""
        for field, wanted in (self.config["val_interval"] or {}).items():
            if field not in self.field2type:
                hint = did_you_mean(field, self.field2type)
                raise UsageError(f"val_interval names {field!r}, which is not a loaded column.{hint}")
            keeps = _kept_values(field, self.field2type[field], wanted)
            for feat in self.field2feats(field):
                feat.drop(feat.index[~keeps(feat[field])], inplace=True)

    def _filter_inter_by_user_or_item(self) -> None:
        if self.user_feat is not None or self.item_feat is not None:  # otherwise RecBole copies all rows for nothing
            super()._filter_inter_by_user_or_item()

    def _filter_by_inter_num(self) -> None:
        """Filter users and items by their number of interactions until nothing changes (k-core)."""
        keys = dict(zip((self.uid_field, self.iid_field), _INTERVAL_KEYS, strict=True))
        intervals = {field: parse_intervals(key, self.config[key]) for field, key in keys.items()}
        codes = [self.inter_feat[field].cat.codes.to_numpy() for field in intervals]
        kept = atomic.core_rows(*codes, *intervals.values())
        if len(kept) < len(self.inter_feat):
            self.inter_feat = self.inter_feat.iloc[kept].reset_index(drop=True)
        for name, field in (("user_feat", self.uid_field), ("item_feat", self.iid_field)):
            feat = getattr(self, name)
            # Without interactions a user or item passes only an interval that begins at 0.
            if feat is not None and intervals[field] and intervals[field][0].low > 0:
                setattr(self, name, feat[feat[field].isin(self.inter_feat[field].unique())])


def _kept_values(field: str, kind: FeatureType, wanted: Any) -> Callable[[pd.Series[Any]], npt.NDArray[np.bool_]]:
    """What `val_interval` keeps of a column: (rows,) values -> (rows,) whether the row stays.

    Raises:
        UsageError: `wanted` is no interval for a column of numbers, no list for one of tokens, or the column is of
            another kind.
    """
    if kind == FeatureType.FLOAT:
        intervals = parse_intervals(f"val_interval of {field}", str(wanted))
        return lambda column: np.any([interval.contains(column.to_numpy()) for interval in intervals], axis=0)
    if kind != FeatureType.TOKEN:
        raise UsageError(f"val_interval names {field!r}, a column of sequences: it filters numbers and tokens")
    if not isinstance(wanted, list):
        raise UsageError(f"val_interval of {field}, a column of tokens, must be a list of tokens, got {wanted!r}")
    tokens = list(map(str, wanted))  # yaml reads some as numbers
    return lambda column: column.isin(tokens).to_numpy()
