"""The learning rate of every step, and averages of the weights: by hand, and through interrupted runs."""

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pytest import LogCaptureFixture

from recbole_lisa.errors import UsageError
from recbole_lisa.training.checkpoint_file import last_file, load_checkpoint
from recbole_lisa.training.schedule import LearningRate, WeightAverage
from tests.helpers import assert_close
from tests.tiny import tiny_config, tiny_trainer
from tests.training.test_resume import assert_same_run, finished, interrupted

pytestmark = pytest.mark.usefixtures("isolated_run_dir")


def rates(warmup: int, decay: str, n_steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(()))], lr=2.0)
    schedule, seen = LearningRate(optimizer, warmup=warmup, decay=decay), []
    schedule.n_steps = n_steps
    for _ in range(n_steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return seen


def test_the_learning_rate_rises_and_falls_as_its_formula() -> None:
    assert rates(4, "none", 6) == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0, 2.0])
    assert rates(0, "linear", 4) == pytest.approx([2.0, 1.5, 1.0, 0.5])
    assert rates(2, "linear", 6) == pytest.approx([1.0, 2.0, 2.0, 1.5, 1.0, 0.5])
    assert rates(1, "cosine", 5) == pytest.approx([2.0, *(1 + math.cos(math.pi * n / 4) for n in range(4))])


def test_the_average_of_weights_is_its_formula_and_gives_the_weights_back() -> None:
    model = torch.nn.Linear(2, 1)
    average, expected = WeightAverage(model, 0.3), model.weight.detach().clone()
    for step in range(6):
        with torch.no_grad():
            model.weight.add_(step + 1.0)
        average.update()
        decay = min(0.3, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model.weight.detach()
    raw = model.weight.detach().clone()
    with average.applied():
        assert_close(model.weight, expected)
    assert torch.equal(model.weight, raw)


SETTINGS: dict[str, dict[str, Any]] = {
    "warmup": {"learning_rate_warmup": 5},
    "cosine": {"learning_rate_warmup": 2, "learning_rate_decay": "cosine"},
    "linear": {"learning_rate_decay": "linear"},
    "average": {"ema_decay": 0.8},
    "all": {"learning_rate_warmup": 2, "learning_rate_decay": "cosine", "ema_decay": 0.9},
}


@pytest.mark.parametrize("form", SETTINGS)
@pytest.mark.parametrize("protocol", ["full_ranking", "paper"])
def test_a_resumed_run_continues_the_schedule_and_the_average(tmp_path: Path, form: str, protocol: str) -> None:
    settings = {"epochs": 4, **SETTINGS[form]}
    whole, plain = finished(tmp_path, protocol, **settings), finished(tmp_path, protocol, epochs=4)
    assert whole.history[-1]["loss"] != plain.history[-1]["loss"] or form == "average"
    part = interrupted(tmp_path, protocol, 2, **settings)
    again = finished(tmp_path, protocol, resume=str(part), **settings)
    assert_same_run(again, whole)
    assert again.optimizer.param_groups[0]["lr"] == whole.optimizer.param_groups[0]["lr"]


def test_averages_are_validated_saved_and_tested_and_training_goes_on_without_them(tmp_path: Path) -> None:
    average, plain = finished(tmp_path, epochs=3, ema_decay=0.9), finished(tmp_path, epochs=3)
    assert [epoch["loss"] for epoch in average.history] == [epoch["loss"] for epoch in plain.history]
    assert [epoch["valid"] for epoch in average.history] != [epoch["valid"] for epoch in plain.history]
    for one, other in zip(average.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other)
    saved = load_checkpoint(last_file(average.saved_model_file))["state_dict"]["embedding.weight"]
    assert average.average is not None
    assert torch.equal(saved, average.average.other[0])
    assert not torch.equal(saved, plain.model.embedding.weight)
    trainer, (_, valid, _) = tiny_trainer(tiny_config(tmp_path))
    metrics = trainer.evaluate(valid, model_file=str(last_file(average.saved_model_file)))
    assert metrics == average.history[-1]["valid"]


@pytest.mark.parametrize(
    ("warmup", "line"), [(16, "the whole run has 12: the learning rate only rises, to 0.00075"), (2, "")]
)
def test_a_too_long_warmup_is_named(tmp_path: Path, caplog: LogCaptureFixture, warmup: int, line: str) -> None:
    with caplog.at_level(logging.INFO):
        finished(tmp_path, epochs=2, learning_rate=1e-3, learning_rate_warmup=warmup, learning_rate_decay="cosine")
    lines = [record.message for record in caplog.records if "learning_rate_warmup" in record.message]
    assert lines == [f"learning_rate_warmup is {warmup} steps, {line}"] * bool(line)


def test_an_average_that_the_run_is_too_short_for_is_named(tmp_path: Path, caplog: LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        finished(tmp_path, epochs=2, ema_decay=0.9)
        finished(tmp_path, epochs=2, ema_decay=0.5)
    lines = [record.message for record in caplog.records if "ema_decay" in record.message]
    assert lines == ["ema_decay is 0.9, but in the 12 steps of the whole run it rises to 0.571 only"]


def test_a_decay_fixes_the_epochs_of_a_resumed_run(tmp_path: Path) -> None:
    run = finished(tmp_path, epochs=2, learning_rate_decay="linear")
    with pytest.raises(UsageError, match="epochs is 2 there and 3 here"):
        finished(tmp_path, epochs=3, learning_rate_decay="linear", resume=str(last_file(run.saved_model_file)))
