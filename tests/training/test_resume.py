"""A continued run equals the run that was never interrupted, bit for bit."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from recbole_lisa import quick_start
from recbole_lisa.cli.main import main
from recbole_lisa.errors import UsageError
from recbole_lisa.files import Termination, locked
from recbole_lisa.training import checkpoint_file, resuming
from recbole_lisa.training.checkpoint import Checkpoint
from recbole_lisa.training.checkpoint_file import last_file, load_checkpoint, save_checkpoint
from recbole_lisa.training.resuming import differences
from recbole_lisa.training.trainer import LISATrainer
from tests.tiny import TinyModel, tiny_config, tiny_loaders, tiny_settings, tiny_trainer

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


def interrupted(folder: Path, protocol: str, n_epochs: int, **settings: Any) -> Path:
    """The last file of a run that dies in the second batch after `n_epochs` complete epochs."""

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
    return last_file(trainer.saved_model_file)


def move_first_line_to_the_end(folder: Path) -> None:
    """Give the items of the data set `tiny` other ids; its interactions and their times stay the same."""
    file = folder / "tiny" / "tiny.inter"
    head, first, *rest = file.read_text().splitlines()
    file.write_text("\n".join([head, *rest, first]) + "\n")


def assert_same_run(left: LISATrainer, right: LISATrainer) -> None:
    """All that must not depend on an interruption (times do), parameters and best files to the bit."""
    for run in (left, right):
        run.history = [{**epoch, "seconds": None} for epoch in run.history]
    names = ("history", "curve", "best_epoch", "best_valid_score", "best_valid_result", "cur_step", "train_loss_dict")
    assert {name: getattr(left, name) for name in names} == {name: getattr(right, name) for name in names}
    files = [load_checkpoint(run.saved_model_file)["state_dict"] for run in (left, right)]
    for one, other in ((left.model.state_dict(), right.model.state_dict()), files):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


# With these settings the validation score falls and rises again before the run stops early, long before epoch 40.
STOPPING = {"epochs": 40, "stopping_step": 2, "test_step": 2}
# Complete epochs before an interruption; the evaluations without progress that are then under way.
INTERRUPTIONS = {1: 0, 8: 1, 12: 0, 15: 1, 16: 2}


def test_resume_equals_the_uninterrupted_run_with_early_stopping_in_flight(tmp_path: Path) -> None:
    whole = finished(tmp_path, **STOPPING)
    assert max(INTERRUPTIONS) < len(whole.history) < 40
    for n_epochs, without_progress in INTERRUPTIONS.items():
        part = interrupted(tmp_path, "full_ranking", n_epochs, **STOPPING)
        assert load_checkpoint(part)["cur_step"] == without_progress
        assert_same_run(finished(tmp_path, resume=str(part), **STOPPING), whole)


@pytest.mark.parametrize("learner", ["adam", "adamw", "sgd", "adagrad", "rmsprop"])
def test_resume_equals_the_uninterrupted_run_without_validation(tmp_path: Path, learner: str) -> None:
    settings = {"epochs": 5, "learner": learner, "clip_grad_norm": {"max_norm": 0.2}}
    whole = finished(tmp_path, "paper", **settings)
    part = interrupted(tmp_path, "paper", 2, **settings)
    assert_same_run(finished(tmp_path, "paper", resume=str(part), **settings), whole)


@pytest.mark.parametrize(("best", "epochs"), [(False, 40), (False, 60), (True, 40)])
def test_a_run_that_stopped_early_stays_so_and_its_best_file_goes_back(tmp_path: Path, best: bool, epochs: int) -> None:
    run = finished(tmp_path, **STOPPING)
    path, before = Path(run.saved_model_file), Path(run.saved_model_file).read_bytes()
    again = finished(tmp_path, **{**STOPPING, "epochs": epochs, "resume": str(path if best else last_file(path))})
    assert_same_run(again, run)
    assert path.read_bytes() == before


def test_a_resumed_run_says_that_its_files_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = finished(tmp_path, epochs=1)
    path = Path(run.saved_model_file)
    for folder, n_lines in ((str(path.parent), 0), (str(tmp_path / "other"), 1)):
        with caplog.at_level("WARNING"):
            finished(tmp_path, epochs=2, resume=str(path), checkpoint_dir=folder)
        assert (
            caplog.text.count(f"its files stay in '{path.parent}': checkpoint_dir='{folder}' has no effect") == n_lines
        )


def test_auto_takes_the_newest_run_that_fits(tmp_path: Path) -> None:
    runs = [finished(tmp_path, epochs=2, seed=seed) for seed in (1, 1, 2)]
    files = [last_file(run.saved_model_file) for run in runs]
    for age, file in enumerate(files):
        os.utime(file, (1000 + age, 1000 + age))
    trainer, _ = tiny_trainer(tiny_config(tmp_path, epochs=4, seed=1, resume="auto"))
    assert resuming.find_resumable(trainer.config.plain(), trainer.checkpoint_dir) == files[1]
    Checkpoint(trainer).resume_as_configured()
    assert (trainer.start_epoch, trainer.saved_model_file) == (2, runs[1].saved_model_file)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("learning_rate", 0.01, "learning_rate is 0.05 there and 0.01 here"),
        ("MAX_ITEM_LIST_LENGTH", 5, "MAX_ITEM_LIST_LENGTH is 8 there and 5 here"),
        ("protocol", "paper", "protocol is 'full_ranking' there and 'paper' here"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path: Path, key: str, value: object, message: str) -> None:
    run = finished(tmp_path, epochs=1)
    with pytest.raises(UsageError, match=message):
        finished(tmp_path, resume=str(last_file(run.saved_model_file)), **{key: value})
    other = differences({"config": tiny_config(tmp_path).plain()}, {"model": "Other", key: value})
    assert other == ["model is 'TinyModel' there and 'Other' here", "dataset is 'tiny' there and None here"]


def test_settings_that_do_not_decide_what_is_learnt_may_differ(tmp_path: Path) -> None:
    free = {"epochs": 9, "stopping_step": 5, "test_step": 3, "result_file": "r.json", "state": "DEBUG"}
    assert differences({"config": tiny_config(tmp_path).plain()}, tiny_config(tmp_path, **free).plain()) == []


def test_a_setting_that_a_checkpoint_lacks_had_its_default(tmp_path: Path) -> None:
    settings = tiny_config(tmp_path, model="Transformer").plain()
    older = {"config": {key: value for key, value in settings.items() if key not in ("scale_embedding", "amp")}}
    assert differences(older, settings) == []
    other = differences(older, {**settings, "scale_embedding": False})
    assert other == ["scale_embedding is True there and False here"]


def test_a_missing_best_file_is_named(tmp_path: Path) -> None:
    run = finished(tmp_path, epochs=1)
    Path(run.saved_model_file).unlink()
    with pytest.raises(UsageError, match=rf"'{run.saved_model_file}', its best epoch, is missing"):
        finished(tmp_path, resume=str(last_file(run.saved_model_file)))


@pytest.mark.parametrize(("old", "new"), [("\ti1\t", "\tj1\t"), ("u3\t", "v3\t"), ("\t11\n", "\t12\n"), ("", "")])
def test_the_fingerprint_sees_items_users_times_and_order_and_not_the_split(tmp_path: Path, old: str, new: str) -> None:
    def fingerprints(protocol: str) -> set[str]:
        loaders = tiny_loaders(tiny_config(tmp_path, protocol))
        return {loader.dataset.data_fingerprint for loader in loaders if loader is not None}

    before, file = fingerprints("full_ranking"), tmp_path / "tiny" / "tiny.inter"
    assert len(before) == 1 and fingerprints("paper") == before
    if old:
        file.write_text(file.read_text().replace(old, new))
    else:
        move_first_line_to_the_end(tmp_path)
    assert fingerprints("paper").isdisjoint(before)


def other_data(path: Path) -> None:
    move_first_line_to_the_end(path.parents[1])


def incomplete(path: Path) -> None:
    save_checkpoint({"format": checkpoint_file.FORMAT}, path)


def damaged_optimizer(path: Path) -> None:
    moment = load_checkpoint(path)["optimizer"]["state"][0]["exp_avg_sq"].numpy().tobytes()
    data = bytearray(path.read_bytes())
    start = data.index(moment) + 40
    data[start : start + 3] = bytes(255 - byte for byte in data[start : start + 3])
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (other_data, "cannot resume from '.*': it was trained on other interactions, or on items in another order"),
        (incomplete, "-last.pth' is incomplete: it lacks model, dataset, .*config, "),
        (damaged_optimizer, r"-last\.pth' is damaged: the checksum of its record .*data/\d+ is wrong"),
        (lambda path: path.write_bytes(b"no checkpoint"), "-last.pth' is damaged or is not a checkpoint"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_and_skipped_by_auto(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Any, message: str
) -> None:
    path = last_file(finished(tmp_path, epochs=1).saved_model_file)
    spoil(path)
    with pytest.raises(UsageError, match=message):
        finished(tmp_path, epochs=2, resume=str(path))
    with caplog.at_level("INFO"):
        new = finished(tmp_path, epochs=2, resume="auto")
    assert (len(new.history), last_file(new.saved_model_file) == path) == (2, False)
    skipped = f"'{path}': it was trained on other" if spoil is other_data else "a file: "
    assert f"resume=auto skips {skipped}" in caplog.text and "starting fresh" in caplog.text


def test_every_key_that_is_read_is_needed(tmp_path: Path) -> None:
    path = last_file(finished(tmp_path, epochs=1).saved_model_file)
    state = load_checkpoint(path)
    for key in state.keys() - {"format", "versions", "protocol", "item_ids"}:
        save_checkpoint({name: value for name, value in state.items() if name != key}, path)
        with pytest.raises(UsageError, match=f"is incomplete: it lacks {key};"):
            finished(tmp_path, epochs=1, resume=str(path))
    incomplete(path)
    trainer, (_, _, test) = tiny_trainer(tiny_config(tmp_path))
    with pytest.raises(UsageError, match="it lacks model, dataset, data_fingerprint, state_dict, other_parameter;"):
        trainer.evaluate(test, model_file=str(path))


def test_a_run_that_another_process_trains_is_refused(tmp_path: Path) -> None:
    run = finished(tmp_path, epochs=1)
    message = "another process is training the run of '.*pth'"
    lock = Path(run.saved_model_file).with_suffix(".lock")
    with locked(lock, "busy"), pytest.raises(UsageError, match=message):
        finished(tmp_path, epochs=2, resume="auto")
    assert len(finished(tmp_path, epochs=2, resume="auto").history) == 2
    assert not list((tmp_path / "saved").glob("*.lock"))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Termination])
def test_the_advice_after_an_interruption_is_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: type[BaseException]
) -> None:
    """Only a checkpoint of this run is named, not that of an older run with the same settings."""
    train_epoch, stop_before = LISATrainer._train_epoch, {"epoch": 0}

    def stopping(self: LISATrainer, data: Any, epoch: int, **options: Any) -> Any:
        if epoch == stop_before["epoch"]:
            raise kind
        return train_epoch(self, data, epoch, **options)

    monkeypatch.setattr(LISATrainer, "_train_epoch", stopping)
    # As the launcher of several processes does, which sees only the files of the run.
    monkeypatch.setattr(quick_start, "launch", lambda work, config, *args: work(config, *args))
    settings = tiny_settings(tmp_path, epochs=3, hidden_size=8, inner_size=8, state="ERROR")
    arguments = ["-m", "Transformer", "-d", "tiny", *(f"--{key}={value}" for key, value in settings.items())]
    for epoch, options, saved in (
        (0, [], False),
        (2, [], True),
        (0, [], False),
        (0, ["--nproc=2"], False),
        (2, ["--resume=auto"], True),
        (1, ["--nproc=2"], True),
    ):
        stop_before["epoch"] = epoch
        assert main([*arguments, *options]) in (130, 143)
        advice = "no epoch is saved yet, start again by the same arguments"
        if saved:
            newest = max((tmp_path / "saved").glob("*-last.pth"), key=os.path.getmtime)
            advice = f"continue from '{newest}' by the same arguments and --resume=auto"
        assert capsys.readouterr().err == f"interrupted: {advice}\n"
    stop_before["epoch"] = 9
    assert main([*arguments, "--resume=auto", "--overwrite"]) == 0
    assert len(list((tmp_path / "saved").glob("*-last.pth"))) == 2
