"""Whole runs on ml-100k with tiny models: from the files to the result."""

import json
import logging
from contextlib import nullcontext
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from pytest import CaptureFixture, MonkeyPatch
from recbole.model.sequential_recommender import BERT4Rec, SASRec

from recbole_lisa.errors import TrainingDivergedError, UsageError
from recbole_lisa.quick_start import run, run_configured
from recbole_lisa.training.checkpoint_file import last_file, load_checkpoint, save_checkpoint
from tests.helpers import run_python, write_interactions
from tests.tiny import TinyModel, tiny_config, tiny_settings
from tests.training.test_result import KEYS

pytestmark = pytest.mark.usefixtures("isolated_run_dir")

SMALL = {
    **{"use_gpu": False, "show_progress": False, "epochs": 2, "hidden_size": 16, "inner_size": 16},
    "MAX_ITEM_LIST_LENGTH": 30,
}
SMALL_LISA = {**SMALL, "n_codebooks": 2, "n_codewords": 8}


def same_bits(left: str, right: str) -> bool:
    states = [load_checkpoint(path)["state_dict"] for path in (left, right)]
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("protocol", ["paper", "full_ranking"])
@pytest.mark.parametrize("model", ["LISABase", "LISASoft", "LISAMini", "Transformer"])
def test_run_trains_scores_and_reports(model: str, protocol: str, tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    settings = SMALL if model == "Transformer" else SMALL_LISA
    result = run(model, "ml-100k", protocol=protocol, config_dict={**settings, "result_file": "out/r.json"})
    assert result.keys() == KEYS
    assert (result["epochs_run"], result["valid"] is None) == (2, protocol == "paper")
    assert result["loss"][1] < result["loss"][0]
    assert all(0 <= value <= 1 for value in result["test"].values())
    assert json.loads((tmp_path / "out" / "r.json").read_text()) == result
    printed = capsys.readouterr().out
    assert printed.startswith(f"{model} on ml-100k, protocol {protocol}, seed 2020: ")
    assert f"{result['test']['ndcg@10']:.4f}" in printed
    log = Path(result["log"]).read_text()
    assert "epoch 2 training" in log
    assert printed in log
    assert (tmp_path / "log_tensorboard" / Path(result["checkpoint"]).stem).is_dir()


def test_same_seed_gives_the_same_bits_twice_in_one_process(capsys: CaptureFixture[str]) -> None:
    first, second = (run("LISASoft", "ml-100k", config_dict=SMALL_LISA) for _ in range(2))
    other = run("LISASoft", "ml-100k", config_dict={**SMALL_LISA, "seed": 3})
    for key in ("loss", "valid", "test"):
        assert first[key] == second[key] != other[key]
    assert same_bits(first["checkpoint"], second["checkpoint"])
    assert len({first["log"], second["log"], other["log"]}) == 3
    assert Path(first["log"]).read_text().count("epoch 1 training") == 1
    handlers = [type(handler) for handler in logging.getLogger().handlers]
    assert logging.FileHandler not in handlers


def test_a_run_without_targets_reports_what_it_has(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    settings = tiny_settings(tmp_path, eval_args={"split": {"LS": "valid_only"}}, epochs=1, test_step=1)
    result = run(TinyModel, "tiny", config_dict=settings | {"per_user_file": "users.csv"})
    assert (result["test"], result["curve"], result["epochs_run"], result["per_user_file"]) == (None, [], 1, None)
    assert f"ndcg@10    {result['valid']['ndcg@10']:.4f}         -" in capsys.readouterr().out

    write_interactions(tmp_path, "one", [("u", "a", 1), ("u", "b", 2)])
    (tmp_path / "a.yaml").write_text("epochs: 3\nseed: 5\nresult_file: r.json\n")
    settings = tiny_settings(tmp_path, checkpoint_dir="one_saved")
    del settings["epochs"]
    given: dict[str, Any] = {"config_files": ["a.yaml"], "command_line": {"seed": "6", "topk": "[1]"}}
    given["command_line"]["valid_metric"] = "NDCG@1"
    with pytest.raises(UsageError, match=r"no history is long enough for a test item: .* of 1 has 2 .* takes 3"):
        run(TinyModel, "one", config_dict=settings, **given)
    assert not Path("one_saved").exists()
    result = run(TinyModel, "one", config_dict={**settings, "eval_args": {"split": {"RS": [1, 0, 0]}}}, **given)
    assert [result[key] for key in ("valid", "test", "epochs_run", "seed")] == [None, None, 3, 6]
    assert json.loads(Path("r.json").read_text()) == result
    assert Path(result["checkpoint"]).is_file()
    assert "-              -         -" in capsys.readouterr().out


@pytest.mark.parametrize("step", ["write_result", "print", "draw_codebooks"])
def test_a_step_of_the_report_that_fails_leaves_the_others(
    tmp_path: Path, capsys: CaptureFixture[str], monkeypatch: MonkeyPatch, step: str
) -> None:
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(f"recbole_lisa.quick_start.{step}", full, raising=False)
    settings = tiny_settings(tmp_path, epochs=1, result_file="r.json", codebook_plot="c.png")
    with pytest.raises(OSError, match="No space left"):
        run(TinyModel, "tiny", config_dict=settings)
    assert Path("r.json").is_file() is (step != "write_result")
    assert ("ndcg@10 " in capsys.readouterr().out) is (step != "print")
    assert "ndcg@10 " in next(Path("log").rglob("*.log")).read_text()


def test_every_file_of_the_report_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    settings = tiny_settings(tmp_path, epochs=1, result_file="r.json", per_user_file="u.csv")
    for step, name in (("write_result", "r.json"), ("write_per_user", "u.csv")):
        full = Mock(side_effect=OSError(28, "No space left on device", name))
        monkeypatch.setattr(f"recbole_lisa.quick_start.{step}", full)
    with pytest.raises(OSError, match="No space left"):
        run(TinyModel, "tiny", config_dict=settings)
    log = next(Path("log").rglob("*.log")).read_text()
    assert all(f"'{name}' cannot be written: No space left on device" in log for name in ("r.json", "u.csv"))


@pytest.mark.parametrize("failures", [1, 99], ids=["for a while", "to the end"])
def test_a_full_disk_of_checkpoints_leaves_the_metrics_and_the_result(
    tmp_path: Path, capsys: CaptureFixture[str], monkeypatch: MonkeyPatch, failures: int
) -> None:
    settings = tiny_settings(tmp_path, epochs=3)
    expected = run(TinyModel, "tiny", config_dict=settings)
    capsys.readouterr()
    calls = []

    def full(state: Any, path: Any) -> None:
        calls.append(path)
        if len(calls) <= failures:
            raise OSError(28, "No space left on device", str(path))
        save_checkpoint(state, path)

    monkeypatch.setattr("recbole_lisa.training.checkpoint_file.save_checkpoint", full)
    settings.update(result_file="r.json", checkpoint_dir=str(tmp_path / "full"))
    with pytest.raises(OSError, match=r"No space left on device: '.*full/.*\.pth'") if failures > 1 else nullcontext():
        run(TinyModel, "tiny", config_dict=settings)
    result = json.loads(Path("r.json").read_text())
    assert {key: result[key] for key in ("valid", "test")} == {key: expected[key] for key in ("valid", "test")}
    assert (result["checkpoint"] is None) is (failures > 1)
    if failures == 1:
        assert same_bits(result["checkpoint"], expected["checkpoint"]) and last_file(result["checkpoint"]).is_file()
    shown = capsys.readouterr()
    assert "ndcg@10 " in shown.out
    assert shown.err.count("No space left on device; the training continues") == 1
    with pytest.raises(OSError, match="No space left"):  # an observer, as of a search, needs the files
        failures = len(calls) + 9
        run_configured(tiny_config(tmp_path, epochs=1, checkpoint_dir="new"), observe=lambda _: None)


def test_full_disks_are_one_line_each(tmp_path: Path, capfd: CaptureFixture[str], monkeypatch: MonkeyPatch) -> None:
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("tensorboard.summary.writer.record_writer.RecordWriter.write", full)
    monkeypatch.setattr("recbole_lisa.training.logging._RunFile.flush", full)
    result = run(TinyModel, "tiny", config_dict=tiny_settings(tmp_path, epochs=2))
    shown = capfd.readouterr().err
    assert Path(result["checkpoint"]).is_file()
    assert shown.count("'log_tensorboard' cannot be written: No space left on device; the run has no curves") == 1
    assert shown.count(".log' cannot be written: [Errno 28] No space left on device") == 1
    assert "Traceback" not in shown and "Exception in" not in shown


def test_files_that_another_run_has_written_meanwhile_are_kept(tmp_path: Path) -> None:
    names = {"result_file": "r.json", "per_user_file": "u.csv"}

    def other(_: Any) -> None:
        for name in names.values():
            Path(name).write_text("of the other run")

    result = run_configured(tiny_config(tmp_path, epochs=1, **names), prepare=other)
    assert [Path(name).read_text() for name in names.values()] == ["of the other run"] * 2
    assert json.loads(Path("r-2.json").read_text()) == result
    assert result["per_user_file"] == str(tmp_path / "u-2.csv")
    assert Path("u-2.csv").read_text().startswith("user_id,")
    run_configured(tiny_config(tmp_path, epochs=1, overwrite=True, **names), prepare=other)
    assert json.loads(Path("r.json").read_text())["per_user_file"] == str(tmp_path / "u.csv")


def test_diverged_training_stops_with_the_place() -> None:
    settings = {**SMALL_LISA, "learning_rate": 1e30}
    with pytest.raises(TrainingDivergedError, match=r"in epoch \d+, batch \d+ of \d+, at learning rate 1e\+30"):
        run("LISASoft", "ml-100k", config_dict=settings)
    (log,) = Path("log/LISASoft").glob("*.log")
    assert "the run stopped: TrainingDivergedError" in log.read_text()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"topk": [102], "valid_metric": "NDCG@102"}, "the 102 best of only 101 candidates"),
        ({"result_file": "./a.json", "per_user_file": "a.json"}, "result_file and per_user_file are both 'a.json'"),
        ({"result_file": "old.json"}, "'old.json' exists: pass overwrite=True to replace it, or name another file"),
        ({"result_file": "r.txt"}, r"result_file is 'r\.txt', it must end in \.json"),
        ({"codebook_plot": "x.pdf"}, r"codebook_plot is 'x\.pdf', it must end in \.png"),
        ({"codebook_plot": "old.png"}, "'old.png' exists: pass overwrite=True to replace it, or name another file"),
        ({"checkpoint_dir": ""}, "the path of the output is empty: name a folder"),
        ({"resume": " "}, "resume is empty"),
    ],
)
def test_mistakes_stop_the_run_before_the_training(settings: dict[str, Any], message: str) -> None:
    for name in ("old.json", "old.png"):
        Path(name).write_text("old")
    with pytest.raises(UsageError, match=message):
        run("LISASoft", "ml-100k", protocol="paper", config_dict={**SMALL_LISA, **settings})
    assert not list(Path().glob("saved/*"))


def test_an_output_replaces_no_input(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, epochs=1, overwrite=True, item_codes="codes.npz", resume="old.pth")
    Path("mine.yaml").write_text("seed: 1")
    of_data = [tmp_path / "tiny" / f"tiny.{ending}" for ending in ("inter", "item", "train.inter")]
    saved = tmp_path / "saved" / "tiny-0.dataset" / "manifest.json"
    saved.parent.mkdir(parents=True)
    for path in (*of_data[1:], saved):
        path.touch()
    for path in (*of_data, saved, Path("mine.yaml"), Path("codes.npz"), Path("old.pth")):
        with pytest.raises(UsageError, match=f"'{path}' is the input, too: name another file for the output"):
            run("LISABase", "tiny", config_files="mine.yaml", config_dict={**settings, "result_file": str(path)})


def test_a_whole_run_needs_moderate_memory_and_neither_ray_nor_arguments() -> None:
    program = (
        "import sys\n"
        "from recbole_lisa.environment import peak_memory_mb\n"
        "from recbole_lisa.quick_start import run\n"
        "imports = peak_memory_mb()\n"  # 450 MB with torch for the CPU, 750 MB with torch for CUDA
        f"result = run('LISASoft', 'ml-100k', config_dict={SMALL_LISA!r})\n"
        "assert 'ray' not in sys.modules\n"
        "assert result['peak_memory_mb'] - imports < 550, (result['peak_memory_mb'], imports)\n"
    )
    assert "hit@10" in run_python(program, "--epochs=9")[0]


def test_an_observer_sees_the_metrics_and_the_checkpoints_of_every_validation(tmp_path: Path) -> None:
    seen: list[tuple[int, dict[str, float], int]] = []

    def observe(trainer: Any) -> None:
        saved = load_checkpoint(last_file(trainer.saved_model_file))["epoch"]
        seen.append((len(trainer.history), trainer.history[-1]["valid"], saved))

    result = run_configured(tiny_config(tmp_path, epochs=4, eval_step=2), observe=observe)
    assert [(epochs, saved) for epochs, _, saved in seen] == [(2, 1), (4, 3)]
    assert result["valid"] == max((metrics for _, metrics, _ in seen), key=lambda metrics: metrics["ndcg@10"])


def test_a_second_run_in_a_thread_is_refused_and_gradients_are_on(tmp_path: Path) -> None:
    refused: list[str] = []

    def second() -> None:
        with pytest.raises(UsageError, match="another run is going on in a thread of this process") as caught:
            run_configured(tiny_config(tmp_path, epochs=1))
        refused.append(str(caught.value))

    def observe(_: Any) -> None:
        thread = Thread(target=second)
        thread.start()
        thread.join()

    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            losses = run_configured(tiny_config(tmp_path, epochs=2, overwrite=True), observe=observe)["loss"]
        assert losses[1] < losses[0]
    assert refused


def test_a_class_of_recbole_trains_on_last_positions_or_is_refused(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, epochs=1, hidden_size=8, inner_size=8)
    result = run(SASRec, "tiny", config_dict=settings)
    assert result["config"]["supervision"] == "last_position"
    assert "supervision is last_position: SASRec of RecBole trains on one target" in Path(result["log"]).read_text()
    pairs = {"loss_type": "BPR", "train_neg_sample_args": {"distribution": "uniform"}}
    with pytest.raises(UsageError, match="SASRec needs one negative a row"):
        run(SASRec, "tiny", config_dict={**settings, **pairs})
    with pytest.raises(UsageError, match=r"BERT4Rec needs masked items \(mask_itemseq\)"):
        run(BERT4Rec, "tiny", config_dict=settings)
