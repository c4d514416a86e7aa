import pytest
import torch
from torch import Tensor

from recbole_lisa.ops.top_k import COLUMNS_TO_FILL, Best, add_block, best_of_row, nothing_yet


def slow_best(scores: Tensor, k: int) -> tuple[list[list[float]], list[list[int]]]:
    """Sort each row by score, then by id."""
    rows = [sorted((-s, i) for i, s in enumerate(row) if s > float("-inf"))[:k] for row in scores.tolist()]
    return [[-s for s, _ in row] for row in rows], [[i for _, i in row] for row in rows]


def in_blocks(scores: Tensor, k: int, size: int) -> Best:
    best = nothing_yet(len(scores), k, scores)
    for start in range(0, scores.shape[1], size):
        best = add_block(best, scores[:, start : start + size], start)
    return best


@pytest.mark.parametrize("size", [1, 3, 16, 101])
@pytest.mark.parametrize("k", [1, 5, 101, 200])
@pytest.mark.parametrize("levels", [2, 10, 10**6], ids=["many-equal", "some-equal", "distinct"])
def test_blocks_find_the_best_in_order(size: int, k: int, levels: int) -> None:
    scores = torch.randint(levels, (7, 101)).float()
    best = in_blocks(scores, k, size)
    expected_scores, expected_ids = slow_best(scores, k)
    found = min(k, 101)
    assert best.scores[:, :found].tolist() == expected_scores
    assert best.ids[:, :found].tolist() == expected_ids
    assert (best.ids[:, found:] == -1).all()


@pytest.mark.parametrize("levels", [3, 50, 10**6], ids=["many-equal", "some-equal", "distinct"])
@pytest.mark.parametrize("size", [4097, 9001])
def test_wide_blocks_are_looked_at_in_chunks(size: int, levels: int) -> None:
    scores = torch.randint(levels, (5, 9001)).float()
    scores[1, : 2 * COLUMNS_TO_FILL] = float("-inf")  # its list fills late
    scores[2] = float("-inf")  # and this one never
    scores[3] = scores[3].sort().values  # every chunk has better ones
    k = 7
    for given in (scores, scores.t().contiguous().t()):
        best = in_blocks(given, k, size)
        expected = slow_best(scores, k)
        for row in (0, 1, 3, 4):
            assert best.scores[row].tolist() == expected[0][row]
            assert best.ids[row].tolist() == expected[1][row]
        assert (best.ids[2] == -1).all()


def test_items_left_out_are_never_found() -> None:
    scores = torch.randn(4, 33)
    scores[0] = float("-inf")
    scores[1, ::2] = float("-inf")
    best = in_blocks(scores, 20, 8)
    assert (best.ids[0] == -1).all()
    assert best.ids[1, :16].tolist() == slow_best(scores, 20)[1][1]
    assert (best.ids[1, 16:] == -1).all()
    assert (best.scores[1, 16:] == float("-inf")).all()


def test_a_strided_view_serves_and_nothing_is_edited() -> None:
    scores = torch.randn(33, 4)
    before = scores.clone()
    best = best_of_row(scores.t(), 5)
    assert best.ids.tolist() == slow_best(scores.t(), 5)[1]
    assert torch.equal(scores, before)
