import numpy as np
import pytest

from recbole_lisa.data.windows import Windows, cut_windows, preceding, prefixes

# Three histories in one store: rows 0-8 (9 items), rows 9-10 (2 items), row 11 (1 item).
STARTS, LENGTHS = np.array([0, 9, 11]), np.array([9, 2, 1])


def spelled_out(windows: Windows) -> list[tuple[int, list[int], list[int]]]:
    """(history, input rows, target rows) of each window."""
    return [
        (int(history), list(range(end - length, end)), list(range(end - length + 1, end + 1)))
        for history, end, length in zip(windows.history, windows.end, windows.length.tolist(), strict=True)
    ]


def test_windows_are_cut_from_the_end_of_the_training_part_item_by_item() -> None:
    assert spelled_out(cut_windows(STARTS, LENGTHS, 3)) == [
        (0, [0, 1], [1, 2]),
        (0, [2, 3, 4], [3, 4, 5]),
        (0, [5, 6, 7], [6, 7, 8]),
        (1, [9], [10]),
    ]
    assert spelled_out(cut_windows(STARTS, LENGTHS - [2, 0, 0], 4)) == [
        (0, [0, 1], [1, 2]),
        (0, [2, 3, 4, 5], [3, 4, 5, 6]),
        (1, [9], [10]),
    ]
    assert cut_windows(np.array([0]), np.array([300]), 128).length.tolist() == [43, 128, 128]


@pytest.mark.parametrize("max_length", [1, 2, 7, 8, 100])
def test_every_training_target_is_in_exactly_one_window(max_length: int) -> None:
    lengths = np.random.default_rng(1).integers(0, 40, 50)
    starts = np.cumsum(lengths) - lengths
    windows = cut_windows(starts, lengths, max_length)
    targets = [target for _, _, targets in spelled_out(windows) for target in targets]
    expected = [start + step for start, length in zip(starts, lengths, strict=True) for step in range(1, length)]
    assert targets == expected
    assert windows.length.max() <= max_length
    assert windows.length.min() >= 1


def test_prefixes_have_one_window_per_target() -> None:
    windows = prefixes(STARTS, LENGTHS - [4, 0, 0], 3)
    assert [(history, inputs, targets[-1]) for history, inputs, targets in spelled_out(windows)] == [
        (0, [0], 1),
        (0, [0, 1], 2),
        (0, [0, 1, 2], 3),
        (0, [1, 2, 3], 4),
        (1, [9], 10),
    ]


def test_preceding_takes_the_last_items_before_each_target() -> None:
    windows = preceding(STARTS, np.array([0, 0, 1], dtype=np.int32), np.array([8, 2, 10]), 3)
    assert [inputs for _, inputs, _ in spelled_out(windows)] == [[5, 6, 7], [0, 1], [9]]


def test_rows_are_padded_on_the_right_to_the_longest_chosen_window() -> None:
    rows, valid = cut_windows(STARTS, LENGTHS, 3).rows(np.array([3, 0]))
    np.testing.assert_array_equal(rows, [[9, 0], [0, 1]])
    np.testing.assert_array_equal(valid, [[True, False], [True, True]])


def test_no_histories_give_no_windows() -> None:
    nothing = np.array([], dtype=np.int64)
    assert len(cut_windows(nothing, nothing, 3)) == 0
    assert len(prefixes(nothing, nothing, 3)) == 0
