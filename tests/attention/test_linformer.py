from typing import Any

import pytest
import torch

from recbole_lisa.attention import Linformer
from tests.attention.contract import AttentionContract, D
from tests.helpers import assert_close


class TestLinformer(AttentionContract):
    mechanism = "linformer"
    settings = {"n_projected": 12}


def test_identity_projection_is_full_bidirectional_attention() -> None:
    attention = Linformer(hidden_size=D, max_length=9, n_projected=9).double().eval()
    with torch.no_grad():
        attention.key_projection.copy_(torch.eye(9))
        attention.value_projection.copy_(torch.eye(9))
    x = torch.randn(2, 9, D, dtype=torch.float64)
    query, key, value = attention.query(x), attention.key(x), attention.value(x)
    full = torch.softmax(query @ key.transpose(1, 2) / D**0.5, dim=-1) @ value
    assert_close(attention(x, torch.ones(2, 9, dtype=torch.bool)), attention.output(full))


@pytest.mark.oracle
@pytest.mark.parametrize("length", [1, 13, 20])
def test_equals_the_package_linformer_without_padding(length: int) -> None:
    package: Any = pytest.importorskip("linformer")
    ours = Linformer(hidden_size=D, max_length=20, n_projected=7).double()
    theirs = package.LinformerSelfAttention(D, seq_len=20, k=7, heads=1).double()
    with torch.no_grad():
        theirs.proj_k.copy_(ours.key_projection)
        theirs.proj_v.copy_(ours.value_projection)
        for layer, own in (
            (theirs.to_q, ours.query),
            (theirs.to_k, ours.key),
            (theirs.to_v, ours.value),
            (theirs.to_out, ours.output),
        ):
            layer.load_state_dict(own.state_dict())
    x = torch.randn(2, length, D, dtype=torch.float64, requires_grad=True)
    out, expected = ours(x, torch.ones(2, length, dtype=torch.bool)), theirs(x)
    assert_close(out, expected)
    weight = torch.randn_like(out)
    assert_close(*(torch.autograd.grad((y * weight).sum(), x)[0] for y in (out, expected)))
