import numpy as np

from recbole_lisa.data.histories import Histories


def build(rows: list[tuple[int, int, float]]) -> Histories:
    users, items, times = (np.array(column) for column in zip(*rows, strict=True))
    return Histories.from_interactions(users, items, times.astype(np.float64))


def test_items_are_grouped_by_user_and_ordered_by_time_with_the_seconds_between_them() -> None:
    store = build([(2, 10, 5), (1, 11, 9), (2, 12, 1), (1, 13, 2.5), (4, 14, 0)])
    np.testing.assert_array_equal(store.users, [1, 2, 4])
    np.testing.assert_array_equal(store.offsets, [0, 2, 4, 5])
    np.testing.assert_array_equal(store.lengths, [2, 2, 1])
    np.testing.assert_array_equal(store.items, [13, 11, 12, 10, 14])
    np.testing.assert_array_equal(store.gaps, [0, 6.5, 0, 4, 0])
    assert (store.items.dtype, store.gaps.dtype) == (np.int32, np.float32)


def test_times_that_float32_cannot_separate_keep_their_order() -> None:
    late, early = 881_250_950.0, 881_250_949.0
    assert np.float32(late) == np.float32(early)
    store = build([(1, 1, late), (1, 2, early)])
    np.testing.assert_array_equal(store.items, [2, 1])
    np.testing.assert_array_equal(store.gaps, np.float32([0, 1]))


def test_equal_times_keep_file_order_and_never_the_order_of_ids() -> None:
    rng = np.random.default_rng(0)
    items = rng.permutation(500) + 1
    users, times = rng.integers(0, 3, 500), rng.integers(0, 4, 500).astype(np.float64)
    store = Histories.from_interactions(users, items, times)
    expected = sorted(range(500), key=lambda row: (users[row], times[row], row))
    np.testing.assert_array_equal(store.items, items[expected])
