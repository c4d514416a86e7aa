import pytest
import torch

from recbole_lisa.ops.dropout_bits import draw_mask
from tests.helpers import assert_close


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_masks_drop_the_fraction_p_and_neighbours_and_blocks_are_independent(p: float) -> None:
    rows, width, mask = 20_000, 16, draw_mask(p)
    ones, next_block = (mask.ones(torch.empty(rows, width), block) for block in (0, 1))
    assert 1 - float(ones.mean()) == pytest.approx(p, abs=5 * (p * (1 - p) / (rows * width)) ** 0.5 + 1e-5)
    assert mask.scale == pytest.approx(1 / (1 - p), abs=1e-4)
    columns = torch.cat([ones, ones.roll(1, dims=0), next_block], dim=1)
    correlation = torch.corrcoef(columns.t()) - torch.eye(3 * width)
    # 1,128 pairs: the largest of so many normal deviates stays below 5 standard errors.
    assert correlation.abs().max() < 5 / rows**0.5


def test_masks_follow_the_generator_of_torch_and_come_again() -> None:
    torch.manual_seed(5)
    first, second = draw_mask(0.3), draw_mask(0.3)
    torch.manual_seed(5)
    assert draw_mask(0.3) == first != second
    x = torch.randn(7, 3)
    assert torch.equal(first.drop(x, torch.empty_like(x)), first.drop(x, torch.empty_like(x)))
    assert_close(first.add(x, x, torch.empty_like(x)), x + first.ones(torch.empty_like(x)) * x * first.scale)
