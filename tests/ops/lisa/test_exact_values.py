import pytest
import torch

from benchmarks import lisa_reference as naive
from recbole_lisa.ops.lisa.exact_values import exact_values_attention
from tests.helpers import assert_close_with_gradients, ragged

N, B, W, D = 3, 2, 5, 8


@pytest.mark.parametrize("length", [1, 31, 32, 33, 70])
@pytest.mark.parametrize("decay", [0.0, 0.3, [0.5, 0.01]], ids=["no-decay", "decay", "one-a-codebook"])
@pytest.mark.parametrize("hard", [True, False], ids=["hard", "soft"])
def test_blocks_equal_softmax_attention_over_codewords(length: int, decay: float | list[float], hard: bool) -> None:
    codes, valid = torch.randint(W, (N, length, B)), ragged(N, length)
    keys = torch.nn.functional.one_hot(codes, W).double() if hard else torch.rand(N, length, B, W).double()
    table, values = torch.randn(B, W, W).double(), torch.randn(N, length, D).double()
    rates = torch.tensor(decay, dtype=torch.float64)
    operands = [x.requires_grad_() for x in ([table, values, rates] if hard else [table, values, rates, keys])]
    expected = naive.exact_values_attention(codes, table, values, assignment=keys, decay=rates, valid=valid)
    scores = table.exp().flatten(0, 1)[codes + torch.arange(B) * W]
    empty = torch.zeros(N, B, W, D // B + 1).double()
    steps = rates.view(1, 1, -1).expand(1, length, -1)
    out, _ = exact_values_attention(scores, keys * valid[:, :, None, None], values.view(N, length, B, -1), steps, empty)
    assert_close_with_gradients(out.flatten(2) * valid.unsqueeze(2), expected, operands)
