"""Used codewords and perplexity in the log, the result, TensorBoard's file and a plot; a warning on collapse."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pytest import LogCaptureFixture, MonkeyPatch
from recbole.data.interaction import Interaction

from recbole_lisa.quick_start import run
from recbole_lisa.training.codebook_usage import SAMPLED_WINDOWS, codebook_usage, collapsed, draw_codebooks, log_line
from tests.model.build import build_model, random_batch
from tests.tiny import SMALL, tiny_config, tiny_settings, tiny_trainer


@pytest.mark.parametrize(
    ("name", "settings", "sets"),
    [
        ("LISABase", {}, {"history": 4}),
        ("LISASoft", {}, {"history": 4}),
        ("LISAMini", {}, {"history": 4, "target": 6}),
        ("Transformer", {"quantize_items": True}, {"history": 4}),
        ("Transformer", {}, {}),
        ("LinearTransformer", {}, {}),
    ],
)
def test_every_quantiser_of_items_is_watched(name: str, settings: dict[str, Any], sets: dict[str, int]) -> None:
    model = build_model(name, **settings).eval()
    usage = codebook_usage(model)
    assert {name: entry["n_codewords"] for name, entry in usage.items()} == sets
    if sets:
        codes = model.item_view().quantized.codes[1:]
        assert usage["history"]["used"] == [len(codes[:, b].unique()) for b in range(3)]


@pytest.mark.parametrize("name", ["LISABase", "LISASoft", "LISAMini"])
def test_layers_that_quantise_their_own_input_are_watched(name: str) -> None:
    model = build_model(name, n_layers=3).train()
    batch = Interaction(random_batch(9, 7, 30))
    requested: list[int] = []

    def sample(most: int) -> Interaction:
        requested.append(most)
        return batch

    usage = codebook_usage(model, SimpleNamespace(sample=sample))
    assert model.training and requested == [SAMPLED_WINDOWS]
    model.eval()
    history = model.history(batch)
    for layer, h in enumerate(model.encoder.layer_inputs(history, model.item_view())[1:], start=1):
        codes = model.encoder.attentions[layer].codebook(h[history.valid]).codes
        entry = usage[f"layer {layer + 1}"]
        assert entry["n_codewords"] == 4
        assert entry["used"] == [len(codes[:, b].unique()) for b in range(3)]
    assert set(usage) - set(codebook_usage(model)) == {"layer 2", "layer 3"}
    assert codebook_usage(build_model("Transformer", n_layers=2), SimpleNamespace(sample=sample)) == {}


def test_large_catalogues_are_sampled(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr("recbole_lisa.model.attentive_recommender.MAX_WATCHED", 10)
    model = build_model("LISABase", n_items=30)
    original, rows = model.embed, []
    monkeypatch.setattr(model, "embed", lambda ids: (rows.append(len(ids)), original(ids))[1])
    codebook_usage(model)
    assert sum(rows) == 10


def test_few_codewords_for_most_items_is_a_collapse() -> None:
    for n_codewords, n_items, perplexity, expected in (
        (128, 1000, [1.0, 12.8, 12.9, 128.0], [0, 1]),
        (128, 20, [2.0, 2.1], [0]),
        (2, 1000, [1.0, 1.04, 1.2], [0, 1]),
        (1, 1000, [1.0], []),
        (8, 1, [1.0], []),
    ):
        assert collapsed({"n_codewords": n_codewords, "perplexity": perplexity}, n_items) == expected


def test_a_run_logs_and_draws_and_measuring_changes_nothing(isolated_run_dir: Path, monkeypatch: MonkeyPatch) -> None:
    plot = isolated_run_dir / "plots" / "codebooks.png"
    settings = tiny_settings(isolated_run_dir, **SMALL | {"epochs": 2, "n_layers": 2})
    result = run("LISABase", "tiny", config_dict={**settings, "result_file": "r.json", "codebook_plot": str(plot)})
    codebooks = json.loads(Path("r.json").read_text())["codebooks"]
    assert codebooks == result["codebooks"]
    assert [list(entry) for entry in codebooks] == [["epoch", "history", "layer 2"]] * 2
    assert [entry["epoch"] for entry in codebooks] == [1, 2]
    assert codebooks[1]["history"]["n_codewords"] == 8
    log, curves = Path(result["log"]).read_text(), b"".join(f.read_bytes() for f in Path().rglob("*tfevents*"))
    for name in ("history", "layer 2"):
        assert log_line(1, name, codebooks[1][name]) in log
        assert f"Codebooks/{name.replace(' ', '_')}_2_perplexity".encode() in curves
    assert "epoch 2 history codebooks: used codewords " in log
    assert plot.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr("recbole_lisa.training.trainer.watch_codebooks", lambda *_: [])
    assert run("LISABase", "tiny", config_dict=settings)["test"] == result["test"]


def test_a_collapse_is_warned_of_once(isolated_run_dir: Path, caplog: LogCaptureFixture) -> None:
    from recbole_lisa.model.sequential_recommender.lisabase import LISABase

    config = tiny_config(isolated_run_dir, model=LISABase, **SMALL | {"epochs": 3, "learning_rate": 1e-9})
    trainer, (train, _, _) = tiny_trainer(config)
    with torch.no_grad():
        trainer.model.item_embedding.weight[1:] = trainer.model.item_embedding.weight[1].clone()
    with caplog.at_level(logging.WARNING):
        trainer.fit(train)
    warnings = [r.message for r in caplog.records if "collapsed" in r.message]
    assert len(warnings) == 1
    start = "epoch 1: collapsed codebooks, where most items share few codewords: history 1, history 2;"
    assert warnings[0].startswith(start)


def test_models_without_codebooks_have_no_lines_and_no_plot(isolated_run_dir: Path, caplog: LogCaptureFixture) -> None:
    trainer, (train, _, _) = tiny_trainer(tiny_config(isolated_run_dir, epochs=1))
    trainer.fit(train)
    assert "codebooks" not in trainer.history[0]
    draw_codebooks(trainer.history, str(isolated_run_dir / "x.png"))
    assert "the model has no codebooks, nothing is drawn" in caplog.text
    assert not (isolated_run_dir / "x.png").exists()
