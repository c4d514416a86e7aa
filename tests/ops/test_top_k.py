import pytest
import torch
from torch import Tensor

from recbole_lisa.ops.top_k import Best, best_of_row, merge


def slow_best(scores: Tensor, k: int) -> tuple[list[list[float]], list[list[int]]]:
    """Sort each row by score, then by id."""
    rows = [sorted((-s, i) for i, s in enumerate(row) if s > float("-inf"))[:k] for row in scores.tolist()]
    return [[-s for s, _ in row] for row in rows], [[i for _, i in row] for row in rows]


def in_blocks(scores: Tensor, k: int, size: int) -> Best:
    blocks = []
    for start in range(0, scores.shape[1], size):
        block = scores[:, start : start + size]
        best = best_of_row(block, min(k, block.shape[1]))
        blocks.append(Best(best.scores, best.ids + start))
    return merge(blocks, k)


def assert_best(best: Best, scores: Tensor, k: int) -> None:
    """The same scores and ids as from sorting; what remains of a list has the score -inf."""
    for row, (expected_scores, expected_ids) in enumerate(zip(*slow_best(scores, k), strict=True)):
        n = len(expected_ids)
        assert best.scores[row, :n].tolist() == expected_scores
        assert best.ids[row, :n].tolist() == expected_ids
        assert (best.scores[row, n:] == float("-inf")).all()


@pytest.mark.parametrize("size", [1, 3, 16, 101])
@pytest.mark.parametrize("k", [1, 5, 101, 200])
@pytest.mark.parametrize("levels", [2, 10, 10**6], ids=["many-equal", "some-equal", "distinct"])
def test_blocks_find_the_best_in_order(size: int, k: int, levels: int) -> None:
    scores = torch.randint(levels, (7, 101)).float()
    scores[0] = scores[1, ::2] = float("-inf")
    best = in_blocks(scores, k, size)
    assert best.ids.shape == (7, min(k, 101))
    assert_best(best, scores, k)


@pytest.mark.parametrize("levels", [3, 50, 10**6], ids=["many-equal", "some-equal", "distinct"])
@pytest.mark.parametrize("size", [4097, 9001])
def test_wide_blocks_find_the_best_in_order(size: int, levels: int) -> None:
    scores = torch.randint(levels, (5, 9001)).float()
    scores[1, :8192] = float("-inf")
    scores[2] = float("-inf")
    scores[3] = scores[3].sort().values
    before = scores.clone()
    for given in (scores, scores.t().contiguous().t()):
        assert_best(in_blocks(given, 7, size), before, 7)
    assert torch.equal(scores, before)
