"""Our Sinkhorn attention equals sinkhorn-transformer on shared weights, where that is right: a head it does not rotate.

The package rotates the second half of the heads by a bucket less one; of one head, that one. So it is built with two
heads, of which the first has our weights and the second does not reach the output.
"""

from typing import Any

import pytest
import torch

from recbole_lisa.attention import SinkhornAttention
from tests.attention.contract import D
from tests.helpers import assert_close

pytestmark = pytest.mark.oracle
BUCKET, LONGEST = 6, 48


def package_with_our_weights(ours: SinkhornAttention) -> torch.nn.Module:
    package: Any = pytest.importorskip("sinkhorn_transformer.sinkhorn_transformer")
    theirs = package.SinkhornSelfAttention(
        D,
        bucket_size=BUCKET,
        max_seq_len=LONGEST,
        heads=2,
        dim_head=D,
        causal=True,
        use_simple_sort_net=True,
        n_top_buckets=ours.n_top_buckets,
        temperature=ours.temperature,
    ).double()
    inner = theirs.sinkhorn_attention
    with torch.no_grad():
        theirs.to_q.weight[:D] = ours.query.weight
        theirs.to_kv.weight[:D] = ours.key.weight
        theirs.to_kv.weight[2 * D : 3 * D] = ours.value.weight
        theirs.to_out.weight[:, :D] = ours.output.weight
        theirs.to_out.weight[:, D:] = 0
        theirs.to_out.bias.copy_(ours.output.bias)
        inner.null_keys[0] = ours.null_key
        inner.null_values[0] = ours.null_value
        inner.sort_net.linear[0, 0] = ours.sort_weight
    return theirs.eval()


@pytest.mark.parametrize("n_top_buckets", [1, 2])
@pytest.mark.parametrize("length", [12, 48])
def test_sinkhorn_transformer(n_top_buckets: int, length: int) -> None:
    ours = SinkhornAttention(
        hidden_size=D, max_length=LONGEST, bucket_size=BUCKET, n_top_buckets=n_top_buckets
    ).double()
    theirs = package_with_our_weights(ours)
    x = torch.randn(3, length, D, dtype=torch.float64, requires_grad=True)
    out, expected = ours(x, torch.ones(3, length, dtype=torch.bool)), theirs(x)
    assert_close(out, expected)
    weight = torch.randn_like(out)
    inner = theirs.sinkhorn_attention
    grads, expected_grads = (
        torch.autograd.grad((y * weight).sum(), [x, *parameters])
        for y, parameters in (
            (out, [ours.sort_weight, ours.null_key, ours.null_value]),
            (expected, [inner.sort_net.linear, inner.null_keys, inner.null_values]),
        )
    )
    assert_close(grads[0], expected_grads[0])
    assert_close(grads[1], expected_grads[1][0, 0])
    for grad, expected_grad in zip(grads[2:], expected_grads[2:], strict=True):
        assert_close(grad, expected_grad[0, 0])
