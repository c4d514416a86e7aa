import pytest
import torch

from benchmarks.references import hamming_kmeans_loop
from recbole_lisa.ops.hamming_kmeans import hamming_kmeans, hash_signs
from tests.helpers import ragged


def random_signs(*shape: int) -> torch.Tensor:
    return torch.randint(0, 2, shape).float() * 2 - 1


def test_hash_signs_tell_the_side_of_each_plane() -> None:
    planes, offsets = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([0.5, -1.0])
    x = torch.tensor([[[1.0, 0.0], [0.5, -0.5], [0.0, -1.0]]])
    assert hash_signs(x, planes, offsets).tolist() == [[[1, 1], [-1, -1], [-1, -1]]]


@pytest.mark.oracle
@pytest.mark.parametrize("n_iterations", [1, 2, 7])
@pytest.mark.parametrize(("length", "n_bits", "n_clusters"), [(1, 5, 3), (13, 3, 4), (40, 63, 7), (17, 2, 100)])
def test_equals_the_loop_over_vectors(length: int, n_bits: int, n_clusters: int, n_iterations: int) -> None:
    signs, valid = random_signs(4, length, n_bits), ragged(4, length)
    valid[-1] = False
    settings = {"n_clusters": n_clusters, "n_iterations": n_iterations}
    assigned = hamming_kmeans(signs, valid, **settings)
    assert torch.equal(assigned[valid], hamming_kmeans_loop(signs, valid, **settings)[valid])
    assert assigned.min() >= 0
    assert assigned.max() < min(n_clusters, length)


def test_many_clusters_of_many_bits_are_separated_beyond_float32() -> None:
    n_bits, n_clusters = 2**20, 17  # agreement times clusters passes 2**24, where float32 skips whole numbers
    signs = torch.ones(1, n_clusters, n_bits)
    signs[0, torch.arange(n_clusters), torch.arange(n_clusters)] = -1
    valid = torch.ones(1, n_clusters, dtype=torch.bool)
    assigned = hamming_kmeans(signs, valid, n_clusters=n_clusters, n_iterations=1)
    assert torch.equal(assigned[0], torch.arange(n_clusters))
