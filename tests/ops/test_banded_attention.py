import pytest
import torch

from recbole_lisa.ops import naive
from recbole_lisa.ops.banded_attention import banded_attention, banded_attention_of_one
from tests.helpers import assert_close, assert_close_with_gradients

windows = pytest.mark.parametrize("window", [1, 3, 16, 21, 50])


@windows
@pytest.mark.parametrize("length", [1, 15, 16, 33, 64])
@pytest.mark.parametrize("n_heads", [1, 2])
def test_blocks_equal_all_pairs(window: int, length: int, n_heads: int) -> None:
    operands = [torch.randn(2, length, n_heads, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    operands.append(torch.randn(n_heads, window, dtype=torch.float64, requires_grad=True))
    assert_close_with_gradients(banded_attention(*operands), naive.banded_attention(*operands), operands)


@windows
@pytest.mark.parametrize("length", [1, 15, 40])
def test_one_query_equals_the_last_of_all(window: int, length: int) -> None:
    """Positions before the first of a sequence hold other numbers, which must not count."""
    query, key, value = torch.randn(3, 2, length, 2, 3, dtype=torch.float64)
    bias = torch.randn(2, window, dtype=torch.float64)
    before = torch.full((2, window, 2, 3), 1e3, dtype=torch.float64)
    keys, values = (torch.cat([before, x], dim=1)[:, -window:] for x in (key, value))
    count = torch.full((2,), min(length, window))
    out = banded_attention_of_one(query[:, -1], keys, values, bias, count)
    assert_close(out, naive.banded_attention(query, key, value, bias)[:, -1])


def test_no_pair_of_all_positions_exists() -> None:
    """Memory for 10^5 positions: all pairs would take 40 GB."""
    x = torch.randn(1, 100_000, 1, 2)
    assert banded_attention(x, x, x, torch.zeros(1, 8)).shape == x.shape
