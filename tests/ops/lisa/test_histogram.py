import math

import pytest
import torch

from recbole_lisa.ops.lisa import naive
from recbole_lisa.ops.lisa.histogram import block_decay, histogram_step, last_histogram, scan_block, scan_block_backward
from tests.helpers import assert_close


def test_block_decay_holds_products_of_decays() -> None:
    decay = torch.tensor([[0.5, 1.0, 2.0, 4.0]], dtype=torch.float64)
    got = block_decay(decay, 2, 2, torch.float64)
    wanted = {
        "fade": [[-0.5, -1.5], [-2.0, -6.0]],
        "rise": [[-1.0, 0.0], [-4.0, 0.0]],
        "chunks": [[0.0, -math.inf], [-6.0, 0.0]],
        "before": [[-1.5], [-7.5]],
    }
    for name, exponents in wanted.items():
        expected = torch.tensor([exponents], dtype=torch.float64).exp()
        assert_close(getattr(got, name).view_as(expected), expected)


def test_huge_gaps_forget_without_losing_later_small_ones() -> None:
    decay = torch.tensor([[0.1, 1e9, 0.1, 0.1]], dtype=torch.float64)
    got = block_decay(decay, 1, 4, torch.float32)
    assert_close(got.fade.flatten(), torch.tensor([math.exp(-0.1), 0.0, 0.0, 0.0]))
    assert_close(got.rise.flatten(), torch.tensor([0.0, math.exp(-0.2), math.exp(-0.1), 1.0]))
    assert_close(torch.cat(list(got.steps)).flatten(), torch.tensor([math.exp(-0.1), 0.0, *[math.exp(-0.1)] * 2]))


BLOCKS = [(1, 5), (1, 1), (3, 5), (2, 1)]


@pytest.mark.oracle
@pytest.mark.parametrize("shared", [True, False], ids=["one_decay", "decay_per_step"])
def test_blocks_with_a_carry_equal_the_step_by_step_scan(shared: bool) -> None:
    n, b, w = 3, 2, 4
    length = sum(n_chunks * n_steps for n_chunks, n_steps in BLOCKS)
    keys = torch.rand(n, length, b, w, dtype=torch.float64)
    decay = torch.tensor(0.3, dtype=torch.float64) if shared else torch.rand(n, length).double()
    expected = naive.decayed_histogram(keys, decay.expand(n, length))
    carry = torch.zeros(n, b * w, dtype=torch.float64)
    start = 0
    for n_chunks, n_steps in BLOCKS:
        steps = slice(start, start + n_chunks * n_steps)
        factors = block_decay(decay if shared else decay[:, steps], n_chunks, n_steps, torch.float64)
        block = keys[:, steps].flatten(2).contiguous()
        carry = scan_block(block, carry, factors)
        assert_close(block.view(n, -1, b, w), expected[:, steps])
        assert_close(carry, block[:, -1])
        start = steps.stop


@pytest.mark.oracle
@pytest.mark.parametrize(("n_chunks", "n_steps"), [(1, 7), (3, 4), (5, 1)])
@pytest.mark.parametrize("shared", [True, False], ids=["one_decay", "decay_per_step"])
def test_backward_scan_equals_autograd(shared: bool, n_chunks: int, n_steps: int) -> None:
    n, length, columns = 2, n_chunks * n_steps, 6
    keys = torch.rand(n, length, columns, dtype=torch.float64, requires_grad=True)
    carry = torch.rand(n, columns, dtype=torch.float64, requires_grad=True)
    decay = torch.tensor(0.3, dtype=torch.float64) if shared else torch.rand(n, length).double()
    grad, later = torch.randn(n, length, columns).double(), torch.randn(n, columns).double()
    first = torch.exp(-decay.expand(n, length)[:, :1, None]) * carry.unsqueeze(1)
    steps = torch.cat([keys[:, :1] + first, keys[:, 1:]], dim=1)
    out = naive.decayed_histogram(steps.unsqueeze(2), decay.expand(n, length)).squeeze(2)
    expected = torch.autograd.grad((out * grad).sum() + (out[:, -1] * later).sum(), (keys, carry))
    carry_grad = scan_block_backward(grad, later, block_decay(decay, n_chunks, n_steps, torch.float64))
    for actual, wanted in zip((grad, carry_grad), expected, strict=True):
        assert_close(actual, wanted)


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
