import json
from pathlib import Path

import pytest
import torch

from benchmarks import main, serving
from benchmarks.measure import CheckError

SIZES = serving.Sizes(n_items=70, width=8, n_codebooks=2, n_codewords=4, k=5, length=3)
ARGUMENTS = ["--items=70", "--width=8", "--codebooks=2", "--codewords=4", "--k=5", "--history=3", "--batches", "1", "3"]


def test_it_measures_both_sides_of_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--lengths", "4", "300", "--sessions=6", "--repeats=1", "--threads=1", f"--output={tmp_path / 'r'}"]
    assert main(["serving", *ARGUMENTS, *more]) == 0
    document = json.loads((tmp_path / "r.json").read_text())
    assert "command: python -m benchmarks serving --items=70" in document["header"]
    assert [record["histories"] for record in document["ranking"]] == [1, 3]
    for record in document["ranking"]:
        assert min(record[side]["median"] for side in ("packed", "dense")) > 0
        assert min(record["packed_mb"], record["dense_mb"]) > 0
    assert [record["length"] for record in document["steps"]] == [4, 300]
    assert len({record["session_bytes"] for record in document["steps"]}) == 1
    assert [record["cached_bytes"] for record in document["steps"]] == [2 * 4 * 8 * 4, 2 * 4 * 8 * 300]
    assert all(record["session"]["median"] > 0 for record in document["steps"])
    printed = capsys.readouterr().out
    assert "The 5 best of 70 items, D = 8, B = 2, W = 4" in printed
    assert "6 sessions in one batch" in printed


@torch.no_grad()
def test_a_ranking_that_differs_is_not_timed() -> None:
    recommender = serving.build(SIZES)
    table, hidden = serving.reconstructed(recommender), torch.randn(3, 8)
    serving.check_ranking(recommender, table, hidden, 5)
    with pytest.raises(CheckError, match="packed codes rank differently from their vectors, nothing was timed"):
        serving.check_ranking(recommender, table.flip(0), hidden, 5)


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 41])
def test_the_cached_step_equals_attention_or_is_not_timed(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    step = serving.cached_step(length, 16)
    assert torch.equal(step(), step()), "a step leaves its cache for the next sample"
    right = serving.scaled_dot_product_attention
    monkeypatch.setattr(serving, "scaled_dot_product_attention", lambda *inputs: 1.01 * right(*inputs))
    with pytest.raises(CheckError, match="the step with cached keys and values is wrong, nothing was timed"):
        serving.cached_step(length, 16)
