import math

import pytest
import torch

from recbole_lisa.ops import reference
from recbole_lisa.ops.histogram import decay_matrix, histogram_step, last_histogram, scan_block, scan_block_backward
from tests.helpers import assert_close


def test_decay_matrix_holds_products_of_decays() -> None:
    decay = torch.tensor([[0.5, 1.0, 2.0]], dtype=torch.float64)
    expected = [
        [math.exp(-0.5), 1, 0, 0],
        [math.exp(-1.5), math.exp(-1.0), 1, 0],
        [math.exp(-3.5), math.exp(-3.0), math.exp(-2.0), 1],
    ]
    assert_close(decay_matrix(decay, torch.float64)[0], torch.tensor(expected, dtype=torch.float64))


def test_huge_gaps_forget_without_losing_later_small_ones() -> None:
    decay = torch.tensor([[0.1, 1e9, 0.1, 0.1]], dtype=torch.float64)
    weights = decay_matrix(decay, torch.float32)[0]
    assert torch.isfinite(weights).all()
    assert weights[3, 0] == 0
    assert weights[3, 1] == 0
    assert_close(weights[3, 2:], torch.tensor([math.exp(-0.2), math.exp(-0.1), 1.0]))


@pytest.mark.oracle
@pytest.mark.parametrize("shared", [True, False], ids=["one_decay", "decay_per_step"])
def test_blocks_with_a_carry_equal_the_step_by_step_scan(shared: bool) -> None:
    n, length, b, w = 3, 23, 2, 4
    keys = torch.rand(n, length, b, w, dtype=torch.float64)
    decay = torch.full((1, length), 0.3, dtype=torch.float64) if shared else torch.rand(n, length).double()
    expected = reference.decayed_histogram(keys, decay.expand(n, length))
    carry = torch.zeros(n, b * w, dtype=torch.float64)
    for steps in (slice(0, 5), slice(5, 6), slice(6, 23)):
        weights = decay_matrix(decay[:, steps], torch.float64)
        block = scan_block(keys[:, steps].flatten(2), carry, weights)
        assert_close(block.view(n, -1, b, w), expected[:, steps])
        carry = block[:, -1]


@pytest.mark.oracle
def test_backward_scan_equals_autograd() -> None:
    keys = torch.rand(2, 7, 6, dtype=torch.float64, requires_grad=True)
    carry = torch.rand(2, 6, dtype=torch.float64, requires_grad=True)
    weights = decay_matrix(torch.rand(2, 7).double(), torch.float64)
    grad, later = torch.randn(2, 7, 6).double(), torch.randn(2, 6).double()
    out = weights[:, :, 1:] @ keys + weights[:, :, :1] * carry.unsqueeze(1)
    expected = torch.autograd.grad((out * grad).sum() + (out[:, -1] * later).sum(), (keys, carry))
    for actual, wanted in zip(scan_block_backward(grad.clone(), later, weights), expected, strict=True):
        assert_close(actual, wanted)


@pytest.mark.parametrize("soft", [True, False], ids=["soft", "hard"])
def test_steps_and_last_histogram_equal_the_scan(soft: bool) -> None:
    n, length, b, w, u = 3, 19, 2, 4, 6
    items = torch.randint(u, (n, length))
    codes = torch.randint(w, (u, b))
    table = torch.rand(u, b, w).double() if soft else torch.nn.functional.one_hot(codes, w).double()
    decay = torch.rand(n, length, dtype=torch.float64)
    valid = torch.arange(length) < torch.tensor([[19], [7], [1]])
    scan = reference.decayed_histogram(table[items], decay)
    expected = scan[torch.arange(n), valid.sum(1) - 1]
    last = last_histogram(items, codes, w, assignment=table if soft else None, decay=decay, valid=valid)
    assert_close(last, expected)
    state = torch.zeros(n, b, w, dtype=torch.float64)
    for i in range(length):
        state = histogram_step(state, table[items[:, i]], decay[:, i])
        assert_close(state, scan[:, i])
