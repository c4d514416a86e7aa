"""Row-wise Adam: equal to Adam where all rows have gradients, still elsewhere, at any form of the loss."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from recbole_lisa.training.step import RowAdam, clip_gradients
from tests.model.build import build_model, loss_value, random_batch

SHARED = {"shared_negatives": 40, "n_codewords": 5}


def losses_of_steps(model: Any, optimizer: torch.optim.Optimizer, clip: float | None, n_items: int) -> list[float]:
    """Losses of three steps whose negatives are all items."""
    losses = []
    for number in range(3):
        torch.manual_seed(number)
        batch = random_batch(6, 9, n_items)
        batch["neg_item_id"] = torch.arange(1, n_items).expand(6, -1)
        optimizer.zero_grad()
        loss = loss_value(model.calculate_loss(batch))
        loss.backward()
        if clip:
            clip_gradients(model.parameters(), max_norm=clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize(
    ("name", "loss_type"), [("LISABase", "SSM"), ("LISAMini", "gBCE"), ("LISASoft", "BCE"), ("Transformer", "SSM")]
)
def test_steps_on_all_items_equal_adam(name: str, loss_type: str, clip: float | None) -> None:
    torch.manual_seed(0)
    dense = build_model(name, loss_type=loss_type, hidden_dropout_prob=0.0, **SHARED)
    sparse = copy.deepcopy(dense)
    sparse.item_embedding.sparse = True
    adam, ours = torch.optim.Adam(dense.parameters(), lr=0.01), RowAdam(sparse.parameters(), lr=0.01)
    expected = losses_of_steps(dense, adam, clip, dense.n_items)
    actual = losses_of_steps(sparse, ours, clip, dense.n_items)
    assert sparse.item_embedding.weight.grad.is_sparse
    if clip is None:
        assert actual == expected
        assert all(torch.equal(*pair) for pair in zip(sparse.parameters(), dense.parameters(), strict=True))
    else:  # the norm is summed in another order
        assert actual == pytest.approx(expected, rel=1e-5)


def test_rows_without_a_gradient_and_their_moments_stay_and_repeated_rows_count_once() -> None:
    torch.manual_seed(0)
    table = nn.Embedding(7, 3, sparse=True)
    before, rows = table.weight.detach().clone(), torch.tensor([4, 2, 4])
    optimizer = RowAdam(table.parameters(), lr=0.1, betas=(0.5, 0.9))
    table(rows).sum().backward()
    optimizer.step()
    expected = before.clone()
    gradient = torch.tensor([1.0, 2.0])[:, None]  # of rows 2 and 4
    expected[[2, 4]] -= 0.1 * gradient / (gradient + 1e-8)
    torch.testing.assert_close(table.weight.detach(), expected)
    state = optimizer.state[table.weight]
    assert state["exp_avg"].abs().sum(dim=1).nonzero().flatten().tolist() == [2, 4]
    optimizer.zero_grad()
    table(torch.tensor([5])).sum().backward()
    optimizer.step()
    assert torch.equal(table.weight[[0, 1, 3, 6]], before[[0, 1, 3, 6]])
    assert torch.equal(table.weight[[2, 4]], expected[[2, 4]].float()) and state["step"].item() == 2
