"""Training, validation and early stopping of whole tiny runs."""

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import recbole.data
import torch
from recbole.data.interaction import Interaction

from recbole_lisa.data.dataloader import EvalLoader
from recbole_lisa.errors import TrainingDivergedError, UsageError
from recbole_lisa.training.checkpoint_file import last_file, load_checkpoint
from tests.tiny import TinyModel, tiny_config, tiny_trainer
from tests.training.test_resume import move_first_line_to_the_end

pytestmark = pytest.mark.usefixtures("isolated_run_dir")


def scripted(trainer: Any, scores: list[float]) -> list[int]:
    """Let the validation of `trainer` give these scores, one per epoch; the list fills with the epochs done."""
    done: list[int] = []

    def evaluate(*arguments: Any, **settings: Any) -> dict[str, float]:
        done.append(len(trainer.history))
        return {"ndcg@10": scores[len(trainer.history) - 1]}

    trainer.evaluate = evaluate
    return done


def test_training_lowers_the_loss_and_learns_the_next_item(tmp_path: Path) -> None:
    trainer, (train, valid, test) = tiny_trainer(tiny_config(tmp_path, epochs=25))
    score, best = trainer.fit(train, valid)
    losses = [epoch["loss"] for epoch in trainer.history]
    assert losses[-1] < 0.7 * losses[0]
    assert score == best["ndcg@10"]
    assert trainer.evaluate(test)["hit@10"] > 0.6  # chance is 1 / 3, the data follows its rule 7 times in 10


def test_an_epoch_records_the_mean_loss_of_each_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer, (train, valid, test) = tiny_trainer(tiny_config(tmp_path, epochs=2))
    epochs: list[int] = []
    original = train.set_epoch
    train.set_epoch = lambda epoch: (epochs.append(epoch), original(epoch))
    weight, values = trainer.model.embedding.weight, iter(range(1, 2 * len(train) + 1))
    trainer.model.calculate_loss = lambda _: (weight.sum() * 0 + next(values), torch.zeros(()))
    with caplog.at_level(logging.INFO):
        trainer.fit(train, valid, saved=False)
    assert epochs == [0, 1]
    assert [epoch["parts"] for epoch in trainer.history] == [[3.5, 0.0], [9.5, 0.0]]  # of 1 to 6, and of 7 to 12
    assert [epoch["loss"] for epoch in trainer.history] == list(trainer.train_loss_dict.values()) == [3.5, 9.5]
    assert "3.5000" in caplog.text and "9.5000" in caplog.text
    assert trainer.evaluate(test, load_best_model=False).keys() == trainer.best_valid_result.keys()
    assert list((tmp_path / "saved").iterdir()) == [], "a run that saves nothing leaves no file"


def test_the_best_epoch_is_kept_and_tested(tmp_path: Path) -> None:
    trainer, (train, valid, _) = tiny_trainer(tiny_config(tmp_path, epochs=4))
    weights: list[torch.Tensor] = []
    scripted(trainer, [0.1, 0.3, 0.2, 0.2])
    trainer.fit(train, valid, callback_fn=lambda *_: weights.append(trainer.model.embedding.weight.clone()))
    best = load_checkpoint(trainer.saved_model_file)
    last = load_checkpoint(last_file(trainer.saved_model_file))
    assert (best["epoch"], best["best_epoch"], best["best_valid_score"]) == (1, 1, 0.3)
    assert (last["epoch"], last["best_epoch"], last["cur_step"]) == (3, 1, 2)
    assert last["best_file"] == Path(trainer.saved_model_file).name
    assert best["state_dict"]["embedding.weight"].equal(weights[1])
    assert last["state_dict"]["embedding.weight"].equal(weights[3])
    del trainer.evaluate
    trainer.evaluate(valid)
    assert trainer.model.embedding.weight.equal(weights[1])


def test_training_stops_after_stopping_step_evaluations_without_progress(tmp_path: Path) -> None:
    trainer, (train, valid, _) = tiny_trainer(tiny_config(tmp_path, epochs=9, stopping_step=2))
    done = scripted(trainer, [0.1, 0.5, 0.4, 0.4, 0.4, 0.9, 0.9, 0.9, 0.9])
    assert trainer.fit(train, valid) == (0.5, {"ndcg@10": 0.5})
    assert done == [1, 2, 3, 4, 5]  # as in RecBole, the third evaluation below the best one is one too many


def test_without_validation_the_last_epoch_is_tested(tmp_path: Path) -> None:
    trainer, (train, valid, test) = tiny_trainer(tiny_config(tmp_path, "paper", epochs=3, stopping_step=1))
    assert valid is None
    assert trainer.fit(train, valid) == (-math.inf, None)
    weights = trainer.model.embedding.weight.clone()
    torch.nn.init.zeros_(trainer.model.embedding.weight)
    trainer.evaluate(test)
    assert len(trainer.history) == 3
    assert trainer.model.embedding.weight.equal(weights)
    assert load_checkpoint(trainer.saved_model_file)["epoch"] == 2


def test_the_test_curve_records_every_test_step_epochs_and_changes_nothing(tmp_path: Path) -> None:
    plain, (train, valid, test) = tiny_trainer(tiny_config(tmp_path, epochs=5))
    plain.fit(train, valid, test_data=test)
    assert plain.curve == []
    curved, (train, valid, test) = tiny_trainer(tiny_config(tmp_path, epochs=5, test_step=2))
    curved.fit(train, valid, test_data=test)
    assert [point["epoch"] for point in curved.curve] == [2, 4]
    assert curved.curve[0].keys() == {"epoch", *curved.best_valid_result}
    assert [epoch["loss"] for epoch in curved.history] == [epoch["loss"] for epoch in plain.history]
    assert curved.best_valid_result == plain.best_valid_result


def test_a_diverged_loss_names_epoch_batch_and_learning_rate(tmp_path: Path) -> None:
    class Diverging(TinyModel):
        def calculate_loss(self, interaction: Interaction) -> Any:
            self.calls = getattr(self, "calls", 0) + 1
            first, second = super().calculate_loss(interaction)
            return first * (math.nan if self.calls == 8 else 1), second

    trainer, (train, *_) = tiny_trainer(tiny_config(tmp_path, model=Diverging))
    assert len(train) == 6
    with pytest.raises(TrainingDivergedError, match=r"nan \+ .* in epoch 2, batch 2 of 6, at learning rate 0\.05"):
        trainer.fit(train)
    last = load_checkpoint(last_file(trainer.saved_model_file))
    assert last["epoch"] == 0
    assert last["state_dict"]["embedding.weight"].isfinite().all()


def test_parameters_that_run_away_in_the_last_batch_are_not_saved(tmp_path: Path) -> None:
    class RunningAway(TinyModel):
        def calculate_loss(self, interaction: Interaction) -> Any:
            self.calls = getattr(self, "calls", 0) + 1
            first, second = super().calculate_loss(interaction)
            if self.calls == 12:  # its gradient is not finite, its value is
                second = second + 0 * (self.embedding.weight - self.embedding.weight.detach()).abs().sqrt().sum()
            return first, second

    trainer, (train, *_) = tiny_trainer(tiny_config(tmp_path, model=RunningAway))
    with pytest.raises(TrainingDivergedError, match=r"embedding\.weight is NaN or infinite in epoch 2, batch 6 of 6"):
        trainer.fit(train)
    assert load_checkpoint(last_file(trainer.saved_model_file))["epoch"] == 0


def test_a_checkpoint_of_another_model_or_of_other_data_is_refused(tmp_path: Path) -> None:
    class Other(TinyModel):
        pass

    trainer, (train, valid, test) = tiny_trainer(tiny_config(tmp_path, epochs=1))
    trainer.fit(train, valid)
    other, _ = tiny_trainer(tiny_config(tmp_path, model=Other))
    with pytest.raises(UsageError, match="is of the model 'TinyModel', not 'Other'"):
        other.evaluate(test, model_file=trainer.saved_model_file)
    move_first_line_to_the_end(tmp_path)
    other, (other_train, _, other_test) = tiny_trainer(tiny_config(tmp_path, epochs=1))
    with pytest.raises(UsageError, match=r"cannot use '.*' on 'tiny': it was trained on other interactions, or on"):
        other.evaluate(other_test, model_file=trainer.saved_model_file)
    with pytest.raises(UsageError, match="cannot go on with .*: it was trained on other interactions"):
        trainer.fit(other_train)
    assert other.evaluate(test, model_file=trainer.saved_model_file) == trainer.evaluate(test)


# RecBole fills missing values in a way that pandas 3 drops; there are none here.
@pytest.mark.filterwarnings("ignore:A value is trying to be set on a copy:FutureWarning")
def test_recboles_own_data_set_and_loaders_give_the_same_metrics(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, epochs=3)
    trainer, (train, valid, test) = tiny_trainer(config)
    trainer.fit(train, valid)
    _, recbole_valid, recbole_test = recbole.data.data_preparation(config, recbole.data.create_dataset(config))
    assert not isinstance(recbole_test, EvalLoader)
    assert trainer.evaluate(recbole_test) == trainer.evaluate(test)
    assert trainer.evaluate(recbole_valid) == trainer.evaluate(valid) == trainer.best_valid_result


def test_adam_takes_one_pass_with_the_betas_of_the_configuration_and_several_processes_of_recbole_are_refused(
    tmp_path: Path,
) -> None:
    for learner in ("adam", "adamw"):
        config = tiny_config(tmp_path, learner=learner, adam_betas=[0.8, 0.95])
        [group] = tiny_trainer(config)[0].optimizer.param_groups
        assert group["betas"] == (0.8, 0.95) and group["fused"]
    config["single_spec"], config["nproc"] = False, 2
    with pytest.raises(UsageError, match="nproc=2: RecBole's processes are not supported"):
        tiny_trainer(config)


@pytest.mark.parametrize("configured", [False, True])
def test_anomaly_detection_is_as_configured_whatever_was_imported(tmp_path: Path, configured: bool) -> None:
    trainer, (train, *_) = tiny_trainer(tiny_config(tmp_path, epochs=1, detect_anomaly=configured))
    seen, original = set(), trainer.model.calculate_loss
    trainer.model.calculate_loss = lambda batch: (seen.add(torch.is_anomaly_enabled()), original(batch))[1]
    with torch.autograd.set_detect_anomaly(not configured):
        trainer.fit(train, saved=False)
        assert torch.is_anomaly_enabled() is not configured
    assert seen == {configured}


@pytest.mark.parametrize("removed_after", [2, 3])
def test_a_best_file_that_is_removed_is_replaced_by_a_later_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, removed_after: int
) -> None:
    trainer, (train, valid, _) = tiny_trainer(tiny_config(tmp_path, epochs=4))
    scripted(trainer, [0.4, 0.3, 0.2, 0.1])

    def remove(epoch: int, _: float) -> None:
        if epoch == removed_after:
            Path(trainer.saved_model_file).unlink()

    _, metrics = trainer.fit(train, valid, callback_fn=remove)
    assert f"'{trainer.saved_model_file}', the best epoch so far, was removed: the best of the later" in caplog.text
    assert (trainer.best_epoch, metrics is None) == ((3, False) if removed_after == 2 else (None, True))
    assert load_checkpoint(trainer.saved_model_file)["epoch"] == 3
