import math

import pytest
import torch
from torch import Tensor

from recbole_lisa.attention import ClusteredAttention
from recbole_lisa.ops.hamming_kmeans import hamming_kmeans, hash_signs
from tests.attention.contract import AttentionContract, D, ragged
from tests.helpers import assert_close


class TestClustered(AttentionContract):
    mechanism = "clustered"
    settings = {"n_clusters": 3, "n_top_keys": 3}


class TestBidirectionalClustered(AttentionContract):
    mechanism = "clustered"
    settings = {"n_clusters": 3, "n_top_keys": 3, "bidirectional": True}


def build(**settings: object) -> ClusteredAttention:
    return ClusteredAttention(hidden_size=D, **settings).double().eval()


def full_attention(attention: ClusteredAttention, x: Tensor, *, causal: bool) -> Tensor:
    query, key, value = attention.query(x), attention.key(x), attention.value(x)
    logits = query @ key.transpose(1, 2) / math.sqrt(D)
    if causal:
        logits = logits.masked_fill(torch.ones(logits.shape[1:], dtype=torch.bool).triu(1), -torch.inf)
    return attention.output(torch.softmax(logits, dim=-1) @ value)


def clusters_of(attention: ClusteredAttention, x: Tensor) -> Tensor:
    signs = hash_signs(attention.query(x), attention.planes, attention.offsets)
    valid = torch.ones(x.shape[:2], dtype=torch.bool)
    return hamming_kmeans(signs, valid, n_clusters=attention.n_clusters, n_iterations=attention.n_kmeans_iterations)


@pytest.mark.oracle
@pytest.mark.parametrize("n_clusters", [1, 4, 100])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_with_all_keys_on_top_it_is_full_attention(n_clusters: int, bidirectional: bool) -> None:
    attention = build(n_clusters=n_clusters, n_top_keys=40, bidirectional=bidirectional)
    x = torch.randn(2, 33, D, dtype=torch.float64)
    out = attention(x, torch.ones(2, 33, dtype=torch.bool))
    assert_close(out, full_attention(attention, x, causal=not bidirectional))


@pytest.mark.oracle
@pytest.mark.parametrize("n_top_keys", [1, 5])
def test_with_a_cluster_for_each_query_the_bidirectional_form_is_full_attention(n_top_keys: int) -> None:
    attention = build(n_clusters=33, n_top_keys=n_top_keys, bidirectional=True)
    x = torch.randn(2, 33, D, dtype=torch.float64)
    assert len(clusters_of(attention, x)[0].unique()) == 33
    assert_close(attention(x, torch.ones(2, 33, dtype=torch.bool)), full_attention(attention, x, causal=False))


@pytest.mark.oracle
def test_repeated_queries_in_few_clusters_are_full_attention_in_the_bidirectional_form() -> None:
    attention = build(n_clusters=12, n_top_keys=2, bidirectional=True)
    x = torch.randn(2, 36, D, dtype=torch.float64)
    with torch.no_grad():  # queries read the first half of x only, and there are three of them
        attention.query.weight[:, D // 2 :] = 0
    x[..., : D // 2] = torch.randn(3, D // 2, dtype=torch.float64)[torch.arange(36) // 12]
    assert len(clusters_of(attention, x)[0].unique()) == 3
    assert_close(attention(x, torch.ones(2, 36, dtype=torch.bool)), full_attention(attention, x, causal=False))


def test_a_position_whose_top_keys_are_all_later_gets_nothing() -> None:
    attention = build(n_clusters=1, n_top_keys=1)
    x = torch.randn(1, 21, D, dtype=torch.float64)
    query, key, value = attention.query(x)[0], attention.key(x)[0], attention.value(x)
    top = int((key @ query.mean(dim=0)).argmax())
    assert 0 < top < 20, "the case needs positions on both sides"
    out = attention(x, torch.ones(1, 21, dtype=torch.bool))
    nothing = attention.output.bias.expand(1, top, D)
    assert torch.equal(out[:, :top], nothing)
    assert_close(out[:, top:], attention.output(value[:, top]).unsqueeze(1).expand(1, 21 - top, D))


def test_a_row_has_as_many_clusters_and_keys_as_it_has_items() -> None:
    attention = build(n_clusters=30, n_top_keys=30)
    x, valid = torch.randn(4, 40, D, dtype=torch.float64), ragged(4, 40)
    valid[1], valid[1, :2] = False, True
    out = attention(x, valid)
    for n, length in enumerate(valid.sum(dim=1).tolist()):
        alone = attention(x[n : n + 1, :length], valid[n : n + 1, :length])
        assert_close(out[n : n + 1, :length], alone)
        if length <= 30:
            assert_close(alone, full_attention(attention, x[n : n + 1, :length], causal=True))


def test_planes_come_from_the_seed() -> None:
    one, same, other = build(), build(), build(hash_seed=1)
    assert torch.equal(one.planes, same.planes)
    assert torch.equal(one.offsets, same.offsets)
    assert not torch.equal(one.planes, other.planes)
    assert one.planes.shape == (D, 63)
    assert {"planes", "offsets"} <= set(one.state_dict())
