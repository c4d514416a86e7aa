import torch

from recbole_lisa.attention import LinearAttention
from recbole_lisa.attention.linear import positive_features
from recbole_lisa.ops import linear_attention as op
from tests.attention.contract import AttentionContract, D, ragged
from tests.helpers import assert_close


class TestLinear(AttentionContract):
    mechanism = "linear"


def quadratic(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The same attention with its whole (L, L) matrix."""
    weights = (query @ key.transpose(1, 2)).tril()
    return weights @ value / weights.sum(dim=-1, keepdim=True)


def test_chunks_equal_the_quadratic_form_in_outputs_and_gradients() -> None:
    leaves = [torch.rand(2, 150, 5, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    fast, slow = op.linear_attention(*leaves), quadratic(*leaves)
    assert_close(fast, slow)
    for a, b in zip(
        torch.autograd.grad(fast.sin().sum(), leaves), torch.autograd.grad(slow.sin().sum(), leaves), strict=True
    ):
        assert_close(a, b)


def test_module_equals_its_equation() -> None:
    attention = LinearAttention(hidden_size=D).double().eval()
    x, valid = torch.randn(3, 31, D, dtype=torch.float64), ragged(3, 31)
    query, key = (positive_features(layer(x)) for layer in (attention.query, attention.key))
    expected = attention.output(quadratic(query, key, attention.value(x))) * valid.unsqueeze(-1)
    assert_close(attention(x, valid), expected)


def test_steps_equal_the_whole_sequence() -> None:
    attention = LinearAttention(hidden_size=D).double().eval()
    x = torch.randn(2, 70, D, dtype=torch.float64)
    whole = attention(x, torch.ones(2, 70, dtype=torch.bool))
    state = attention.init_state(2)
    for i in range(70):
        out, state = attention.step(state, x[:, i])
        assert_close(out, whole[:, i])
