import pytest
import torch
from pytest import MonkeyPatch
from torch import Tensor
from torch.nn.functional import layer_norm, silu

from recbole_lisa.attention import HSTUAttention, hstu
from tests.attention.references import D, causal
from tests.helpers import all_valid, assert_close_with_gradients, ragged

MOST = 20


def dense(attention: HSTUAttention, x: Tensor) -> Tensor:
    """The equation with its whole (L, L) matrix, one head at a time."""
    gate, value, query, key = silu(attention.input(x)).chunk(4, dim=-1)
    length = x.shape[1]
    distance = (torch.arange(length).unsqueeze(1) - torch.arange(length)).clamp(0, MOST - 1)
    heads = []
    for q, k, v in zip(*(y.chunk(attention.n_heads, dim=-1) for y in (query, key, value)), strict=True):
        weights = silu(q @ k.transpose(1, 2) + attention.distance_bias[distance]) / MOST
        heads.append((weights * causal(length)) @ v)
    normed = layer_norm(torch.cat(heads, dim=-1), (D,), eps=1e-6)
    return attention.output(normed * gate)


@pytest.mark.parametrize("block", [4, 256])
@pytest.mark.parametrize("n_heads", [1, 4])
@pytest.mark.parametrize("length", [1, 13, 35])
def test_module_and_gradients_equal_equations(length: int, n_heads: int, block: int, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(hstu, "BLOCK", block)
    attention = HSTUAttention(hidden_size=D, max_length=MOST, n_heads=n_heads).double()
    x = torch.randn(2, length, D, dtype=torch.float64, requires_grad=True)
    leaves = [x, *attention.parameters()]
    assert_close_with_gradients(attention(x, all_valid(2, length)), dense(attention, x), leaves)
    valid = ragged(2, length)
    last = dense(attention, x)[torch.arange(2), valid.sum(dim=1) - 1]
    assert_close_with_gradients(attention.last(x, valid), last, leaves)
