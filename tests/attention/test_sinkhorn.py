import math
from typing import Any

import pytest
import torch
from torch import Tensor

from recbole_lisa.attention import SinkhornAttention
from tests.attention.references import D
from tests.helpers import all_valid, assert_close, assert_close_with_gradients

BUCKET, N_BUCKETS = 5, 4


def build(**settings: object) -> SinkhornAttention:
    sizes = {"hidden_size": D, "max_length": BUCKET * N_BUCKETS, "bucket_size": BUCKET}
    return SinkhornAttention(**{**sizes, **settings}).double().eval()


@pytest.mark.oracle
@pytest.mark.parametrize("n_top_buckets", [1, 2, 3])
@pytest.mark.parametrize("length", [1, 3, 5, 18])
def test_equals_the_loop_over_positions(n_top_buckets: int, length: int) -> None:
    attention = build(n_top_buckets=n_top_buckets)
    x = torch.randn(2, length, D, dtype=torch.float64, requires_grad=True)
    slow = torch.stack([loop(attention, row) for row in x])
    assert_close_with_gradients(attention(x, all_valid(2, length)), slow, [x, *attention.parameters()])


def loop(attention: SinkhornAttention, x: Tensor) -> Tensor:
    """The formula of the class, one position at a time: x (L, D)."""
    query, key, value = attention.query(x), attention.key(x), attention.value(x)
    n_top, out = attention.n_top_buckets, []
    for i in range(len(x)):
        first = i // BUCKET * BUCKET
        column_scores = torch.cat([key[: first + 1].mean(dim=0), key[first]]) @ attention.sort_weight
        scores = {c: torch.nn.functional.leaky_relu(column_scores[c]) for c in range(n_top + i // BUCKET)}
        seen_keys, seen_values = [key[first : i + 1]], [value[first : i + 1]]
        for _ in range(n_top):
            left = torch.stack(list(scores.values())) / attention.temperature
            probability, best = torch.softmax(left, dim=0).max(dim=0)
            column = list(scores)[int(best)]
            del scores[column]
            past = slice((column - n_top) * BUCKET, (column - n_top + 1) * BUCKET)
            null = column < n_top
            seen_keys.append(probability * (attention.null_key.expand(BUCKET, D) if null else key[past]))
            seen_values.append(probability * (attention.null_value.expand(BUCKET, D) if null else value[past]))
        weights = torch.softmax(torch.cat(seen_keys) @ query[i] / math.sqrt(D), dim=0)
        out.append(weights @ torch.cat(seen_values))
    return attention.output(torch.stack(out))


def package_with_our_weights(ours: SinkhornAttention) -> torch.nn.Module:
    """The package rotates the second half of the heads: its first head has our weights, its second no output."""
    package: Any = pytest.importorskip("sinkhorn_transformer.sinkhorn_transformer")
    settings = {"n_top_buckets": ours.n_top_buckets, "temperature": ours.temperature, "use_simple_sort_net": True}
    sizes = {"bucket_size": BUCKET, "max_seq_len": BUCKET * N_BUCKETS, "heads": 2, "dim_head": D}
    theirs = package.SinkhornSelfAttention(D, causal=True, **sizes, **settings).double()
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


@pytest.mark.oracle
@pytest.mark.parametrize("n_top_buckets", [1, 2])
@pytest.mark.parametrize("length", [10, 20])
def test_equals_the_package_sinkhorn_transformer(n_top_buckets: int, length: int) -> None:
    ours = build(n_top_buckets=n_top_buckets)
    theirs = package_with_our_weights(ours)
    x = torch.randn(3, length, D, dtype=torch.float64, requires_grad=True)
    out, expected = ours(x, all_valid(3, length)), theirs(x)
    assert_close_with_gradients(out, expected, [x])
    for y in (out, expected):
        y.sin().sum().backward()
    inner = theirs.sinkhorn_attention
    for own, package in (
        (ours.sort_weight, inner.sort_net.linear),
        (ours.null_key, inner.null_keys),
        (ours.null_value, inner.null_values),
    ):
        assert_close(own.grad, package.grad[0, 0])
