"""Our published routing equals the public package on shared weights and centroids, without padding."""

from typing import Any

import pytest
import torch

from recbole_lisa.attention import RoutingAttention
from tests.attention.contract import D
from tests.helpers import assert_close

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize(("length", "window"), [(48, 6), (45, 7), (5, 8)])
def test_routing_transformer(length: int, window: int) -> None:
    package: Any = pytest.importorskip("routing_transformer.routing_transformer")
    attention = RoutingAttention(hidden_size=D, max_length=48, window_size=window, causality="published")
    attention = attention.double().eval()
    n_clusters = len(attention.centroids)
    theirs = package.KmeansAttention(n_clusters, window, 1, D, causal=True, shared_qk=True).double().eval()
    theirs.kmeans.means.copy_(attention.centroids.unsqueeze(0))
    theirs.kmeans.initted.fill_(True)
    x = torch.randn(2, length, D, dtype=torch.float64, requires_grad=True)
    valid = torch.ones(2, length, dtype=torch.bool)
    query, value = attention.query_key(x).unsqueeze(1), attention.value(x).unsqueeze(1)  # (N, 1, L, D)
    out, loss = theirs(query, query, value)
    expected, ours = attention.output(out.squeeze(1)), attention(x, valid)
    assert_close(ours, expected)
    weight = torch.randn_like(ours)
    assert_close(*(torch.autograd.grad((y * weight).sum(), x, retain_graph=True)[0] for y in (ours, expected)))
    assert_close(attention.commitment(x, valid) * theirs.kmeans.commitment, loss)


def test_the_average_of_the_centroids_moves_as_in_the_package() -> None:
    package: Any = pytest.importorskip("routing_transformer.routing_transformer")
    attention = RoutingAttention(hidden_size=D, max_length=48, window_size=8).double().train()
    attention.centroids_are_set.fill_(True)
    theirs = package.Kmeans(1, D, len(attention.centroids)).double()
    theirs.means.copy_(attention.centroids.unsqueeze(0))
    theirs.initted.fill_(True)
    x = torch.randn(2, 48, D, dtype=torch.float64)
    theirs(attention.query_key(x).unsqueeze(1), update_means=True)
    theirs.update()
    attention(x, torch.ones(2, 48, dtype=torch.bool))
    assert_close(attention.centroids, theirs.means.squeeze(0))
