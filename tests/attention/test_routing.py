import concurrent.futures
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from recbole_lisa.attention import RoutingAttention
from recbole_lisa.distributed.processes import sum_in_place
from tests.attention.references import D, shared_attention
from tests.helpers import all_valid, assert_close, assert_close_with_gradients, ragged


def build(**settings: object) -> RoutingAttention:
    return RoutingAttention(**{"hidden_size": D, "max_length": 30, "window_size": 6, **settings})


@pytest.mark.oracle
@pytest.mark.parametrize("causality", ["strict", "published"])
def test_one_cluster_is_full_attention(causality: str) -> None:
    attention = build(window_size=30, causality=causality).double()
    assert len(attention.centroids) == 1
    x = torch.randn(2, 23, D, dtype=torch.float64)
    out = attention(x, all_valid(2, 23)) - attention.output.bias
    scale = 1 + 1e-5 if causality == "published" else 1
    assert_close(out * scale, shared_attention(attention, x) - attention.output.bias)


def test_centroids_move_in_training_only_and_after_use() -> None:
    attention = build(centroid_decay=0.75)
    x, valid = torch.randn(3, 30, D), ragged(3, 30)
    first = attention.centroids.clone()
    before = attention.eval()(x, valid)
    assert torch.equal(attention.centroids, first)
    assert_close(attention.train()(x, valid), before)
    assert attention.centroids_are_set
    set_by_first_batch = attention.centroids.clone()
    assert not torch.equal(set_by_first_batch, first)
    attention(x, valid)
    keys = normalize(attention.query_key(x), dim=-1)[valid]
    cluster = (keys @ set_by_first_batch.t()).argmax(dim=1)
    means = set_by_first_batch.clone()
    for c in cluster.unique():
        means[c] = normalize(keys[cluster == c].sum(dim=0), dim=0)
    assert_close(attention.centroids, 0.75 * set_by_first_batch + 0.25 * means)


def test_a_training_batch_of_padding_keeps_the_centroids() -> None:
    attention = build().train()
    before = attention.centroids.clone()
    x, valid = torch.randn(2, 4, D), torch.zeros(2, 4, dtype=torch.bool)
    attention(x, valid)
    assert torch.equal(attention.centroids, before)
    assert not attention.centroids_are_set
    assert attention.commitment(x, valid) == 0
    attention(x, torch.ones_like(valid))  # the first batch with something in it sets them by k-means
    assert attention.centroids_are_set
    assert_close(attention.centroids.norm(dim=1), torch.ones(len(attention.centroids)))


def centroids_of_process(rank: int, meeting: str) -> list[Tensor]:
    """Three batches in one of two processes: padding in both; padding in rank 0 only; items in both."""
    meet = {"init_method": f"file://{meeting}", "timeout": timedelta(seconds=100)}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2, **meet)
    torch.manual_seed(5)
    attention, x = build().train(), torch.randn(2, 20, D)
    attention.sum_over_processes = sum_in_place
    items = all_valid(2, 20)
    centroids = []
    for valid in (~items, items if rank else ~items, items):
        attention(x, valid)
        centroids.append(attention.centroids.clone())
    torch.distributed.destroy_process_group()
    return centroids


def test_a_process_without_points_has_the_same_centroids(tmp_path: Path) -> None:
    meeting = str(tmp_path / "meeting")
    with concurrent.futures.ProcessPoolExecutor(1, torch.multiprocessing.get_context("spawn")) as pool:
        other = pool.submit(centroids_of_process, 0, meeting)
        ours = centroids_of_process(1, meeting)
        theirs = other.result()
    for one, same in zip(ours, theirs, strict=True):
        assert torch.equal(one, same)
    torch.manual_seed(5)
    alone = build().train()
    assert torch.equal(ours[0], alone.centroids)
    alone(torch.randn(2, 20, D), all_valid(2, 20))
    assert_close(ours[1], alone.centroids)


def test_k_means_finds_separate_directions() -> None:
    attention = build(window_size=10).train()
    torch.nn.init.eye_(attention.query_key.weight)
    directions = torch.eye(D)[:3]
    x = directions[torch.arange(30) % 3].expand(2, 30, D) + 0.01 * torch.randn(2, 30, D)
    attention(x, all_valid(2, 30))
    assert ((attention.centroids @ directions.t()).amax(dim=0) > 0.99).all()
    assert attention.commitment(x, all_valid(2, 30)) < 1e-3


def test_commitment_pulls_keys_to_their_centroids() -> None:
    attention = build()
    x, valid = torch.randn(2, 20, D), ragged(2, 20)
    keys = normalize(attention.query_key(x), dim=-1)[valid]
    nearest = attention.centroids[(keys @ attention.centroids.t()).argmax(dim=1)]
    loss = attention.commitment(x, valid)
    assert_close(loss, (keys - nearest).square().mean())
    loss.backward()
    assert attention.query_key.weight.grad.abs().sum() > 0


@pytest.mark.oracle
@pytest.mark.parametrize(("length", "window"), [(48, 6), (45, 7), (5, 8)])
def test_the_published_form_equals_the_package_routing_transformer(length: int, window: int) -> None:
    package: Any = pytest.importorskip("routing_transformer.routing_transformer")
    attention = RoutingAttention(hidden_size=D, max_length=48, window_size=window, causality="published")
    attention = attention.double().eval()
    n_clusters = len(attention.centroids)
    theirs = package.KmeansAttention(n_clusters, window, 1, D, causal=True, shared_qk=True).double().eval()
    theirs.kmeans.means.copy_(attention.centroids.unsqueeze(0))
    theirs.kmeans.initted.fill_(True)
    x = torch.randn(2, length, D, dtype=torch.float64, requires_grad=True)
    valid = all_valid(2, length)
    query, value = attention.query_key(x).unsqueeze(1), attention.value(x).unsqueeze(1)  # (N, 1, L, D)
    out, loss = theirs(query, query, value)
    assert_close_with_gradients(attention(x, valid), attention.output(out.squeeze(1)), [x])
    assert_close(attention.commitment(x, valid) * theirs.kmeans.commitment, loss)


@pytest.mark.oracle
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
    attention(x, all_valid(2, 48))
    assert_close(attention.centroids, theirs.means.squeeze(0))
