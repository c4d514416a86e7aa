import json
from pathlib import Path

import pytest
import torch

from benchmarks import index, main, serving
from benchmarks.measure import CheckError
from recbole_lisa.serving.export import write_export
from recbole_lisa.serving.scorer import rank

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


def test_the_index_is_compared_with_scoring_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "TRAINED_ON", 300)
    recommender = serving.build(SIZES)
    write_export(recommender.bundle, tmp_path / "export")
    arguments = ["--case=index", "--items=5000", "--width=8", "--codebooks=3", "--codewords=200", "--queries=2"]
    more = ["--repeats=1", "--threads=1", f"--export={tmp_path / 'export'}", f"--output={tmp_path / 'r'}"]
    assert main(["serving", *arguments, *more]) == 0
    records = json.loads((tmp_path / "r.json").read_text())["index"]
    assert [record["codes"] for record in records] == ["random", "residual", "product", "model"]
    assert all(min(record["all"]["median"], record["index"]["median"]) > 0 for record in records)
    assert [record["bytes_an_item"] for record in records] == pytest.approx([3, 3, 3, 2], abs=0.05)
    assert "The 10 best of 5,000 coded items" in capsys.readouterr().out
    monkeypatch.setattr(index, "rank", lambda targets, query, k: rank(targets, query, k + (targets.blocks is None)))
    assert main(["serving", *arguments, "--repeats=1"]) == 1
    assert "random codes, query 0: the list with the index differs, nothing was timed" in capsys.readouterr().err


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
