"""The names of the columns that the loaders write and the models read."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FieldNames:
    """Column names of one batch; N batch, L length, R negatives."""

    user: str  # (N,) user ids
    item: str  # (N,) item ids: the target of a last-position or evaluation row
    item_list: str  # (N, L) input items, oldest first, padded on the right with 0
    item_length: str  # (N,) number of items in each row
    target_list: str  # (N, L) the item that follows each input
    negative_list: str  # (N, L, R) negatives of each position
    negative: str  # (N, R) negatives of a last-position row, or (N, K) equal rows of shared negatives
    time: str  # the time column of the interactions
    time_gap_list: str  # (N, L) seconds since the user's previous item
    query_gap_list: str  # (N, L) seconds from each item to the one after it; with query_time
    query_time_list: str  # (N, L) seconds since 1970 at the item after each one; with query_time


def field_names(config: Any) -> FieldNames:
    """Derive the column names from RecBole's keys of fields, suffixes and prefixes."""
    item, suffix, prefix = config["ITEM_ID_FIELD"], config["LIST_SUFFIX"], config["NEG_PREFIX"]
    target_list = f"target_id{suffix}"
    return FieldNames(
        user=config["USER_ID_FIELD"],
        item=item,
        item_list=f"{item}{suffix}",
        item_length=config["ITEM_LIST_LENGTH_FIELD"],
        target_list=target_list,
        negative_list=f"{prefix}{target_list}",
        negative=f"{prefix}{item}",
        time=config["TIME_FIELD"],
        time_gap_list=f"time_gap{suffix}",
        query_gap_list=f"query_gap{suffix}",
        query_time_list=f"query_time{suffix}",
    )
