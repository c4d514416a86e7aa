import pytest
import torch
from torch import Tensor

from recbole_lisa.attention import LinearAttention
from recbole_lisa.attention.linear import positive_features
from recbole_lisa.ops import linear_attention as op
from tests.attention.references import D
from tests.helpers import assert_close, assert_close_with_gradients, ragged


def quadratic(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The same attention with its whole (L, L) matrix."""
    weights = (query @ key.transpose(1, 2)).tril()
    return weights @ value / weights.sum(dim=-1, keepdim=True)


@pytest.mark.parametrize("length", [1, 63, 129, 401])
def test_chunks_equal_the_quadratic_form_in_outputs_and_gradients(length: int) -> None:
    leaves = [torch.rand(2, length, 5, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert_close_with_gradients(op.linear_attention(*leaves), quadratic(*leaves), leaves)


def test_module_equals_its_equation_at_once_and_in_steps() -> None:
    attention = LinearAttention(hidden_size=D).double().eval()
    x, valid = torch.randn(3, 70, D, dtype=torch.float64), ragged(3, 70)
    query, key = (positive_features(layer(x)) for layer in (attention.query, attention.key))
    expected = attention.output(quadratic(query, key, attention.value(x)))
    assert_close(attention(x, valid), expected * valid.unsqueeze(-1))
    state = attention.init_state(3)
    for i in range(70):
        out, state = attention.step(state, x[:, i])
        assert_close(out, expected[:, i])
