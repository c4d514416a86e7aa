import re
from typing import Any

import numpy as np
import pytest

from recbole_lisa.data.split import Part, check_held_out, split_targets
from recbole_lisa.errors import UsageError

LENGTHS = np.array([1, 2, 3, 4, 10])


def counts(split: Any, lengths: np.ndarray = LENGTHS) -> list[list[int]]:
    parts = split_targets({"split": split, "order": "TO", "group_by": "user"}, lengths)
    return [part.count.tolist() for part in parts]


@pytest.mark.parametrize(
    ("mode", "train", "valid", "test"),
    [
        ("valid_and_test", [0, 1, 1, 1, 7], [0, 0, 0, 1, 1], [0, 0, 1, 1, 1]),
        ("valid_only", [0, 1, 1, 2, 8], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]),
        ("test_only", [0, 1, 1, 2, 8], [0, 0, 0, 0, 0], [0, 0, 1, 1, 1]),
    ],
)
def test_leave_one_out_keeps_one_training_target(
    mode: str, train: list[int], valid: list[int], test: list[int]
) -> None:
    assert counts({"LS": mode}) == [train, valid, test]


def test_ratio_split_rounds_down_but_gives_each_part_one_target() -> None:
    lengths = np.array([1, 2, 3, 4, 11, 101])
    assert counts({"RS": [8, 1, 1]}, lengths) == [[0, 1, 1, 1, 8, 80], [0, 0, 0, 1, 1, 10], [0, 0, 1, 1, 1, 10]]


def test_parts_follow_each_other_in_time() -> None:
    parts = split_targets({"split": {"LS": "valid_and_test"}, "order": "TO", "group_by": "user"}, LENGTHS)
    for part, following in zip(parts, parts[1:], strict=False):
        np.testing.assert_array_equal(part.first + part.count, following.first)
    np.testing.assert_array_equal(parts[0].first, 1)
    np.testing.assert_array_equal(parts[2].first + parts[2].count, LENGTHS)


def test_targets_are_flat_rows() -> None:
    history, rows = Part(first=np.array([1, 2, 1]), count=np.array([2, 0, 1])).targets(np.array([0, 5, 7, 9]))
    assert history.tolist() == [0, 0, 2]
    assert rows.tolist() == [1, 2, 8]


def checked(split: Any, longest: int, eval_step: int = 1) -> None:
    eval_args = {"split": split, "order": "TO", "group_by": "user"}
    check_held_out(eval_args, eval_step, np.array([1, longest]))


@pytest.mark.parametrize(
    ("split", "phase", "takes"),
    [
        ({"LS": "valid_and_test"}, "test", 3),
        ({"LS": "valid_and_test"}, "validation", 4),
        ({"LS": "valid_only"}, "validation", 3),
        ({"LS": "test_only"}, "test", 3),
        ({"RS": [8, 1, 1]}, "test", 3),
        ({"RS": [8, 1, 1]}, "validation", 4),
        ({"RS": [98, 0, 2]}, "test", 3),
        ({"RS": [9, 1, 0]}, "validation", 3),
    ],
    ids=str,
)
def test_a_part_of_the_split_without_items_is_refused_with_the_numbers(split: Any, phase: str, takes: int) -> None:
    start = (
        f"no history is long enough for a {phase} item: the longest of 2 has {takes - 1} interactions, and the split"
    )
    with pytest.raises(UsageError, match=re.escape(f"{start} {split} takes {takes}; loosen the filters, or ")):
        checked(split, takes - 1)
    checked(split, 4)


def test_a_part_that_the_split_leaves_out_may_be_missing() -> None:
    checked({"RS": [1, 0, 0]}, 2)
    checked({"LS": "test_only"}, 3)
    checked({"LS": "valid_and_test"}, 3, eval_step=0)
    with pytest.raises(UsageError, match="a test item"):
        checked({"LS": "valid_and_test"}, 2, eval_step=0)
