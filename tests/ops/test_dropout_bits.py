import pytest
import torch

from benchmarks.references import dropout_mask
from recbole_lisa.layers.dropout import Dropout
from recbole_lisa.ops.dropout_bits import draw_mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 7, 128])
def test_dropout_and_its_gradient_equal_the_naive_mask(width: int, dtype: torch.dtype) -> None:
    x = torch.randn(3, 11, width, dtype=dtype, requires_grad=True)
    torch.manual_seed(5)
    mask = draw_mask(0.3)
    factors = dropout_mask(mask, 33, width).view(3, 11, width).to(dtype) * mask.scale
    torch.manual_seed(5)
    out = Dropout(0.3)(x)
    assert torch.equal(out, x * factors)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad, factors)
    assert torch.equal(Dropout(0.3).eval()(x), x)
    assert torch.isfinite(Dropout(0.999999)(x)).all()


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_masks_drop_the_fraction_p_and_neighbours_and_masks_are_independent(p: float) -> None:
    rows, width, mask = 20_000, 16, draw_mask(p)
    one, two = (dropout_mask(mask, rows, width).float() for mask in (mask, draw_mask(p)))
    assert 1 - float(one.mean()) == pytest.approx(p, abs=5 * (p * (1 - p) / (rows * width)) ** 0.5 + 1e-5)
    assert mask.scale == pytest.approx(1 / (1 - p), abs=1e-4)
    columns = torch.cat([one, one.roll(1, dims=0), two], dim=1)
    correlation = torch.corrcoef(columns.t()) - torch.eye(3 * width)
    # 1,128 pairs: the largest of so many normal deviates stays below 5 standard errors.
    assert correlation.abs().max() < 5 / rows**0.5
