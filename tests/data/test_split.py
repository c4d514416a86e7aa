from typing import Any

import numpy as np
import pytest

from recbole_lisa.data.split import check_held_out, split_targets
from recbole_lisa.errors import UsageError

LENGTHS = [1, 2, 3, 4, 10]


@pytest.mark.parametrize(
    ("split", "lengths", "train", "valid", "test"),
    [
        ({"LS": "valid_and_test"}, LENGTHS, [0, 1, 1, 1, 7], [0, 0, 0, 1, 1], [0, 0, 1, 1, 1]),
        ({"LS": "valid_only"}, LENGTHS, [0, 1, 1, 2, 8], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]),
        ({"LS": "test_only"}, LENGTHS, [0, 1, 1, 2, 8], [0, 0, 0, 0, 0], [0, 0, 1, 1, 1]),
        ({"RS": [8, 1, 1]}, [1, 2, 3, 4, 11, 101], [0, 1, 1, 1, 8, 80], [0, 0, 0, 1, 1, 10], [0, 0, 1, 1, 1, 10]),
    ],
)
def test_parts_follow_each_other_and_training_keeps_one_target(
    split: Any, lengths: list[int], train: list[int], valid: list[int], test: list[int]
) -> None:
    parts = split_targets({"split": split, "order": "TO", "group_by": "user"}, np.array(lengths))
    assert [part.count.tolist() for part in parts] == [train, valid, test]
    for part, following in zip(parts, parts[1:], strict=False):
        np.testing.assert_array_equal(part.first + part.count, following.first)
    np.testing.assert_array_equal(parts[0].first, 1)
    np.testing.assert_array_equal(parts[2].first + parts[2].count, lengths)


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
    with pytest.raises(UsageError) as caught:
        checked(split, takes - 1)
    assert str(caught.value).startswith(
        f"no history is long enough for a {phase} item: the longest of 2 has {takes - 1} interactions, "
        f"and the split {split} takes {takes}; loosen the filters, or "
    )
    checked(split, 4)


def test_a_part_that_the_split_leaves_out_may_be_missing() -> None:
    checked({"RS": [1, 0, 0]}, 2)
    checked({"LS": "test_only"}, 3)
    checked({"LS": "valid_and_test"}, 3, eval_step=0)
    with pytest.raises(UsageError, match="a test item"):
        checked({"LS": "valid_and_test"}, 2, eval_step=0)
