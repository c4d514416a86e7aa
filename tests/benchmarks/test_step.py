import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import main, step
from benchmarks.measure import CheckError
from benchmarks.step import LISA_MODELS, Sizes, check_equal

SIZES = Sizes(n=4, length=13, n_items=40)


@pytest.mark.parametrize("name", LISA_MODELS)
def test_both_sides_compute_the_same_or_nothing_is_timed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    check_equal(name, SIZES)
    naive = step.SIDES["naive"]
    monkeypatch.setitem(step.SIDES, "naive", lambda model, batch: 1.001 * naive(model, batch))
    with pytest.raises(CheckError, match=f"the step of {name} is wrong, nothing was timed"):
        check_equal(name, SIZES)


def test_the_command_prints_and_writes_a_row_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "step --models LISASoft --batch 4 --length 9 --items 30 --repeats 2 --output"
    assert main([*arguments.split(), str(tmp_path / "step")]) == 0
    printed = capsys.readouterr().out
    assert "torch" in printed.splitlines()[0]
    assert "LISASoft" in printed
    (row,) = json.loads((tmp_path / "step.json").read_text(encoding="utf-8"))["rows"]
    assert row["ratio"] == pytest.approx(row["ours"]["median"] / row["naive"]["median"])
    assert row["naive_mb"] != row["ours_mb"]


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_mixed_precision_is_that_of_our_side_alone(amp: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dtypes: dict[str, torch.dtype] = {}
    for side, loss in step.SIDES.items():

        def note(model: Any, batch: Any, side: str = side, loss: Any = loss) -> torch.Tensor:
            dtypes[side] = (model.item_embedding.weight @ model.item_embedding.weight.t()).dtype
            return loss(model, batch)

        monkeypatch.setitem(step.SIDES, side, note)
        step.prepare_step("LISASoft", side, replace(SIZES, amp=amp))()
    assert dtypes == {"naive": torch.float32, "ours": {"bf16": torch.bfloat16, "fp16": torch.float16}[amp]}
