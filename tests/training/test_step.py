"""One step: what it adds up, what it clips, and what it refuses."""

import math
from typing import Any

import pytest
import torch
from recbole.data.interaction import Interaction

from benchmarks.standin import FIELDS
from recbole_lisa.config.fields import FieldNames
from recbole_lisa.errors import TrainingDivergedError
from recbole_lisa.training.step import OptimizerStep

BATCH = Interaction({"x": torch.tensor([1.0, 2.0])})


def make_step(clip: dict[str, Any] | None = None, amp: str = "no") -> OptimizerStep:
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, 3.0)
    settings = {"device": torch.device("cpu"), "amp": amp, "clip_grad_norm": clip, "fields": FieldNames(FIELDS)}
    return OptimizerStep(model, torch.optim.SGD(model.parameters(), lr=0.5), **settings)


def test_step_follows_the_sum_of_the_parts_from_zero_gradients_and_clips_their_norm() -> None:
    step = make_step()
    for before in (3.0, 1.5):  # the gradient is 3 each time
        parts = step(BATCH, lambda batch: (step.model.weight.sum(), 2 * step.model.weight.sum()), "here")
        assert parts == [before, 2 * before]
    assert step.model.weight.item() == 3.0 - 2 * 0.5 * 3.0
    step = make_step(clip={"max_norm": 0.1})
    step(BATCH, lambda batch: 100 * step.model.weight.sum(), "here")
    assert step.model.weight.item() == pytest.approx(3.0 - 0.5 * 0.1, abs=1e-5)


def test_amp_computes_the_loss_in_bfloat16() -> None:
    step, seen = make_step(amp="bf16"), []

    def loss(batch: Interaction) -> torch.Tensor:
        product = step.model(batch["x"][:, None])
        seen.append(product.dtype)
        return product.float().sum()

    step(BATCH, loss, "here")
    assert seen == [torch.bfloat16]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_step_refuses_a_loss_that_is_not_finite_and_keeps_the_parameters(bad: float) -> None:
    step = make_step()
    place = "epoch 3, batch 2 of 9"
    with pytest.raises(TrainingDivergedError, match=rf"loss is 1 \+ {bad:g} in {place}, at learning rate 0\.5: "):
        step(BATCH, lambda batch: (torch.tensor(1.0), step.model.weight.sum() * bad), place)
    assert step.model.weight.item() == 3.0


@pytest.mark.parametrize(("weight", "named"), [(math.nan, True), (math.inf, True), (3.0, False)])
def test_a_refused_operand_is_blamed_on_a_parameter_that_ran_away(weight: float, named: bool) -> None:
    step = make_step()
    torch.nn.init.constant_(step.model.weight, weight)

    def loss(batch: Interaction) -> torch.Tensor:
        raise ValueError("decay must be a finite number")

    right = r"^weight is NaN or infinite in epoch 3, batch 2 of 9, at learning rate 0\.5: lower"
    with pytest.raises(
        TrainingDivergedError if named else ValueError, match=right if named else "^decay must be a finite number"
    ):
        step(BATCH, loss, "epoch 3, batch 2 of 9")


@pytest.mark.parametrize(
    ("is_first", "cause"), [(True, "before the first update: a setting of the model"), (False, "at learning rate 0.5")]
)
def test_before_the_first_update_the_learning_rate_is_not_blamed(is_first: bool, cause: str) -> None:
    step = make_step()
    with pytest.raises(TrainingDivergedError, match=f"in epoch 1, batch 1 of 9, {cause}"):
        step(BATCH, lambda batch: step.model.weight.sum() * math.nan, "epoch 1, batch 1 of 9", is_first=is_first)


def test_float16_gradients_are_unscaled_before_they_are_clipped_and_an_overflow_skips_the_step() -> None:
    step = make_step(clip={"max_norm": 0.1}, amp="fp16")
    assert step.scaler.get_scale() > 1
    step(BATCH, lambda batch: 100 * step.model.weight.sum(), "here")
    assert step.model.weight.item() == pytest.approx(3.0 - 0.5 * 0.1, abs=1e-5)
    below = make_step(clip={"max_norm": 10.0}, amp="fp16")
    below(BATCH, lambda batch: below.model.weight.sum(), "here")
    assert below.model.weight.item() == 3.0 - 0.5  # of norm 1, though 65,536 times as large when scaled
    step = make_step(amp="fp16")
    before = step.scaler.get_scale()
    step(BATCH, lambda batch: step.model(batch["x"][:1, None] * 1e4).float().sum() * 1e-3, "here")
    assert step.model.weight.item() == 3.0
    assert step.scaler.get_scale() < before
