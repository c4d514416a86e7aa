from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benchmarks.references import clustered_attention_loop
from recbole_lisa.ops import clustered_attention
from recbole_lisa.ops.clustered_attention import cluster_means, group_queries
from tests.helpers import assert_close_with_gradients, ragged

FORMS = {
    "causal": clustered_attention.causal_clustered_attention,
    "bidirectional": clustered_attention.bidirectional_clustered_attention,
}
every_form = pytest.mark.parametrize("form", FORMS)


def attend(attention: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, cluster: Tensor, valid: Tensor) -> Tensor:
    n_clusters = int(cluster.max()) + 1
    centroid = cluster_means(q, cluster, valid, n_clusters)
    return attention(q, k, v, centroid, valid, group_queries(cluster, n_clusters), n_top=4) * valid.unsqueeze(-1)


@pytest.mark.oracle
@every_form
@pytest.mark.parametrize(
    ("length", "n_clusters"), [(1, 1), (1, 5), (7, 3), (5, 9), (17, 1), (50, 2), (37, 37), (70, 5)]
)
@pytest.mark.parametrize("dense_length", [0, 512], ids=["gathered", "masked"])
def test_outputs_and_gradients_equal_the_loop(
    form: str, length: int, n_clusters: int, dense_length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clustered_attention, "DENSE_LENGTH", dense_length)
    inputs = [torch.randn(3, length, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    cluster, valid = torch.randint(n_clusters, (3, length)), ragged(3, length)
    fast = attend(FORMS[form], *inputs, cluster, valid)
    slow = clustered_attention_loop(*inputs, cluster, valid, n_top=4, causal=form == "causal")
    assert_close_with_gradients(fast, slow, inputs)


@every_form
@pytest.mark.parametrize("dense_length", [0, 512], ids=["gathered", "masked"])
def test_a_row_of_padding_is_finite(form: str, dense_length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustered_attention, "DENSE_LENGTH", dense_length)
    inputs = [torch.randn(2, 9, 8, requires_grad=True) for _ in range(3)]
    valid = torch.zeros(2, 9, dtype=torch.bool)
    valid[0, :5] = True
    out = attend(FORMS[form], *inputs, torch.randint(3, (2, 9)), valid)
    grads = torch.autograd.grad(out.sum(), inputs)
    assert all(torch.isfinite(x).all() for x in (out, *grads))


def test_cluster_means_leave_padding_out_and_are_zero_without_members() -> None:
    x = torch.arange(8.0).view(1, 4, 2)
    valid = torch.tensor([[True, True, True, False]])
    means = cluster_means(x, torch.tensor([[0, 2, 0, 2]]), valid, 3)
    assert means.tolist() == [[[2.0, 3.0], [0.0, 0.0], [2.0, 3.0]]]
