"""Histories of users from a table of interactions, for `recbole-lisa recommend`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from recbole_lisa.datasets.layouts import Layout
from recbole_lisa.datasets.reader import read_pieces
from recbole_lisa.datasets.source import open_raw
from recbole_lisa.errors import UsageError

_SEPARATORS = {".csv": ",", ".tsv": "\t", ".inter": "\t"}


class UserHistory(NamedTuple):
    """One user: id, items oldest first, and their times in seconds, or None where the table has no times."""

    user: str
    items: list[str]
    times: list[float] | None


def read_user_histories(path: Path, *, user: str, item: str, time: str) -> list[UserHistory]:
    """Read interactions, one a row, and group them by user.

    Args:
        path: .csv, .tsv, RecBole's .inter, or .parquet, with named columns; a name may carry RecBole's type (`:token`).
        user: Column of the user.
        item: Column of the item.
        time: Column of the time in seconds; without such a column the order of the rows counts.

    Returns:
        Users in the order of their first row, items ordered by time (equal times as in the file).

    Raises:
        UsageError: The file or a column is missing, the file cannot be read, a user or an item is empty, or a time is
            no finite number.
    """
    if path.suffix not in (*_SEPARATORS, ".parquet"):
        raise UsageError(f"'{path}' must end in .csv, .tsv, .inter or .parquet")
    columns: dict[str, str | int] = {"user": user, "item": item, "time": time}
    layout = Layout((), columns, separator=_SEPARATORS.get(path.suffix), quoted=path.suffix != ".inter")
    with open_raw(path) as raw:
        pieces = list(read_pieces(raw, layout, optional=("time",)))
    frame = pd.concat(pieces, ignore_index=True) if pieces else pd.DataFrame()
    if frame.empty:
        raise UsageError(f"'{path}' holds no interactions, only a header")
    for role, column in (("user", user), ("item", item)):
        empty = np.flatnonzero(frame[role].isna())
        if len(empty):
            raise UsageError(f"'{path}', row {empty[0] + 1}: there is no {column}")
    times = _seconds(frame["time"], path) if "time" in frame else None
    codes, users = pd.factorize(frame["user"])
    order = np.argsort(codes, kind="stable") if times is None else np.lexsort((times, codes))
    bounds = np.cumsum(np.bincount(codes))[:-1]
    items = [part.tolist() for part in np.split(frame["item"].to_numpy(dtype=object)[order], bounds)]
    seconds = [None] * len(users) if times is None else [part.tolist() for part in np.split(times[order], bounds)]
    return list(map(UserHistory, users, items, seconds))


def _seconds(column: pd.Series[Any], path: Path) -> npt.NDArray[np.float64]:
    seconds: npt.NDArray[np.float64] = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
    odd = np.flatnonzero(~np.isfinite(seconds))
    if len(odd):
        raise UsageError(f"'{path}', row {odd[0] + 1}: the time {column[odd[0]]!r} is no number of seconds")
    return seconds
