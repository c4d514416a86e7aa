import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks import references
from recbole_lisa.ops import sorted_window
from recbole_lisa.ops.balanced_clusters import balanced_cluster_attention
from recbole_lisa.ops.kmeans import nearest_points
from recbole_lisa.ops.sorted_window import bucket_attention, bucket_attention_last, chunked_round_attention
from tests.helpers import assert_close, assert_close_with_gradients, ragged

D = 5
SHAPES = [(1, 1, 1), (3, 7, 2), (2, 33, 4), (2, 63, 100)]
every_shape = pytest.mark.parametrize(("n", "length", "window"), SHAPES)
one_and_three_rounds = pytest.mark.parametrize("n_rounds", [1, 3])


@pytest.fixture(params=[1, sorted_window.BLOCK_LOGITS], ids=["row-by-row", "at-once"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sequences of a batch one after the other, and together."""
    monkeypatch.setattr(sorted_window, "BLOCK_LOGITS", request.param)


def operands(n: int, length: int) -> list[Tensor]:
    """Query, unit key and value in float64, all asking for gradients."""
    query, key, value = (torch.randn(n, length, D, dtype=torch.float64) for _ in range(3))
    return [x.requires_grad_() for x in (query, normalize(key, dim=-1), value)]


@pytest.mark.usefixtures("blocks")
@pytest.mark.oracle
@every_shape
@one_and_three_rounds
def test_buckets_equal_the_quadratic_reference(n: int, length: int, window: int, n_rounds: int) -> None:
    inputs, bucket = operands(n, length), torch.randint(3, (n, n_rounds, length))
    ours = bucket_attention(*inputs, bucket, window=window)
    reference = references.bucket_attention_quadratic(*inputs, bucket, window=window)
    assert_close_with_gradients(ours, reference, inputs)


@every_shape
@one_and_three_rounds
def test_one_position_equals_all_positions_there(n: int, length: int, window: int, n_rounds: int) -> None:
    (query, key, value), bucket = operands(n, length), torch.randint(3, (n, n_rounds, length))
    final, rows = ragged(n, length).sum(dim=1) - 1, torch.arange(n)
    everywhere = bucket_attention(query, key, value, bucket, window=window)
    there = bucket_attention_last(query[rows, final], key, value, bucket, final, window=window)
    assert_close(there, everywhere[rows, final])


@pytest.mark.usefixtures("blocks")
@pytest.mark.oracle
@every_shape
@one_and_three_rounds
def test_chunked_rounds_equal_the_loop(n: int, length: int, window: int, n_rounds: int) -> None:
    inputs, valid = operands(n, length), ragged(n, length)
    lengths = valid.sum(dim=1)
    bucket = torch.randint(3, (n, n_rounds, length)).masked_fill(~valid.unsqueeze(1), 3)
    ours = chunked_round_attention(*inputs, bucket, lengths, window=window) * valid.unsqueeze(-1)
    reference = references.chunked_rounds_loop(*inputs, bucket, lengths, window=window)
    assert_close_with_gradients(ours, reference, inputs)


@pytest.mark.oracle
@every_shape
def test_balanced_clusters_equal_the_loop(n: int, length: int, window: int) -> None:
    inputs, valid = operands(n, length), ragged(n, length)
    points, centroids = inputs[1].detach(), torch.randn(4, D, dtype=torch.float64)
    ours = balanced_cluster_attention(*inputs, nearest_points(points, valid, centroids, size=window))
    reference = references.balanced_clusters_loop(*inputs, points @ centroids.t(), valid, window=window)
    assert_close_with_gradients(ours, reference, inputs)
