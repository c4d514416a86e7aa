import pytest
import torch

from benchmarks import lisa_reference as naive
from recbole_lisa.ops.lisa.histogram import histogram_step, last_histogram
from tests.helpers import assert_close


@pytest.mark.parametrize("soft", [True, False], ids=["soft", "hard"])
def test_steps_and_last_histogram_equal_the_scan(soft: bool) -> None:
    n, length, b, w, u = 3, 19, 2, 4, 6
    items = torch.randint(u, (n, length))
    codes = torch.randint(w, (u, b))
    table = torch.rand(u, b, w).double() if soft else torch.nn.functional.one_hot(codes, w).double()
    decay = torch.rand(n, length, dtype=torch.float64)
    valid = torch.arange(length) < torch.tensor([[19], [7], [1]])
    scan = naive.decayed_histogram(table[items], decay)
    expected = scan[torch.arange(n), valid.sum(1) - 1]
    last = last_histogram(items, codes, w, assignment=table if soft else None, decay=decay, valid=valid)
    assert_close(last, expected)
    state = torch.zeros(n, b, w, dtype=torch.float64)
    for i in range(length):
        state = histogram_step(state, table[items[:, i]], decay[:, i])
        assert_close(state, scan[:, i])
