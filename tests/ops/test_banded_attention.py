import pytest
import torch

from recbole_lisa.ops.banded_attention import banded_attention
from tests.attention import references
from tests.helpers import assert_close_with_gradients

windows = pytest.mark.parametrize("window", [1, 3, 16, 21, 50])


@windows
@pytest.mark.parametrize("length", [1, 15, 16, 33, 64])
@pytest.mark.parametrize("n_heads", [1, 2])
def test_blocks_equal_all_pairs(window: int, length: int, n_heads: int) -> None:
    operands = [torch.randn(2, length, n_heads, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    operands.append(torch.randn(n_heads, window, dtype=torch.float64, requires_grad=True))
    assert_close_with_gradients(banded_attention(*operands), references.banded_attention(*operands), operands)


def test_no_pair_of_all_positions_exists() -> None:
    """Memory for 10^5 positions: all pairs would take 40 GB."""
    x = torch.randn(1, 100_000, 1, 2)
    assert banded_attention(x, x, x, torch.zeros(1, 8)).shape == x.shape
    x = torch.randn(1, 9, 1, 2)
    assert banded_attention(x, x, x, torch.zeros(1, 10**6)).shape == x.shape
