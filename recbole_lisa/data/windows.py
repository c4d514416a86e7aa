"""Training windows, prefixes and evaluation inputs as (history, end, length) triples over the flat store.

One triple means: the input items are rows `end - length .. end - 1`, the item that follows them is row `end`.
With a target at every position the targets are the input rows shifted by one, `end - length + 1 .. end`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recbole_lisa.data.histories import Index


@dataclass(frozen=True)
class Windows:
    """A list of input sequences, stored as positions.

    Attributes:
        history: (windows,) which history each window belongs to.
        end: (windows,) flat row of the item after the last input.
        length: (windows,) number of inputs, at least 1.
    """

    history: npt.NDArray[np.int32]
    end: Index
    length: npt.NDArray[np.int32]

    def __len__(self) -> int:
        """Number of windows."""
        return len(self.end)

    def rows(self, chosen: Index) -> tuple[Index, npt.NDArray[np.bool_]]:
        """Flat rows of the inputs of the windows `chosen` (N,), right-padded to the longest of them.

        Returns:
            rows (N, L), 0 where padded, and valid (N, L).
        """
        length = self.length[chosen].astype(np.int64)
        steps = np.arange(length.max(initial=0))
        valid = steps < length[:, None]
        rows = (self.end[chosen] - length)[:, None] + steps
        return rows * valid, valid


def cut_windows(starts: Index, lengths: Index, max_length: int) -> Windows:
    """Cut each training history, from its end, into windows with a target at every position.

    A history h_1..h_T has inputs h_1..h_{T-1} and targets h_2..h_T. The last window takes the last `max_length`
    inputs, the one before it the `max_length` before those, and the first window the rest. So every
    target is in exactly one window. Histories with T < 2 give no window.

    Args:
        starts: (users,) flat row of each history's first item.
        lengths: (users,) T, the items of each history that belong to the training part.
        max_length: most inputs per window, at least 1.

    Returns:
        The windows, history by history, oldest first.
    """
    inputs = np.maximum(lengths - 1, 0)
    counts = -(-inputs // max_length)
    history = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    later = _countdown(counts)
    remaining = inputs[history] - later * max_length
    return Windows(
        history=history,
        end=starts[history] + remaining,
        length=np.minimum(remaining, max_length).astype(np.int32),
    )


def prefixes(starts: Index, lengths: Index, max_length: int) -> Windows:
    """One window per training target: up to `max_length` items before it (RecBole's augmentation).

    Arguments as in `cut_windows`; the windows come history by history, shortest prefix first.
    """
    counts = np.maximum(lengths - 1, 0)
    history = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    position = lengths[history] - 1 - _countdown(counts)
    return preceding(starts, history, starts[history] + position, max_length)


def preceding(starts: Index, history: npt.NDArray[np.int32], targets: Index, max_length: int) -> Windows:
    """The windows that end just before the rows `targets` (targets,), which are never the first of their `history`."""
    available = targets - starts[history]
    return Windows(history=history, end=targets, length=np.minimum(available, max_length).astype(np.int32))


def _countdown(counts: Index) -> Index:
    """For counts (2, 3): 1 0, 2 1 0."""
    ends = np.cumsum(counts)
    return np.repeat(ends, counts) - 1 - np.arange(int(counts.sum()))
