from typing import Any

import pytest
import torch

from recbole_lisa.attention import Linformer
from tests.attention.references import D, masked_attention
from tests.helpers import all_valid, assert_close, assert_close_with_gradients


def test_identity_projection_is_full_bidirectional_attention() -> None:
    attention = Linformer(hidden_size=D, max_length=9, n_projected=9).double().eval()
    with torch.no_grad():
        attention.key_projection.copy_(torch.eye(9))
        attention.value_projection.copy_(torch.eye(9))
    x = torch.randn(2, 9, D, dtype=torch.float64)
    assert_close(attention(x, all_valid(2, 9)), masked_attention(attention, x))


@pytest.mark.oracle
@pytest.mark.parametrize("length", [1, 13, 20])
def test_equals_the_package_linformer_without_padding(length: int) -> None:
    package: Any = pytest.importorskip("linformer")
    ours = Linformer(hidden_size=D, max_length=20, n_projected=7).double()
    theirs = package.LinformerSelfAttention(D, seq_len=20, k=7, heads=1).double()
    with torch.no_grad():
        theirs.proj_k.copy_(ours.key_projection)
        theirs.proj_v.copy_(ours.value_projection)
    for layer, own in (("to_q", ours.query), ("to_k", ours.key), ("to_v", ours.value), ("to_out", ours.output)):
        getattr(theirs, layer).load_state_dict(own.state_dict())
    x = torch.randn(2, length, D, dtype=torch.float64, requires_grad=True)
    assert_close_with_gradients(ours(x, all_valid(2, length)), theirs(x), [x])
