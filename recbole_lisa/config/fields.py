"""The names of the columns that the loaders write and the models read."""

from typing import Any


class FieldNames:
    """Column names of one batch, by RecBole's keys of fields, suffixes and prefixes; N batch, L length, R negatives."""

    def __init__(self, config: Any) -> None:
        suffix, prefix = config["LIST_SUFFIX"], config["NEG_PREFIX"]
        self.user: str = config["USER_ID_FIELD"]  # (N,) user ids
        self.item: str = config["ITEM_ID_FIELD"]  # (N,) item ids: the target of a last-position or evaluation row
        self.item_list = f"{self.item}{suffix}"  # (N, L) input items, oldest first, padded on the right with 0
        self.item_length: str = config["ITEM_LIST_LENGTH_FIELD"]  # (N,) number of items in each row
        self.target_list = f"target_id{suffix}"  # (N, L) the item that follows each input
        self.negative_list = f"{prefix}{self.target_list}"  # (N, L, R) negatives of each position
        # (N, R) negatives of a last-position row, or (N, K) equal rows of shared negatives
        self.negative = f"{prefix}{self.item}"
        self.time: str = config["TIME_FIELD"]  # the time column of the interactions
        self.time_gap_list = f"time_gap{suffix}"  # (N, L) seconds since the user's previous item
        self.query_gap_list = f"query_gap{suffix}"  # (N, L) seconds from each item to the next one; with query_time
        self.query_time_list = f"query_time{suffix}"  # (N, L) seconds since 1970 at the next item; with query_time
