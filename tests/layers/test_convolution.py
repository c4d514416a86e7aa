import pytest
import torch
from torch import Tensor, nn

from recbole_lisa.layers.convolution import ShortConvolution
from tests.helpers import assert_close, assert_close_with_gradients, ragged

D = 5


def build(width: int) -> ShortConvolution:
    module = ShortConvolution(D, width=width, norm=nn.LayerNorm(D)).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


def naive(module: ShortConvolution, stream: Tensor) -> Tensor:
    """The formula, one position and one step back at a time."""
    x, rows = module.norm(stream), []
    for i in range(stream.shape[1]):
        terms = [module.weight[k] * x[:, i - k] for k in range(len(module.weight)) if k <= i]
        rows.append(stream[:, i] + torch.stack(terms).sum(dim=0))
    return torch.stack(rows, dim=1)


@pytest.mark.parametrize("length", [1, 2, 13])
@pytest.mark.parametrize("width", [2, 4, 7])
def test_a_convolution_equals_its_formula(width: int, length: int) -> None:
    module, stream = build(width), torch.randn(3, length, D, dtype=torch.float64, requires_grad=True)
    out = module(stream)
    assert out.is_contiguous()
    assert_close_with_gradients(out, naive(module, stream), [stream, *module.parameters()])


@pytest.mark.parametrize("width", [2, 4, 7])
@torch.no_grad()
def test_steps_equal_the_whole_and_the_state_after_it(width: int) -> None:
    module, stream, valid = build(width), torch.randn(4, 9, D, dtype=torch.float64), ragged(4, 9)
    whole, state = module(stream), module.init_state(4)
    states = [state]
    for t in range(9):
        out, state = module.step(state, stream[:, t])
        assert_close(out, whole[:, t])
        states.append(state)
    lengths = valid.sum(dim=1)
    expected = torch.stack([states[length][n] for n, length in enumerate(lengths.tolist())])
    polluted = stream.masked_fill(~valid.unsqueeze(2), torch.nan)
    assert_close(module.state_of(polluted, valid), expected)
    assert_close(module.state_of(polluted, torch.zeros_like(valid)), module.init_state(4))


def test_a_new_convolution_changes_nothing_and_a_narrow_one_is_named() -> None:
    stream = torch.randn(2, 6, D)
    assert torch.equal(ShortConvolution(D, width=4, norm=nn.Identity())(stream), stream)
    with pytest.raises(ValueError, match="conv_width must be 0 for no convolution or at least 2, got 1"):
        ShortConvolution(D, width=1, norm=nn.Identity())
