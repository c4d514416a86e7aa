import pytest
import torch

from recbole_lisa.ops.dropout_bits import draw_bits, kept, scale_of, threshold_of


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_masks_drop_the_fraction_p_and_neighbours_are_independent(p: float) -> None:
    rows, width = 20_000, 16
    bits = draw_bits(torch.Size((rows, width)))
    mask = kept(bits, threshold_of(p), torch.empty(rows, width))
    assert 1 - float(mask.mean()) == pytest.approx(p, abs=5 * (p * (1 - p) / (rows * width)) ** 0.5 + 1e-5)
    assert scale_of(threshold_of(p)) == pytest.approx(1 / (1 - p), abs=1e-4)
    correlation = torch.corrcoef(torch.cat([mask, mask.roll(1, dims=0)], dim=1).t()) - torch.eye(2 * width)
    # 496 pairs: the largest of so many normal deviates stays below 5 standard errors.
    assert correlation.abs().max() < 5 / rows**0.5


def test_bits_follow_the_generator_of_torch() -> None:
    shape = torch.Size((7, 3))
    torch.manual_seed(5)
    first = draw_bits(shape)
    torch.manual_seed(5)
    assert torch.equal(first, draw_bits(shape))
    assert not torch.equal(first, draw_bits(shape))
