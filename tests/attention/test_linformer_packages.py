"""Our Linformer equals the package linformer on shared weights; it has no mask, so there is no padding."""

from typing import Any

import pytest
import torch

from recbole_lisa.attention import Linformer
from tests.attention.contract import D
from tests.helpers import assert_close


@pytest.mark.oracle
@pytest.mark.parametrize("length", [1, 13, 20])
def test_linformer(length: int) -> None:
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
