"""Which targets of each history train, validate and test: positions only, nothing is copied or moved.

Both splits divide the TARGETS h_2..h_T of a history (its first item has no input before it) and keep at least one
target for training, as RecBole splits its augmented rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import getLogger
from typing import Any

import numpy as np

from recbole_lisa.data.histories import Index, Items, Times, runs
from recbole_lisa.errors import UsageError

LEAVE_ONE_OUT = {"valid_and_test": (1, 1), "valid_only": (1, 0), "test_only": (0, 1)}
_LONG_ENOUGH = 4  # a history of so many items has a target for each part that a split names


@dataclass(frozen=True)
class Part:
    """The targets of one phase: a run of consecutive items of each history."""

    first: Index  # (users,) position in its history of the first target; 0 where training has no item of a user
    count: Index  # (users,) number of targets, possibly 0

    def targets(self, offsets: Index) -> tuple[Items, Index]:
        """The history and the flat row of every target, history by history, oldest first; `offsets` of the store."""
        return runs(offsets[:-1] + self.first, self.count)


def split_targets(eval_args: Mapping[str, Any], lengths: Index) -> tuple[Part, Part, Part]:
    """Training, validation and test targets of histories of `lengths` (users,) by a checked `eval_args`."""
    split = eval_args["split"]
    valid, test = leave_one_out(lengths, split["LS"]) if "LS" in split else by_ratio(lengths, split["RS"])
    train = np.maximum(lengths - 1, 0) - valid - test
    return Part(np.ones_like(lengths), train), Part(1 + train, valid), Part(1 + train + valid, test)


def held_out_parts(split: Mapping[str, Any]) -> dict[str, float]:
    """`validation` and `test` -> a number above 0 where a split has this part."""
    by_key = LEAVE_ONE_OUT[split["LS"]] if "LS" in split else [*split.values()][0][-2:]
    return dict(zip(("validation", "test"), by_key, strict=True))


_WITHOUT = {
    "validation": "hold out test items alone: eval_args {split: {LS: test_only}}",
    "test": "train on everything and test nothing: eval_args {split: {RS: [1, 0, 0]}}",
}


def check_held_out(eval_args: Mapping[str, Any], eval_step: int, lengths: Index) -> None:
    """Refuse an evaluation without items by a `UsageError`: its metrics would be missing after hours of training.

    eval_args are checked; lengths (users,) counts the items of each history. eval_step 0 or less means no validation.
    """
    split = eval_args["split"]
    if "TS" in split:  # `by_time` has checked its targets
        return
    evaluated = held_out_parts(split)
    if eval_step <= 0:
        evaluated["validation"] = 0
    parts, by_length = (split_targets(eval_args, n) for n in (lengths, np.arange(_LONG_ENOUGH + 1)))
    for phase, number in (("test", 2), ("validation", 1)):
        if evaluated[phase] and not parts[number].count.any():
            raise UsageError(
                f"no history is long enough for a {phase} item: the longest of {len(lengths):,} has "
                f"{int(lengths.max(initial=0))} interactions, and the split {split} takes "
                f"{int(np.argmax(by_length[number].count > 0))}; loosen the filters, or {_WITHOUT[phase]}"
            )


def leave_one_out(lengths: Index, mode: str) -> tuple[Index, Index]:
    """Hold out the last target of each history for testing and the one before it for validation.

    A history too short for both keeps its only spare target for testing; with two items it only trains. Returns the
    numbers of validation and of test targets, (users,) each.
    """
    n_valid, n_test = LEAVE_ONE_OUT[mode]
    spare = np.maximum(lengths - 2, 0)
    test = np.minimum(spare, n_test)
    return np.minimum(spare - test, n_valid), test


def by_time(split: Mapping[str, Any], history: Index, times: Times, n_histories: int) -> tuple[Part, Part, Part]:
    """Train before t1, validate from t1 on and test from t2 on, for all users: `TS` holds both, or ratios of the rows.

    Every interaction of a period is a target unless it is the first one of its history. `history` (rows,) has the
    number of the history of each interaction, `times` (rows,) its seconds. A period without a target is a UsageError.
    """
    ends = split["TS"]
    if len(ends) == 3:
        ranks = np.rint(np.cumsum(ends)[:2] / sum(ends) * len(times)).astype(int)
        ends = np.append(np.sort(times), np.inf)[ranks]
    parts = _parts_before((*ends, np.inf), times, history, n_histories)
    for (phase, used), part in zip({"training": 1, **held_out_parts(split)}.items(), parts, strict=True):
        if used and not part.count.any():
            period = f"from {times.min():.0f} to {times.max():.0f} seconds, t1 is {ends[0]:.0f}, t2 is {ends[1]:.0f}"
            left = f"no {phase} item after another of its user"
            raise UsageError(f"the split {dict(split)} leaves {left}: times are {period}")
    begins = np.full(n_histories, np.inf)
    np.minimum.at(begins, history, times)
    if n_histories > 1 and len(np.unique(begins)) == 1:
        kind = f"every history begins at {begins[0]:.0f}: its times look like ranks of one user, not times of all"
        getLogger().warning(f"the split {dict(split)} needs times that all users have in common, but {kind}")
    getLogger().info(f"training before {ends[0]:.0f}, validation before {ends[1]:.0f}, then test (seconds)")
    return parts


def by_file(history: Index, times: Times, part: Index, n_histories: int) -> tuple[Part, Part, Part]:
    """The parts of pre-split files: rows of `part` 0 train, 1 validate and 2 test.

    history, times and part (rows,) are the number of the history, the seconds, and the number of the file of each
    interaction; equal times keep the order of rows.

    Raises:
        UsageError: A history has an interaction of an earlier part after one of a later part, or a part has no target.
    """
    order = np.lexsort((times, history))
    falls = (np.diff(part[order]) < 0) & (np.diff(history[order]) == 0)
    if falls.any():
        raise UsageError(
            f"{len(np.unique(history[order][1:][falls])):,} users have, in the files of benchmark_filename, an "
            "interaction of an earlier part after one of a later part: training must end before validation, and "
            "validation before test; give one .inter file and set eval_args split"
        )
    parts = _parts_before((1, 2, 3), part, history, n_histories)
    for name, targets in zip(("training", "validation", "test"), parts, strict=True):
        if not targets.count.any():
            raise UsageError(f"the {name} file of benchmark_filename has no item after another of its user")
    return parts


def _parts_before(ends: Sequence[float], values: Any, history: Index, n: int) -> tuple[Part, Part, Part]:
    """Parts of n histories of the rows with a value below each of three ends, and not below the end before it."""
    known, later, lengths = (np.bincount(history[values < end], minlength=n) for end in ends)
    if new := int(((known == 0) & (lengths > 0)).sum()):
        why = "their first interaction there is no target, as nothing is before it"
        getLogger().info(f"{new:,} users begin in the validation or test part: {why}")
    valid, test = np.maximum(known, 1), np.maximum(later, 1)
    return Part(np.minimum(known, 1), valid - 1), Part(valid, test - valid), Part(test, lengths - test)


def by_ratio(lengths: Index, ratios: Sequence[float]) -> tuple[Index, Index]:
    """Split the targets of each history by [train, valid, test] ratios, in time order.

    Validation and test parts are rounded down; a part that would be empty gets one target while training has
    more than one, the test part first. Returns their numbers of targets, (users,) each.
    """
    targets = np.maximum(lengths - 1, 0)
    exact = [ratio / sum(ratios) * targets for ratio in ratios]
    valid, test = exact[1].astype(np.int64), exact[2].astype(np.int64)
    train = targets - valid - test
    extra_test = (train > 1) & (exact[2] > 0) & (exact[2] < 1)
    test, train = test + extra_test, train - extra_test
    extra_valid = (train > 1) & (exact[1] > 0) & (exact[1] < 1)
    return valid + extra_valid, test
