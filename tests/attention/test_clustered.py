import pytest
import torch
from torch import Tensor

from recbole_lisa.attention import ClusteredAttention
from recbole_lisa.ops.hamming_kmeans import hamming_kmeans, hash_signs
from tests.attention.references import D, causal, masked_attention
from tests.helpers import all_valid, assert_close, ragged


def build(**settings: object) -> ClusteredAttention:
    return ClusteredAttention(hidden_size=D, **settings).double().eval()


def clusters_of(attention: ClusteredAttention, x: Tensor) -> Tensor:
    signs = hash_signs(attention.query(x), attention.planes, attention.offsets)
    settings = {"n_clusters": attention.n_clusters, "n_iterations": attention.n_kmeans_iterations}
    return hamming_kmeans(signs, all_valid(*x.shape[:2]), **settings)


@pytest.mark.oracle
@pytest.mark.parametrize("n_clusters", [1, 4, 100])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_with_all_keys_on_top_it_is_full_attention(n_clusters: int, bidirectional: bool) -> None:
    attention = build(n_clusters=n_clusters, n_top_keys=40, bidirectional=bidirectional)
    x = torch.randn(2, 33, D, dtype=torch.float64)
    expected = masked_attention(attention, x, None if bidirectional else causal(33))
    assert_close(attention(x, all_valid(2, 33)), expected)


@pytest.mark.oracle
@pytest.mark.parametrize(("n_queries", "n_clusters", "n_top_keys"), [(33, 33, 1), (33, 33, 5), (3, 12, 2)])
def test_a_cluster_for_each_distinct_query_is_full_attention(n_queries: int, n_clusters: int, n_top_keys: int) -> None:
    attention = build(n_clusters=n_clusters, n_top_keys=n_top_keys, bidirectional=True)
    x = torch.randn(2, 33, D, dtype=torch.float64)
    with torch.no_grad():  # queries read the first half of x only
        attention.query.weight[:, D // 2 :] = 0
    x[..., : D // 2] = x[0, torch.arange(33) * n_queries // 33, : D // 2]
    assert len(clusters_of(attention, x)[0].unique()) == n_queries
    assert_close(attention(x, all_valid(2, 33)), masked_attention(attention, x))


def test_a_position_whose_top_keys_are_all_later_gets_nothing() -> None:
    attention = build(n_clusters=1, n_top_keys=1)
    x = torch.randn(1, 21, D, dtype=torch.float64)
    query, key, value = attention.query(x)[0], attention.key(x)[0], attention.value(x)
    top = int((key @ query.mean(dim=0)).argmax())
    assert 0 < top < 20, "the case needs positions on both sides"
    out = attention(x, all_valid(1, 21))
    assert torch.equal(out[:, :top], attention.output.bias.expand(1, top, D))
    assert_close(out[:, top:], attention.output(value[:, top]).unsqueeze(1).expand(1, 21 - top, D))


def test_a_row_has_as_many_clusters_and_keys_as_it_has_items() -> None:
    attention = build(n_clusters=30, n_top_keys=30)
    x, valid = torch.randn(4, 40, D, dtype=torch.float64), ragged(4, 40)
    valid[1], valid[1, :2] = False, True
    out = attention(x, valid)
    for n, length in enumerate(valid.sum(dim=1).tolist()):
        row = x[n : n + 1, :length]
        alone = attention(row, all_valid(1, length))
        assert_close(out[n : n + 1, :length], alone)
        if length <= 30:
            assert_close(alone, masked_attention(attention, row, causal(length)))


def test_planes_come_from_the_seed() -> None:
    one, same, other = build(), build(), build(hash_seed=1)
    assert torch.equal(one.planes, same.planes)
    assert torch.equal(one.offsets, same.offsets)
    assert not torch.equal(one.planes, other.planes)
    assert one.planes.shape == (D, 63)
    assert {"planes", "offsets"} <= set(one.state_dict())
