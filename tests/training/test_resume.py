"""A continued run equals the run that was never interrupted, bit for bit."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from recbole_lisa.errors import UsageError
from recbole_lisa.training.checkpoint import (
    FORMAT,
    Checkpoint,
    differences,
    find_resumable,
    last_file,
    load_checkpoint,
    locked,
    save_checkpoint,
)
from recbole_lisa.training.trainer import LISATrainer
from tests.tiny import TinyModel, tiny_config, tiny_loaders, tiny_trainer

pytestmark = pytest.mark.usefixtures("isolated_run_dir")


class Interruption(BaseException):
    """Stops a run between two epochs, as a signal would."""


def finished(folder: Path, protocol: str = "full_ranking", **settings: Any) -> LISATrainer:
    """A run to its end, resuming when the settings say so."""
    trainer, (train, valid, test) = tiny_trainer(tiny_config(folder, protocol, **settings))
    trainer.data_fingerprint = train.dataset.data_fingerprint
    Checkpoint(trainer).resume_as_configured()
    trainer.fit(train, valid, test_data=test)
    return trainer


def interrupted(folder: Path, protocol: str, n_epochs: int, **settings: Any) -> LISATrainer:
    """A run that dies in the second batch after `n_epochs` complete epochs."""

    class Dying(TinyModel):
        def calculate_loss(self, interaction: Any) -> Any:
            if self.batches_left == 0:
                raise Interruption
            self.batches_left -= 1
            return super().calculate_loss(interaction)

    Dying.__name__ = "TinyModel"  # the checkpoint must look like that of any other run
    trainer, (train, valid, test) = tiny_trainer(tiny_config(folder, protocol, model=Dying, **settings))
    trainer.model.batches_left = n_epochs * len(train) + 1
    with pytest.raises(Interruption):
        trainer.fit(train, valid, test_data=test)
    return trainer


def move_first_line_to_the_end(folder: Path) -> None:
    """Give the items of the data set `tiny` other ids; its interactions and their times stay the same."""
    file = folder / "tiny" / "tiny.inter"
    head, first, *rest = file.read_text().splitlines()
    file.write_text("\n".join([head, *rest, first]) + "\n")


def observed(trainer: LISATrainer) -> dict[str, Any]:
    """All that must not depend on an interruption (times do)."""
    return {
        "history": [{**epoch, "seconds": None} for epoch in trainer.history],
        "curve": trainer.curve,
        "best": (trainer.best_epoch, trainer.best_valid_score, trainer.best_valid_result, trainer.cur_step),
        "losses": trainer.train_loss_dict,
    }


def assert_same_bits(left: Any, right: Any) -> None:
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


# With these settings the validation score falls and rises again before the run stops early, long before epoch 40.
STOPPING = {"epochs": 40, "stopping_step": 2, "test_step": 2}
# Complete epochs before an interruption; the evaluations without progress that are then under way.
INTERRUPTIONS = {1: 0, 8: 1, 12: 0, 15: 1, 16: 2}


@pytest.mark.parametrize("n_epochs", INTERRUPTIONS)
def test_resume_equals_the_uninterrupted_run_with_early_stopping_in_flight(tmp_path: Path, n_epochs: int) -> None:
    whole = finished(tmp_path, **STOPPING)
    assert n_epochs < len(whole.history) < 40
    part = interrupted(tmp_path, "full_ranking", n_epochs, **STOPPING)
    assert load_checkpoint(last_file(part.saved_model_file))["cur_step"] == INTERRUPTIONS[n_epochs]
    resumed = finished(tmp_path, resume=str(last_file(part.saved_model_file)), **STOPPING)
    assert observed(resumed) == observed(whole)
    assert_same_bits(resumed.model.state_dict(), whole.model.state_dict())
    files = (load_checkpoint(trainer.saved_model_file) for trainer in (resumed, whole))
    assert_same_bits(*(file["state_dict"] for file in files))


@pytest.mark.parametrize("learner", ["adam", "adamw", "sgd", "adagrad", "rmsprop"])
def test_resume_equals_the_uninterrupted_run_without_validation(tmp_path: Path, learner: str) -> None:
    settings = {"epochs": 5, "learner": learner, "clip_grad_norm": {"max_norm": 0.2}}
    whole = finished(tmp_path, "paper", **settings)
    part = interrupted(tmp_path, "paper", 2, **settings)
    resumed = finished(tmp_path, "paper", resume=str(last_file(part.saved_model_file)), **settings)
    assert observed(resumed) == observed(whole)
    assert_same_bits(resumed.model.state_dict(), whole.model.state_dict())


def test_more_epochs_continue_a_finished_run(tmp_path: Path) -> None:
    whole = finished(tmp_path, epochs=6)
    short = finished(tmp_path, epochs=3)
    longer = finished(tmp_path, epochs=6, resume=str(last_file(short.saved_model_file)))
    assert observed(longer) == observed(whole)
    assert longer.saved_model_file == short.saved_model_file


def test_resuming_a_run_that_is_complete_trains_nothing_and_keeps_its_best_file(tmp_path: Path) -> None:
    run = finished(tmp_path, epochs=4)
    before = Path(run.saved_model_file).read_bytes()
    again = finished(tmp_path, epochs=4, resume=str(last_file(run.saved_model_file)))
    assert observed(again) == observed(run)
    assert Path(run.saved_model_file).read_bytes() == before


def test_a_run_that_stopped_early_stays_stopped(tmp_path: Path) -> None:
    run = finished(tmp_path, **STOPPING)
    longer = {**STOPPING, "epochs": 60, "resume": str(last_file(run.saved_model_file))}
    assert len(finished(tmp_path, **longer).history) == len(run.history)


def test_the_best_file_goes_back_to_the_best_epoch(tmp_path: Path) -> None:
    run = finished(tmp_path, **STOPPING)
    again = finished(tmp_path, resume=run.saved_model_file, **STOPPING)
    assert observed(again) == observed(run)


def test_auto_takes_the_newest_run_that_fits(tmp_path: Path) -> None:
    runs = [finished(tmp_path, epochs=2, seed=seed) for seed in (1, 1, 2)]
    files = [last_file(run.saved_model_file) for run in runs]
    for age, file in enumerate(files):
        os.utime(file, (1000 + age, 1000 + age))
    trainer, _ = tiny_trainer(tiny_config(tmp_path, epochs=4, seed=1, resume="auto"))
    assert find_resumable(trainer.config.plain(), trainer.checkpoint_dir) == files[1]
    Checkpoint(trainer).resume_as_configured()
    assert (trainer.start_epoch, trainer.saved_model_file) == (2, runs[1].saved_model_file)


def test_auto_starts_fresh_when_nothing_fits_and_skips_damaged_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    finished(tmp_path, epochs=1, seed=1)
    (tmp_path / "saved" / "broken-last.pth").write_bytes(b"not a checkpoint")
    trainer, _ = tiny_trainer(tiny_config(tmp_path, seed=3, resume="auto"))
    with caplog.at_level("INFO"):
        Checkpoint(trainer).resume_as_configured()
    assert trainer.start_epoch == 0
    assert "skips a file" in caplog.text
    assert "starting fresh" in caplog.text


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("learning_rate", 0.01, "learning_rate is 0.05 there and 0.01 here"),
        ("seed", 7, "seed is 2020 there and 7 here"),
        ("MAX_ITEM_LIST_LENGTH", 5, "MAX_ITEM_LIST_LENGTH is 8 there and 5 here"),
        ("protocol", "paper", "protocol is 'full_ranking' there and 'paper' here"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path: Path, key: str, value: object, message: str) -> None:
    run = finished(tmp_path, epochs=1)
    with pytest.raises(UsageError, match=message):
        finished(tmp_path, resume=str(last_file(run.saved_model_file)), **{key: value})


@pytest.mark.parametrize(
    "free",
    [{"epochs": 9}, {"stopping_step": 5}, {"test_step": 3}, {"result_file": "r.json"}, {"state": "DEBUG"}],
)
def test_settings_that_do_not_decide_what_is_learnt_may_differ(tmp_path: Path, free: dict[str, Any]) -> None:
    settings = tiny_config(tmp_path).plain()
    assert differences({"config": settings}, tiny_config(tmp_path, **free).plain()) == []


def test_a_missing_best_file_is_named(tmp_path: Path) -> None:
    run = finished(tmp_path, epochs=1)
    Path(run.saved_model_file).unlink()
    with pytest.raises(UsageError, match=rf"'{run.saved_model_file}', its best epoch, is missing"):
        finished(tmp_path, resume=str(last_file(run.saved_model_file)))


def test_the_fingerprint_is_that_of_the_data_whatever_the_split_and_the_phase(tmp_path: Path) -> None:
    def fingerprints(protocol: str) -> set[str]:
        loaders = tiny_loaders(tiny_config(tmp_path, protocol))
        return {loader.dataset.data_fingerprint for loader in loaders if loader is not None}

    before = fingerprints("full_ranking")
    assert len(before) == 1
    assert fingerprints("paper") == before
    move_first_line_to_the_end(tmp_path)
    assert fingerprints("paper").isdisjoint(before)


@pytest.mark.parametrize(("old", "new"), [("\ti1\t", "\tj1\t"), ("u3\t", "v3\t"), ("\t11\n", "\t12\n")])
def test_the_fingerprint_sees_items_users_and_times(tmp_path: Path, old: str, new: str) -> None:
    before = tiny_loaders(tiny_config(tmp_path))[0].dataset.data_fingerprint
    file = tmp_path / "tiny" / "tiny.inter"
    file.write_text(file.read_text().replace(old, new))
    assert tiny_loaders(tiny_config(tmp_path))[0].dataset.data_fingerprint != before


def test_other_data_are_refused(tmp_path: Path) -> None:
    path = last_file(finished(tmp_path, epochs=1).saved_model_file)
    move_first_line_to_the_end(tmp_path)
    message = r"cannot resume from '.*': it was trained on other interactions, or on items in another order"
    with pytest.raises(UsageError, match=message):
        finished(tmp_path, epochs=2, resume=str(path))


def test_auto_skips_runs_on_other_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old = finished(tmp_path, epochs=1)
    move_first_line_to_the_end(tmp_path)
    with caplog.at_level("INFO"):
        new = finished(tmp_path, epochs=2, resume="auto")
    assert [len(new.history), new.saved_model_file == old.saved_model_file] == [2, False]
    assert f"resume=auto skips '{last_file(old.saved_model_file)}': it was trained on other" in caplog.text
    assert "starting fresh" in caplog.text


def test_an_incomplete_file_is_refused_by_its_missing_keys_and_skipped_by_auto(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = last_file(tmp_path / "saved" / "part.pth")
    save_checkpoint({"format": FORMAT}, path)
    with pytest.raises(UsageError, match="part-last.pth' is incomplete: it lacks model, dataset, .*config, "):
        finished(tmp_path, epochs=1, resume=str(path))
    trainer, (_, _, test) = tiny_trainer(tiny_config(tmp_path))
    with pytest.raises(UsageError, match="it lacks model, dataset, data_fingerprint, state_dict, other_parameter;"):
        trainer.evaluate(test, model_file=str(path))
    assert len(finished(tmp_path, epochs=1, resume="auto").history) == 1
    assert "resume=auto skips a file: " in caplog.text


def test_every_key_that_is_read_is_needed(tmp_path: Path) -> None:
    path = last_file(finished(tmp_path, epochs=1).saved_model_file)
    state = load_checkpoint(path)
    for key in state.keys() - {"format", "versions", "protocol"}:
        save_checkpoint({name: value for name, value in state.items() if name != key}, path)
        with pytest.raises(UsageError, match=f"is incomplete: it lacks {key};"):
            finished(tmp_path, epochs=1, resume=str(path))


def test_a_damaged_optimizer_state_is_refused_by_its_checksum_and_skipped_by_auto(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = last_file(finished(tmp_path, epochs=1).saved_model_file)
    moment = load_checkpoint(path)["optimizer"]["state"][0]["exp_avg_sq"].numpy().tobytes()
    data = bytearray(path.read_bytes())
    start = data.index(moment) + 40
    data[start : start + 3] = bytes(255 - byte for byte in data[start : start + 3])
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"-last\.pth' is damaged: the checksum of its record .*data/\d+ is wrong"):
        finished(tmp_path, epochs=2, resume=str(path))
    assert len(finished(tmp_path, epochs=2, resume="auto").history) == 2
    assert "resume=auto skips a file: " in caplog.text


def test_a_run_that_another_process_trains_is_refused(tmp_path: Path) -> None:
    run = finished(tmp_path, epochs=1)
    with (
        locked(run.saved_model_file),
        pytest.raises(UsageError, match="another process is training the run of '.*pth'"),
    ):
        finished(tmp_path, epochs=2, resume="auto")
    assert len(finished(tmp_path, epochs=2, resume="auto").history) == 2
    assert not list((tmp_path / "saved").glob("*.lock"))
