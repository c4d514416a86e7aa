"""Every interaction once, grouped by user and ordered by time, in three flat arrays.

Windows, prefixes and held-out targets are index arithmetic on this store (see `windows.py`), so the memory of
the data path is O(rows) whatever the maximum length is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Items = npt.NDArray[np.int32]
Gaps = npt.NDArray[np.float32]
Index = npt.NDArray[np.int64]
Ids = npt.NDArray[np.integer[Any]]
Times = npt.NDArray[np.float64]


def runs(starts: Index, counts: Index) -> tuple[Items, Index]:
    """The number of the run and the flat row of each row, for runs of counts (n,) rows that begin at starts (n,)."""
    run = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    return run, (starts - np.cumsum(counts) + counts)[run] + np.arange(len(run))


@dataclass(frozen=True)
class Histories:
    """The interactions of all users, user by user, oldest first."""

    items: Items  # (rows,) item ids, 1..V-1
    gaps: Gaps  # (rows,) seconds since the same user's previous interaction; 0 at the first one
    offsets: Index  # (users + 1,) history u is `items[offsets[u]:offsets[u + 1]]`
    users: Index  # (users,) the user id of each history, ascending
    times: Times | None = None  # (rows,) seconds, only where a model reads them (query_time)

    @classmethod
    def from_interactions(cls, users: Ids, items: Ids, times: Times, *, keep_times: bool = False) -> Histories:
        """Sort interactions (rows,) by user and time, in finite seconds; equal times keep the order of the rows.

        Times are compared as they come, never rounded: in float32 two events of one day are often "equal".
        """
        order = np.lexsort((times, users))
        return cls.from_sorted(users[order], items[order], times[order], keep_times=keep_times)

    @classmethod
    def from_sorted(cls, users: Ids, items: Ids, times: Times, *, keep_times: bool = False) -> Histories:
        """As `from_interactions`, of interactions in the order of user and time."""
        first = np.ones(len(users), dtype=bool)
        first[1:] = users[1:] != users[:-1]
        gaps = np.zeros(len(times), dtype=np.float32)
        with np.errstate(over="ignore"):  # times at the ends of what a float holds
            gaps[1:] = np.minimum(np.diff(times), np.finfo(np.float32).max)
        gaps[first] = 0.0
        starts = np.flatnonzero(first)
        return cls(
            items=items.astype(np.int32, copy=False),
            gaps=gaps,
            offsets=np.append(starts, len(users)).astype(np.int64, copy=False),
            users=users[starts].astype(np.int64, copy=False),
            times=times if keep_times else None,
        )

    @property
    def lengths(self) -> Index:
        """(users,) interactions per history."""
        return np.diff(self.offsets)
