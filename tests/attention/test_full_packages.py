"""Our full attention equals the attention of GPT-2 in transformers on shared weights."""

from typing import Any

import pytest
import torch

from recbole_lisa.attention import FullAttention
from tests.attention.contract import D
from tests.helpers import assert_close


@pytest.mark.oracle
@pytest.mark.parametrize("n_heads", [1, 4])
def test_gpt2(n_heads: int) -> None:
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
    out, expected = ours(x, torch.ones(2, 23, dtype=torch.bool)), theirs(x)[0]
    assert_close(out, expected)
    weight = torch.randn_like(out)
    assert_close(*(torch.autograd.grad((y * weight).sum(), x)[0] for y in (out, expected)))
