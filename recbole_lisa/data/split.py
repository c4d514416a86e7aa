"""Which targets of each history train, validate and test: positions only, nothing is copied or moved.

Both splits deal out the TARGETS h_2..h_T of a history (its first item has no input before it) and keep at least
one target for training, exactly as RecBole splits its augmented rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recbole_lisa.data.histories import Index
from recbole_lisa.errors import UsageError

LEAVE_ONE_OUT = {"valid_and_test": (1, 1), "valid_only": (1, 0), "test_only": (0, 1)}
_LONG_ENOUGH = 4  # a history of so many items has a target for each part that a split names


@dataclass(frozen=True)
class Part:
    """The targets of one phase: a run of consecutive items of each history.

    Attributes:
        first: (users,) position in its history of the first target, at least 1.
        count: (users,) number of targets, possibly 0.
    """

    first: Index
    count: Index

    def targets(self, offsets: Index) -> tuple[npt.NDArray[np.int32], Index]:
        """The history and the flat row of every target, history by history, oldest first.

        Args:
            offsets: (users + 1,) of the flat store.
        """
        history = np.repeat(np.arange(len(self.count), dtype=np.int32), self.count)
        before = np.cumsum(self.count) - self.count
        return history, (offsets[:-1] + self.first - before)[history] + np.arange(len(history))


def split_targets(eval_args: Mapping[str, Any], lengths: Index) -> tuple[Part, Part, Part]:
    """Training, validation and test targets by RecBole's `eval_args`.

    Args:
        eval_args: `split` (LS or RS), `order` (TO) and, for RS, `group_by` (user).
        lengths: (users,) items per history.

    Raises:
        UsageError: a split or an order that sequences do not have.
    """
    if eval_args["order"] != "TO":
        raise UsageError(f"eval_args.order must be TO (sequences are ordered by time), got {eval_args['order']!r}")
    chosen = eval_args["split"]
    if not isinstance(chosen, Mapping) or len(chosen) != 1 or next(iter(chosen)) not in ("LS", "RS"):
        raise UsageError(
            "eval_args.split must be {LS: valid_and_test | valid_only | test_only} or {RS: [train, valid, test]}, "
            f"got {chosen!r}; TS (one time for all users) is not supported"
        )
    if "LS" in chosen:
        valid, test = leave_one_out(lengths, chosen["LS"])
    else:
        if eval_args["group_by"] != "user":
            raise UsageError(f"eval_args.group_by must be user to split by RS, got {eval_args['group_by']!r}")
        valid, test = by_ratio(lengths, chosen["RS"])
    train = np.maximum(lengths - 1, 0) - valid - test
    return (
        Part(np.ones_like(lengths), train),
        Part(1 + train, valid),
        Part(1 + train + valid, test),
    )


def wanted_parts(split: Mapping[str, Any]) -> dict[str, float]:
    """Whether `eval_args.split`, which `split_targets` accepts, asks for a validation and a test part.

    Returns:
        `validation` and `test` -> a number above 0 if it does.
    """
    shares = LEAVE_ONE_OUT[split["LS"]] if "LS" in split else split["RS"][1:]
    return dict(zip(("validation", "test"), shares, strict=True))


_WITHOUT = {
    "validation": "hold out test items alone: eval_args {split: {LS: test_only}}",
    "test": "train on everything and test nothing: eval_args {split: {RS: [1, 0, 0]}}",
}


def check_held_out(eval_args: Mapping[str, Any], eval_step: int, lengths: Index) -> None:
    """Refuse an evaluation that is asked for and has no item: its metrics would be missing after hours of training.

    Args:
        eval_args: As `split_targets` accepts it.
        eval_step: Epochs from one validation to the next; from 0 down (in RecBole's pipeline) none is asked for.
        lengths: (users,) items per history.

    Raises:
        UsageError: No history is long enough for a part that the split names; validation counts if it is asked for.
    """
    split = eval_args["split"]
    wanted = wanted_parts(split)
    if eval_step <= 0:
        wanted["validation"] = 0
    found = dict(zip(("validation", "test"), split_targets(eval_args, lengths)[1:], strict=True))
    short = np.arange(_LONG_ENOUGH + 1)
    by_length = dict(zip(("validation", "test"), split_targets(eval_args, short)[1:], strict=True))
    for phase in ("test", "validation"):
        if wanted[phase] and not found[phase].count.any():
            raise UsageError(
                f"no history is long enough for a {phase} item: the longest of {len(lengths):,} has "
                f"{int(lengths.max(initial=0))} interactions, and the split {split} takes "
                f"{int(np.argmax(by_length[phase].count > 0))}; loosen the filters, or {_WITHOUT[phase]}"
            )


def leave_one_out(lengths: Index, mode: str) -> tuple[Index, Index]:
    """Hold out the last target of each history for testing and the one before it for validation.

    A history too short for both keeps its only spare target for testing; with two items it only trains.

    Args:
        lengths: (users,) items per history.
        mode: `valid_and_test`, `valid_only` or `test_only`.

    Returns:
        Numbers of validation and of test targets, (users,) each.

    Raises:
        UsageError: unknown mode.
    """
    if mode not in LEAVE_ONE_OUT:
        raise UsageError(f"eval_args.split.LS must be one of {', '.join(LEAVE_ONE_OUT)}, got {mode!r}")
    wanted_valid, wanted_test = LEAVE_ONE_OUT[mode]
    spare = np.maximum(lengths - 2, 0)
    test = np.minimum(spare, wanted_test)
    return np.minimum(spare - test, wanted_valid), test


def by_ratio(lengths: Index, ratios: Sequence[float]) -> tuple[Index, Index]:
    """Split the targets of each history by [train, valid, test] ratios, in time order.

    Validation and test parts are rounded down; a part that would be empty gets one target while training has
    more than one, the test part first.

    Args:
        lengths: (users,) items per history.
        ratios: three numbers >= 0, the first one > 0; they need not sum to 1.

    Returns:
        Numbers of validation and of test targets, (users,) each.

    Raises:
        UsageError: not three such numbers.
    """
    if not isinstance(ratios, Sequence) or len(ratios) != 3 or min(ratios) < 0 or ratios[0] <= 0:
        raise UsageError(f"eval_args.split.RS must be three ratios [train, valid, test], train > 0, got {ratios!r}")
    total = sum(ratios)
    targets = np.maximum(lengths - 1, 0)
    shares = [ratio / total * targets for ratio in ratios]
    valid, test = shares[1].astype(np.int64), shares[2].astype(np.int64)
    train = targets - valid - test
    wants_test = (train > 1) & (shares[2] > 0) & (shares[2] < 1)
    test, train = test + wants_test, train - wants_test
    wants_valid = (train > 1) & (shares[1] > 0) & (shares[1] < 1)
    return valid + wants_valid, test
