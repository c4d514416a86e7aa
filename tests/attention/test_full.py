from typing import Any

import pytest
import torch

from recbole_lisa.attention import FullAttention
from recbole_lisa.ops import naive
from tests.attention.references import D
from tests.helpers import all_valid, assert_close, assert_close_with_gradients, ragged


@pytest.mark.oracle
def test_equals_explicit_causal_softmax() -> None:
    attention = FullAttention(hidden_size=D).double().eval()
    x, valid = torch.randn(3, 31, D, dtype=torch.float64), ragged(3, 31)
    explicit = naive.causal_softmax_attention(attention.query(x), attention.key(x), attention.value(x))
    assert_close(attention(x, valid), attention.output(explicit) * valid.unsqueeze(-1))


def test_dropout_on_weights_acts_in_training_only() -> None:
    attention = FullAttention(hidden_size=D, dropout=0.5)
    x, valid = torch.randn(2, 9, D), ragged(2, 9)
    assert not torch.equal(attention(x, valid), attention(x, valid))
    attention.eval()
    assert torch.equal(attention(x, valid), attention(x, valid))


@pytest.mark.oracle
@pytest.mark.parametrize("n_heads", [1, 4])
def test_equals_the_attention_of_gpt2_in_transformers(n_heads: int) -> None:
    package: Any = pytest.importorskip("transformers.models.gpt2.modeling_gpt2")
    config = package.GPT2Config(n_embd=D, n_head=n_heads, attn_pdrop=0.0, resid_pdrop=0.0)
    config._attn_implementation = "sdpa"
    ours, theirs = FullAttention(hidden_size=D, n_heads=n_heads).double(), package.GPT2Attention(config).double()
    layers = (ours.query, ours.key, ours.value)
    with torch.no_grad():  # their layers hold the transposed weight
        theirs.c_attn.weight.copy_(torch.cat([layer.weight.t() for layer in layers], dim=1))
        theirs.c_attn.bias.copy_(torch.cat([layer.bias for layer in layers]))
        theirs.c_proj.weight.copy_(ours.output.weight.t())
        theirs.c_proj.bias.copy_(ours.output.bias)
    x = torch.randn(2, 23, D, dtype=torch.float64, requires_grad=True)
    assert_close_with_gradients(ours(x, all_valid(2, 23)), theirs(x)[0], [x])
