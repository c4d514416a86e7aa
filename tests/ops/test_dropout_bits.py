import numpy as np
import pytest
import torch

from recbole_lisa.ops.dropout_bits import LEVELS, draw_seeds, mask_of, threshold_of

pytest.importorskip("numba")


@pytest.mark.parametrize("width", [1, 7, 128])
def test_compiled_masks_equal_the_reference(width: int) -> None:
    from recbole_lisa.ops.encoder_kernels import fill_mask

    seed, threshold = draw_seeds(1, LEVELS // 2)[0], threshold_of(0.3)
    expected = mask_of(seed, 33, width, threshold)
    mask = np.empty(width, np.float32)
    for row in range(33):
        fill_mask(seed, row, threshold, np.float32(2), mask)
        assert np.array_equal(mask, 2.0 * expected[row])


def test_neighbours_in_a_mask_and_two_masks_are_independent() -> None:
    rows, width = 20_000, 16
    one, two = (mask_of(seed, rows, width, LEVELS // 2) for seed in draw_seeds(2, LEVELS // 2))
    columns = np.concatenate([one, two, np.roll(one, 1, axis=0)], axis=1)
    correlation = np.corrcoef(columns.T) - np.eye(3 * width)
    # 1,128 pairs: the largest of so many normal deviates stays below 5 standard errors.
    assert np.abs(correlation).max() < 5 / rows**0.5


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_masks_drop_the_share_p(p: float) -> None:
    dropped = 1 - mask_of(draw_seeds(1, LEVELS // 2)[0], 1001, 999, threshold_of(p)).mean()
    assert dropped == pytest.approx(p, abs=5 * (p * (1 - p) / (1001 * 999)) ** 0.5 + 1e-5)


def test_seeds_follow_the_generator_of_torch() -> None:
    torch.manual_seed(5)
    first = draw_seeds(3, LEVELS // 2)
    torch.manual_seed(5)
    assert np.array_equal(first, draw_seeds(3, LEVELS // 2))
    assert len({tuple(pair) for pair in [*first, *draw_seeds(3, LEVELS // 2)]}) == 6
