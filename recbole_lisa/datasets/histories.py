"""Histories of users from a table of interactions, for `recbole-lisa recommend`."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from recbole_lisa.datasets.cells import read_numbers
from recbole_lisa.datasets.layouts import COLUMN_OPTION, Columns, Layout
from recbole_lisa.datasets.reader import read_pieces
from recbole_lisa.datasets.source import open_raw
from recbole_lisa.errors import UsageError

_SEPARATORS = {".csv": ",", ".tsv": "\t", ".inter": "\t", ".parquet": None}


class UserHistory(NamedTuple):
    """One user: id, items oldest first, and their times in seconds, or None where the table has no times."""

    user: str
    items: list[str]
    times: list[float] | None


def read_user_histories(path: Path, *, user: str, item: str, time: str | None = None) -> list[UserHistory]:
    """Read interactions, one a row, and group them by user, in the order of the first rows.

    The file is .csv, .tsv, .inter or .parquet with these columns; a name may have a type of RecBole (`:token`). Items
    are ordered by time in seconds, equal times as in the file. Where time is None the column is timestamp, and without
    it the order of the rows counts.

    Raises:
        UsageError: The file cannot be read, a user or an item is empty, or a time is no finite number.
    """
    if path.suffix not in _SEPARATORS:
        raise UsageError(f"'{path}' must end in .csv, .tsv, .inter or .parquet")
    optional = () if time else ("time",)
    time = time or "timestamp"
    if len({user, item, time}) < 3:
        raise UsageError(f"user, item and time are '{user}', '{item}' and '{time}': give each its own column")
    columns: Columns = {"user": user, "item": item, "time": time}
    quoted = path.suffix != ".inter"
    layout = Layout(
        (), columns, separator=_SEPARATORS[path.suffix], quoted=quoted, optional=optional, advice=COLUMN_OPTION
    )
    with open_raw(path) as raw:
        frame = pd.concat([pd.DataFrame(), *read_pieces(raw, layout, show_progress=True)], ignore_index=True)
    if frame.empty:
        raise UsageError(f"'{path}' holds no interactions, only a header")
    for role in ("user", "item"):
        if frame[role].isna().any():
            raise UsageError(f"'{path}', row {frame[role].isna().argmax() + 1}: there is no {columns[role]}")
    codes, users = pd.factorize(frame["user"])
    order, times = np.argsort(codes, kind="stable"), None
    if "time" in frame:
        times = read_numbers(frame["time"])
        if np.isnan(times).any():
            row = int(np.isnan(times).argmax())
            cell = frame["time"][row]
            wrong = "the cell is empty" if pd.isna(cell) else f"{cell!r} is not a number of seconds"
            raise UsageError(
                f"'{path}', row {row + 1}, column {time}: {wrong}; `recbole-lisa convert csv` reads dates and writes "
                "them as numbers"
            )
        order = np.lexsort((times, codes))
    bounds = np.cumsum(np.bincount(codes))[:-1]
    items = [part.tolist() for part in np.split(frame["item"].to_numpy(dtype=object)[order], bounds)]
    seconds = [None] * len(users) if times is None else [part.tolist() for part in np.split(times[order], bounds)]
    return list(map(UserHistory, users, items, seconds))
