import pytest
import torch
from torch.nn.functional import normalize

from recbole_lisa.ops import row_blocks
from recbole_lisa.ops.kmeans import nearest, nearest_points
from recbole_lisa.ops.rotation_hashing import rotation_buckets
from tests.helpers import ragged


@pytest.mark.parametrize("numbers", [1, 50, 2**18])
def test_blocks_choose_as_all_at_once(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "BLOCK_NUMBERS", numbers)
    x, centroids = normalize(torch.randn(3, 21, 5, dtype=torch.float64), dim=-1), torch.randn(7, 5, dtype=torch.float64)
    valid, scores = ragged(3, 21), x @ centroids.t()  # (3, 21, 7)
    assert torch.equal(nearest(x, centroids), scores.argmax(dim=-1))
    members = nearest_points(x, valid, centroids, size=4)
    for n, length in enumerate(valid.sum(dim=1).tolist()):
        for c in range(7):
            best = sorted(range(length), key=lambda i: -float(scores[n, i, c]))[:4]
            assert sorted(members[n, c].tolist()) == sorted(best + [21] * (4 - len(best)))
    rotations = torch.randn(3, 5, 4, dtype=torch.float64)
    bucket = rotation_buckets(x, rotations)
    for r in range(3):
        rotated = x @ rotations[r]
        assert torch.equal(bucket[:, r], torch.cat([rotated, -rotated], dim=-1).argmax(dim=-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64])
def test_largest_is_the_first_of_the_largest_as_argmax(dtype: torch.dtype) -> None:
    scores = torch.randint(-3, 3, (4, 9, 130)).to(dtype)  # with ties
    if dtype.is_floating_point:
        scores[1, 2, 100], scores[2, 3, 5] = torch.nan, torch.inf
    for given in (scores, scores.transpose(0, 2), scores[:0], scores[0, 0]):
        assert torch.equal(row_blocks.largest(given), given.argmax(dim=-1))
