"""The result of a run: complete, plain, written whole, laid out for reading."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from recbole_lisa.quick_start import run_configured
from recbole_lisa.training.result import collect_result, result_table, write_result
from tests.tiny import ConstantModel, TinyModel, tiny_config, tiny_trainer

KEYS = {
    *("model", "dataset", "protocol", "eval_seen", "seed", "valid", "test", "best_epoch", "epochs_run", "seconds"),
    *("seconds_per_epoch", "nproc", "sequences_per_second", "peak_memory_mb", "peak_gpu_memory_mb", "device"),
    *("checkpoint", "log", "per_user_file", "versions"),
    *("tied_targets", "loss", "codebooks", "valid_curve", "curve", "config"),
}


def result_of(folder: Path, protocol: str, **settings: Any) -> dict[str, Any]:
    trainer, (train, valid, test) = tiny_trainer(tiny_config(folder, protocol, **settings))
    trainer.fit(train, valid, test_data=test)
    return collect_result(trainer, trainer.evaluate(test), seconds=12.5, log_file=folder / "run.log")


@pytest.mark.usefixtures("isolated_run_dir")
def test_result_describes_a_validated_run(tmp_path: Path) -> None:
    result = result_of(tmp_path, "full_ranking", epochs=3, test_step=1, seed=11)
    assert result.keys() == KEYS
    given = [result[key] for key in ("model", "dataset", "protocol", "seed")]
    assert given == ["TinyModel", "tiny", "full_ranking", 11]
    assert result["epochs_run"] == len(result["loss"]) == len(result["curve"]) == 3
    assert result["curve"][result["best_epoch"] - 1] == {"epoch": result["best_epoch"], **result["test"]}
    assert result["valid"].keys() == result["test"].keys()
    assert result["valid_curve"][result["best_epoch"] - 1] == {"epoch": result["best_epoch"], **result["valid"]}
    assert 0 < result["seconds_per_epoch"] < 12.5 == result["seconds"]
    assert 50 < result["peak_memory_mb"] < 8000
    assert result["peak_gpu_memory_mb"] is None
    assert Path(result["checkpoint"]).is_file()
    assert {"python", "torch", "numpy", "recbole", "recbole-lisa"} <= result["versions"].keys()
    assert result["config"]["learning_rate"] == 0.05
    result = result_of(tmp_path, "paper", epochs=3, test_step=3)
    assert (result["valid"], result["best_epoch"]) == (None, 3), "without validation the last epoch is tested"
    assert result["curve"] == [{"epoch": 3, **result["test"]}]


def test_written_result_is_strict_json(tmp_path: Path) -> None:
    result = {"valid": None, "loss": [0.5, math.inf], "config": {"betas": (0.9, math.nan)}, "name": "ä"}
    write_result(result, tmp_path / "deep" / "r.json")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = (tmp_path / "deep" / "r.json").read_text(encoding="utf-8")
    expected = {"valid": None, "loss": [0.5, "inf"], "config": {"betas": [0.9, "nan"]}, "name": "ä"}
    assert json.loads(text, parse_constant=refuse) == expected


def test_table_sets_validation_beside_test() -> None:
    result = {
        **{"model": "LISASoft", "dataset": "ml-100k", "protocol": "full_ranking", "seed": 1, "seconds": 3.14},
        **{"best_epoch": 2, "epochs_run": 5, "checkpoint": "saved/run.pth", "config": {"metric_decimal_place": 4}},
        "valid": {"hit@5": 0.25, "ndcg@10": 0.125},
        "test": {"hit@5": 0.5, "ndcg@10": 0.0625},
    }
    assert result_table(result).splitlines() == [
        "LISASoft on ml-100k, protocol full_ranking, seed 1: best epoch 2 of 5, 3.1 s",
        "metric      valid      test",
        "---------------------------",
        "hit@5      0.2500    0.5000",
        "ndcg@10    0.1250    0.0625",
        "checkpoint: saved/run.pth",
    ]
    shown = result_table({**result, "config": {"metric_decimal_place": 6}})
    assert "hit@5    0.250000  0.500000" in shown, "more places are shown, fewer than four are not"
    assert "hit@5           -    0.5000" in result_table({**result, "valid": None})
    assert "hit@5      0.2500         -" in result_table({**result, "test": None})
    assert result_table({**result, "valid": None, "test": None}).splitlines()[1:4] == [
        "metric     valid      test",
        "--------------------------",
        "-              -         -",
    ]


@pytest.mark.parametrize(("model", "protocol", "tied"), [(ConstantModel, "paper", 1.0), (TinyModel, "full_ranking", 0)])
def test_tied_targets_are_reported(isolated_run_dir: Path, model: type[Any], protocol: str, tied: float) -> None:
    result = run_configured(tiny_config(isolated_run_dir, protocol, model, epochs=1))
    assert result["tied_targets"] == tied
    line = "100.00% of the test targets have the same score as another item"
    assert (line in Path(result["log"]).read_text()) == (tied > 0)
