"""The processes' losses, each times its weight, add up to the loss of the whole batch, and so do their gradients."""

from typing import Any

import pytest
import torch
from recbole.data.interaction import Interaction

from recbole_lisa.model.attentive_recommender import AttentiveRecommender
from recbole_lisa.model.batch_share import every_nth, split_batch
from tests.helpers import assert_close
from tests.model.build import build_model, last_position_batch, random_batch

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "LISABase": ("LISABase", {}),
    "LISASoft-reconstruction": ("LISASoft", {"reconstruction_weight": 0.5}),
    "LISAMini": ("LISAMini", {"loss_type": "gBCE"}),
    "LISASoft-CE": ("LISASoft", {"loss_type": "CE", "reconstruction_weight": 0.5}),
    "Transformer": ("Transformer", {"loss_type": "SSM"}),
    "RoutingTransformer-commitment": ("RoutingTransformer", {"commitment_weight": 0.5}),
}


def gradients(model: AttentiveRecommender, parts: list[torch.Tensor]) -> list[torch.Tensor]:
    model.zero_grad()
    sum(parts).backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


def as_parts(loss: torch.Tensor | tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return list(loss) if isinstance(loss, tuple) else [loss]


@pytest.mark.parametrize("n", [7, 2])
@pytest.mark.parametrize("everywhere", [True, False], ids=["all", "last"])
@pytest.mark.parametrize("case", CASES)
def test_the_weighted_losses_and_gradients_of_three_processes_are_those_of_one(
    case: str, everywhere: bool, n: int
) -> None:
    name, settings = CASES[case]
    dropout = {"hidden_dropout_prob": 0.0} | ({"attn_dropout_prob": 0.0} if name == "Transformer" else {})
    # In evaluation mode, so that routed centroids stay where they are.
    model = build_model(name, **settings, **dropout).double().eval()
    columns = random_batch(n, 9, 30, n_negatives=2)
    batch = Interaction(columns if everywhere else last_position_batch(columns))
    whole = as_parts(model.calculate_loss(batch))
    expected = gradients(model, whole)
    losses, total = torch.zeros(len(whole), dtype=torch.float64), [torch.zeros_like(p) for p in model.parameters()]
    for number in range(3):
        rows, weights = model.share(batch, number, 3)
        parts = as_parts(model.calculate_loss(rows))
        weights = weights * len(parts) if len(weights) == 1 else weights
        weighted = [part * weight for part, weight in zip(parts, weights, strict=True)]
        losses += torch.stack([part.detach() for part in weighted])
        total = [a + b for a, b in zip(total, gradients(model, weighted), strict=True)]
    assert_close(losses, torch.stack([part.detach() for part in whole]))
    for found, wanted in zip(total, expected, strict=True):
        assert_close(found, wanted)


def test_rows_of_different_lengths_count_by_their_positions() -> None:
    model = build_model("LISABase")
    batch = Interaction(random_batch(5, 9, 30))
    lengths = batch["item_length"]
    rows, weight = split_batch(batch, model.fields, 1, 2)
    assert rows["item_length"].tolist() == lengths[1::2].tolist()
    assert weight == float(lengths[1::2].sum()) / float(lengths.sum()) != 2 / 5


@pytest.mark.parametrize(("total", "size"), [(7, 3), (2, 3), (1, 4), (6, 2)])
def test_every_row_is_computed_once_and_the_shares_add_up(total: int, size: int) -> None:
    shares = [every_nth(number, size, total) for number in range(size)]
    rows = [row for chosen, share in shares for row in range(total)[chosen] if share]
    assert sorted(rows) == list(range(total))
    assert sum(share for _, share in shares) == pytest.approx(1)
    assert all(range(total)[chosen] for chosen, _ in shares)
