"""RecBole's filters of interactions as array arithmetic; the log holds the counts after each.

RecBole's keys keep their meaning. Ids are categories here, and a missing id has the code -1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from recbole.data.dataset import Dataset
from recbole.utils import FeatureType

from recbole_lisa.config.data_checks import Intervals, parse_intervals
from recbole_lisa.data.histories import Ids, Index
from recbole_lisa.errors import UsageError, did_you_mean

INTERVAL_KEYS = ("user_inter_num_interval", "item_inter_num_interval")


def filter_interactions(dataset: Dataset) -> None:
    """Apply the filters to the loaded frames of a data set; see `run_filters`."""
    functions = (_drop_missing_ids, _drop_duplicates, _filter_values, _keep_known, _filter_counts)
    steps = [partial(function, dataset) for function in functions]
    run_filters(dataset, steps, lambda: len(dataset.inter_feat), lambda: _sizes(dataset))
    for name in dataset.feat_name_list:
        setattr(dataset, name, getattr(dataset, name).reset_index(drop=True))


def run_filters(
    dataset: Dataset, steps: Sequence[Callable[[], None]], n_rows: Callable[[], int], sizes: Callable[[], list[Index]]
) -> None:
    """Apply the five filters one by one, and log what each leaves.

    n_rows and sizes give the number of interactions that are left, and how often each user and each item occurs.

    Raises:
        UsageError: The file holds no interactions, or a filter leaves nothing.
    """
    config = dataset.config
    count_filter = ", ".join(f"{key}={config[key]!r}" for key in INTERVAL_KEYS)
    names = (
        "rows without user or item are left out",
        f"rm_dup_inter={config['rm_dup_inter']!r}",
        f"val_interval={config['val_interval']!r}",
        "only users and items of the .user and .item files",
        count_filter,
    )

    def counts() -> str:
        users, items = (np.count_nonzero(part) for part in sizes())
        return f"{n_rows():,} interactions of {users:,} users with {items:,} items"

    left = counts()
    dataset.logger.info(f"{dataset.dataset_name}: {left} read")
    if not n_rows():
        raise UsageError(f"{dataset.dataset_name} holds no interactions: its file has a header and no rows")
    for name, step in zip(names, steps, strict=True):
        n_before, (user, item) = n_rows(), (part.max(initial=0) for part in sizes())
        step()
        if n_rows() == n_before:
            continue
        if not n_rows():
            most = f" (a user has at most {user:,}, an item {item:,})" if name == count_filter else ""
            raise UsageError(
                f"no interaction of {dataset.dataset_name} passes the filters: {name} leaves nothing of "
                f"{left}{most}; loosen it"
            )
        left = counts()
        dataset.logger.info(f"{dataset.dataset_name}: {left} left after {name}")


def _sizes(dataset: Dataset) -> list[Index]:
    """How often each user and each item occurs."""
    codes = (dataset.inter_feat[field].cat.codes.to_numpy() for field in (dataset.uid_field, dataset.iid_field))
    return [np.bincount(column[column >= 0]) for column in codes]


def _drop_missing_ids(dataset: Dataset) -> None:
    user, item = dataset.uid_field, dataset.iid_field
    for name, fields in {"user_feat": [user], "item_feat": [item], "inter_feat": [user, item]}.items():
        feat = getattr(dataset, name)
        if feat is not None and (missing := feat[fields].isna().any(axis=1)).any():
            dataset.logger.warning(f"{name}: {int(missing.sum())} rows without {' or '.join(fields)} left out")
            setattr(dataset, name, feat[~missing].reset_index(drop=True))


def _drop_duplicates(dataset: Dataset) -> None:
    """Keep one interaction per user and item: the first or the last in time; equal times keep file order."""
    keep = dataset.config["rm_dup_inter"]
    if keep is None:
        return
    if keep not in ("first", "last"):
        raise UsageError(f"rm_dup_inter must be first or last, got {keep!r}")
    frame = dataset.inter_feat
    if dataset.time_field in frame:
        frame = frame.sort_values(by=dataset.time_field, kind="stable")
    dataset.inter_feat = frame.drop_duplicates(subset=[dataset.uid_field, dataset.iid_field], keep=keep)


def _filter_values(dataset: Dataset) -> None:
    for field, keeps in value_filters(dataset).items():
        for feat in dataset.field2feats(field):
            feat.drop(feat.index[~keeps(feat[field])], inplace=True)


def value_filters(dataset: Dataset) -> dict[str, Callable[[pd.Series[Any]], npt.NDArray[np.bool_]]]:
    """Of each column in `val_interval` what tells the rows that stay: numbers in its intervals, tokens of its list."""
    filters = {}
    for field, values in (dataset.config["val_interval"] or {}).items():
        if field not in dataset.field2type:
            loaded, hint = ", ".join(dataset.field2type), did_you_mean(field, dataset.field2type)
            raise UsageError(
                f"val_interval names {field!r}, which is not a loaded column: loaded are {loaded}; load_col adds "
                f"more.{hint}"
            )
        filters[field] = _value_filter(field, dataset.field2type[field], values)
    return filters


def _value_filter(field: str, kind: FeatureType, values: Any) -> Callable[[pd.Series[Any]], npt.NDArray[np.bool_]]:
    """What `val_interval` keeps of a column: (rows,) values -> (rows,) whether the row stays."""
    if kind == FeatureType.FLOAT:
        intervals = parse_intervals(f"val_interval of {field}", str(values))
        return lambda column: ~outside(column.to_numpy(), intervals)
    if kind != FeatureType.TOKEN:
        raise UsageError(f"val_interval names {field!r}, a column of sequences: it filters numbers and tokens")
    if not isinstance(values, list):
        raise UsageError(f"val_interval of {field}, a column of tokens, must be a list of tokens, got {values!r}")
    tokens = list(map(str, values))  # yaml reads some as numbers
    return lambda column: column.isin(tokens).to_numpy()


def _keep_known(dataset: Dataset) -> None:
    if dataset.user_feat is not None or dataset.item_feat is not None:  # otherwise RecBole copies all rows for nothing
        dataset._filter_inter_by_user_or_item()


def _filter_counts(dataset: Dataset) -> None:
    """Filter users and items by their number of interactions until nothing changes (k-core)."""
    fields = {"user_feat": dataset.uid_field, "item_feat": dataset.iid_field}
    users, items = (parse_intervals(key, dataset.config[key]) for key in INTERVAL_KEYS)
    user_codes, item_codes = (dataset.inter_feat[field].cat.codes.to_numpy() for field in fields.values())
    kept = core_rows(user_codes, item_codes, users, items)
    if len(kept) < len(dataset.inter_feat):
        dataset.inter_feat = dataset.inter_feat.iloc[kept].reset_index(drop=True)
    for (name, field), intervals in zip(fields.items(), (users, items), strict=True):
        feat = getattr(dataset, name)
        # Without interactions a user or item passes only an interval that begins at 0.
        if feat is not None and intervals and intervals[0].left > 0:
            setattr(dataset, name, feat[feat[field].isin(dataset.inter_feat[field].unique())])


def core_rows(users: Ids, items: Ids, user_intervals: Intervals, item_intervals: Intervals) -> Index:
    """Drop users and items outside the intervals until none is left (k-core for `[k,inf)`); no interval allows any.

    users and items (rows,) are small non-negative integers. Returns the positions of the rows that stay, ascending.
    """
    kept = np.arange(len(users))
    while True:
        dropped = outside(np.bincount(users), user_intervals)[users]
        dropped |= outside(np.bincount(items), item_intervals)[items]
        if not dropped.any():
            return kept
        stay = ~dropped
        users, items, kept = users[stay], items[stay], kept[stay]


def outside(numbers: npt.NDArray[Any], intervals: Intervals) -> npt.NDArray[np.bool_]:
    """Which numbers (n,) lie in none of the intervals; none where there is no interval."""
    column = pd.Series(numbers)
    inside = [column.between(interval.left, interval.right, interval.closed) for interval in intervals]
    return ~np.any(inside, axis=0) if inside else np.zeros(len(numbers), dtype=bool)
