import pytest
import torch

from recbole_lisa.ops import pair_scores as module
from recbole_lisa.ops.pair_scores import pair_scores
from tests.helpers import assert_close, assert_close_with_gradients

M, U, D = 17, 12, 5


@pytest.mark.oracle
@pytest.mark.parametrize("r", [1, 6])
def test_blockwise_scores_equal_the_plain_ones_in_values_and_gradients(r: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.BLOCK_ELEMENTS, "cpu", 4 * r * D)
    hidden = torch.randn(M, D, dtype=torch.float64, requires_grad=True)
    table = torch.randn(U, D, dtype=torch.float64, requires_grad=True)
    index = torch.randint(U, (M, r))
    fast, plain = pair_scores(hidden, table, index), torch.einsum("md,mrd->mr", hidden, table[index])
    assert_close_with_gradients(fast, plain, (hidden, table))


def test_scores_are_exact_under_autocast_and_gradients_keep_their_types() -> None:
    hidden = torch.randn(M, D).bfloat16().requires_grad_()
    table = torch.randn(U, D, requires_grad=True)
    index = torch.randint(U, (M, 3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = pair_scores(hidden, table, index)
    plain = torch.einsum("md,mrd->mr", hidden.float(), table[index])
    assert_close(scores, plain)
    scores.sum().backward()
    assert hidden.grad is not None and hidden.grad.dtype == torch.bfloat16
    assert_close(table.grad, torch.autograd.grad(plain.sum(), table)[0])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32])
def test_any_integer_type_indexes_and_no_pair_is_an_empty_answer(dtype: torch.dtype) -> None:
    hidden, table, index = torch.randn(3, 4), torch.randn(5, 4), torch.tensor([[0, 4], [1, 1], [2, 3]])
    assert torch.equal(pair_scores(hidden, table, index.to(dtype)), pair_scores(hidden, table, index))
    assert pair_scores(hidden, table, index[:, :0]).shape == (3, 0)
    assert pair_scores(hidden[:0], table, index[:0]).shape == (0, 2)
