import torch

from recbole_lisa.ops.prefix_sum import sums_before
from tests.helpers import assert_close


def test_sums_before_equal_the_loop() -> None:
    x = torch.randn(2, 7, 3, dtype=torch.float64)
    for u in range(7):
        assert_close(sums_before(x)[:, u], x[:, :u].sum(dim=1))
    assert sums_before(x[:, :0]).shape == (2, 0, 3)


def test_a_large_entry_leaves_nothing_behind_in_the_sums_before_it() -> None:
    x = torch.randn(2, 7, 3)
    before = sums_before(x)
    x[:, 4] = 1e30
    assert torch.equal(sums_before(x)[:, :5], before[:, :5])
