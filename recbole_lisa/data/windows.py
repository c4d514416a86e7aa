"""Training windows, prefixes and evaluation inputs as (history, end, length) triples over the flat store.

One triple means: the input items are rows `end - length .. end - 1`, the item that follows them is row `end`.
With a target at every position the targets are the input rows shifted by one, `end - length + 1 .. end`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recbole_lisa.data.histories import Index, Items, runs


@dataclass(frozen=True)
class Windows:
    """A list of input sequences, stored as positions."""

    history: Items  # (windows,) which history each window belongs to
    end: Index  # (windows,) flat row of the item after the last input
    length: Items  # (windows,) number of inputs, at least 1
    # (windows,) number of the first inputs whose targets other windows train; None for 0
    context: Items | None = None

    def __len__(self) -> int:
        """Number of windows."""
        return len(self.end)

    def rows(self, chosen: Index, width: int = 0) -> tuple[Index, npt.NDArray[np.bool_]]:
        """Flat rows (N, L) of the inputs of the windows `chosen` (N,), 0 where padded, and valid (N, L).

        They are padded on the right to the longest of them, or to `width`.
        """
        length = self.length[chosen].astype(np.int64)
        steps = np.arange(length.max(initial=width))
        valid = steps < length[:, None]
        rows = (self.end[chosen] - length)[:, None] + steps
        return rows * valid, valid


def cut_windows(starts: Index, lengths: Index, max_length: int, newest: Index | None = None) -> Windows:
    """Cut each training history, from its end, into windows with a target at every position.

    A history h_1..h_T has inputs h_1..h_{T-1} and targets h_2..h_T. The last window takes the last `newest`
    inputs, the one before it the `max_length` before those, and the first window the rest. So every
    target is in exactly one window. Histories with T < 2 give no window. Windows come history by history, oldest first.

    starts (users,) is the flat row of each history's first item, lengths (users,) is T, the items of each history that
    belong to the training part, newest (users,) is in 1..max_length, None for max_length.
    """
    inputs = np.maximum(lengths - 1, 0)
    newest = np.full_like(inputs, max_length) if newest is None else newest
    history, later = _windows_of((inputs > 0) - (np.minimum(newest - inputs, 0) // max_length))
    left: Index = inputs[history] - (later > 0) * (newest[history] + (later - 1) * max_length)
    longest = np.where(later > 0, max_length, newest[history])
    return Windows(history=history, end=starts[history] + left, length=np.minimum(left, longest).astype(np.int32))


def shifted_windows(starts: Index, lengths: Index, max_length: int, rng: np.random.Generator) -> Windows:
    """`cut_windows` with a random cut in every history of more than one window; arguments as there."""
    newest = rng.integers(1, max_length + 1, size=len(lengths))
    return cut_windows(starts, lengths, max_length, np.where(lengths - 1 > max_length, newest, max_length))


def overlapping_windows(starts: Index, lengths: Index, max_length: int) -> Windows:
    """Windows at a stride of half a window, from the end; arguments as in `cut_windows`.

    All but the first of a history have `max_length` inputs and train the last half of them, so that each target is
    trained once, in the second half of a window or in the first window.
    """
    inputs, stride = np.maximum(lengths - 1, 0), max(max_length // 2, 1)
    counts = (inputs > 0) - (np.minimum(max_length - inputs, 0) // stride)
    history, later = _windows_of(counts)
    left = inputs[history] - later * stride
    length = np.minimum(left, max_length)
    context = np.where(later + 1 < counts[history], length - stride, 0)
    return Windows(history, starts[history] + left, length.astype(np.int32), context.astype(np.int32))


def width_groups(lengths: Items) -> Index:
    """Groups of similar lengths (windows,): the longest of a group is at most 2**(1/4) times its shortest."""
    groups: Index = np.floor(4 * np.log2(lengths)).astype(np.int64)
    return groups


def batch_starts(lengths: Items, most: int) -> Index:
    """First window of each batch, where a batch has at most `most` items with padding (N L), or one window.

    lengths (windows,) are those of windows ordered by `width_groups`. All orders inside the groups have these starts.
    """
    widths, starts = np.exp2((width_groups(lengths) + 1) / 4), [0]
    for row, width in enumerate(widths.tolist()):
        if row > starts[-1] and (row + 1 - starts[-1]) * width > most:
            starts.append(row)
    return np.array(starts)


def prefixes(starts: Index, lengths: Index, max_length: int) -> Windows:
    """One window per training target: up to `max_length` items before it (RecBole's augmentation).

    Arguments as in `cut_windows`; the windows come history by history, shortest prefix first.
    """
    history, targets = runs(starts + 1, np.maximum(lengths - 1, 0))
    return preceding(starts, history, targets, max_length)


def preceding(starts: Index, history: Items, targets: Index, max_length: int) -> Windows:
    """The windows that end just before the rows `targets` (targets,), which are never the first of their `history`."""
    available = targets - starts[history]
    return Windows(history=history, end=targets, length=np.minimum(available, max_length).astype(np.int32))


def _windows_of(counts: Index) -> tuple[Items, Index]:
    """The history of each window, and how many windows of it are later; for counts (2, 3): 0 0 1 1 1, 1 0 2 1 0."""
    history, number = runs(np.zeros_like(counts), counts)
    return history, counts[history] - 1 - number


WINDOWS: dict[str, Callable[[Index, Index, int, np.random.Generator], Windows]] = {
    "disjoint": lambda starts, lengths, longest, _: cut_windows(starts, lengths, longest),
    "overlapping": lambda starts, lengths, longest, _: overlapping_windows(starts, lengths, longest),
    "random_offset": shifted_windows,
    "whole": lambda starts, lengths, *_: cut_windows(starts, lengths, max(int(lengths.max(initial=0)), 1)),
}
"""The windows of an epoch by the setting `windows`, from the arguments of `cut_windows` and a generator."""
