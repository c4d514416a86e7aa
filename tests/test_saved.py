from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.standin import FIELDS, Catalogue, default_settings
from recbole_lisa.attention import FullAttention
from recbole_lisa.cli.main import main
from recbole_lisa.errors import UsageError
from recbole_lisa.layers.sequence_encoder import ItemView
from recbole_lisa.model.attentive_recommender import AttentiveRecommender
from recbole_lisa.model.sequential_recommender.lisabase import LISABase
from recbole_lisa.model.sequential_recommender.transformer import Transformer
from recbole_lisa.quick_start import run
from recbole_lisa.saved import bundle_of, bundle_of_checkpoint, check_scores, export, load_data_and_model
from recbole_lisa.serving import Recommender
from recbole_lisa.training.checkpoint import load_checkpoint, save_checkpoint
from tests.helpers import assert_close
from tests.model.build import build_model
from tests.serving.build import IDS
from tests.tiny import tiny_settings


class TwoHeads(Transformer):
    def build_layer(self, config: Any, index: int) -> FullAttention:
        return FullAttention(hidden_size=config["hidden_size"], n_heads=2)


class OtherTargets(LISABase):
    def target(self, x: Tensor, quantized: Any) -> Tensor:
        return 2 * quantized.reconstruction


class UnknownModel(Transformer):
    def build_layer(self, config: Any, index: int) -> FullAttention:
        return type("UnknownAttention", (FullAttention,), {})(hidden_size=config["hidden_size"])


def subclass_model(model: type[Any], base: str) -> Any:
    settings = FIELDS | default_settings(base) | {"hidden_size": 16, "inner_size": 16, "MAX_ITEM_LIST_LENGTH": 9}
    return model(settings, Catalogue(30))


def test_a_subclass_is_exported_when_its_scores_are_equal_and_else_refused() -> None:
    model = subclass_model(TwoHeads, "Transformer").double()
    bundle = bundle_of(model, IDS[1:], "small")
    assert check_scores(model, Recommender(bundle)) < 1e-9
    assert (bundle.model, bundle.encoder["layers"]) == ("TwoHeads", [["full", {"hidden_size": 16, "n_heads": 2}]])
    model = subclass_model(OtherTargets, "LISABase")
    with pytest.raises(UsageError, match="OtherTargets cannot be exported: its export scores items differently, by"):
        check_scores(model, Recommender(bundle_of(model, IDS[1:], "small")))
    with pytest.raises(UsageError, match="UnknownModel cannot be exported: UnknownAttention is not in MECHANISMS"):
        bundle_of(subclass_model(UnknownModel, "Transformer"), IDS[1:], "small")


@pytest.mark.parametrize("name", ["LISABase", "LISASoft", "LISAMini", "Transformer"])
def test_the_items_are_those_of_the_model_without_padding(name: str) -> None:
    model = build_model(name).eval()
    with torch.no_grad():
        expected, view = model.item_view(), model.item_store().view(torch.arange(29))
    store: ItemView = view
    assert_close(store.target, expected.target[1:])
    if model.item_store().view(torch.arange(1)).quantized is not None and name != "LISASoft":
        assert expected.quantized is not None and store.quantized is not None
        assert torch.equal(store.quantized.codes, expected.quantized.codes[1:].long())
        assert_close(store.stream, expected.stream[1:])


def test_the_bundle_does_not_follow_the_model() -> None:
    model = build_model("LISABase").double()
    recommender = Recommender(bundle_of(model, IDS[1:], "small"))
    before = recommender.recommend([["item 1"]], 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    assert recommender.recommend([["item 1"]], 3) == before


def test_a_checkpoint_is_exported_without_its_data_and_its_users_need_them(
    isolated_run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"epochs": 1, "hidden_size": 16, "inner_size": 16, "n_codebooks": 2, "n_codewords": 8}
    checkpoint = run("LISABase", "tiny", config_dict=tiny_settings(isolated_run_dir, **sizes))["checkpoint"]
    expected = Recommender(bundle_of_checkpoint(checkpoint)[0]).recommend([["i1", "i2"]], 5)
    state = load_checkpoint(checkpoint)
    del state["item_ids"]
    save_checkpoint(state, "old.pth")
    Path("moved").mkdir()
    Path("tiny").rename("moved/tiny")
    assert main(["export", f"--checkpoint={checkpoint}", "--output=export"]) == 0
    assert Recommender.load("export").recommend([["i1", "i2"]], 5) == expected
    old = ["export", "--checkpoint=old.pth", "--output=old"]
    for command in (["recommend", f"--checkpoint={checkpoint}", "--output=x.csv"], old):
        assert main(command) == 2
        assert f" {isolated_run_dir / 'tiny' / 'tiny.inter'} " in capsys.readouterr().err
    assert main([*old, "--data_path=moved"]) == 0


@pytest.mark.usefixtures("isolated_run_dir")
def test_a_class_outside_of_the_registry_is_named_and_exported(tmp_path: Path) -> None:
    path = run(TwoHeads, "tiny", config_dict=tiny_settings(tmp_path, epochs=1, hidden_size=16))["checkpoint"]
    with pytest.raises(UsageError, match="a model of the class TwoHeads, which is not in the registry: pass model=Two"):
        load_data_and_model(path)
    assert export(path, tmp_path / "export", model=TwoHeads)["model"] == "TwoHeads"
    with pytest.raises(UsageError, match="a checkpoint must be a path, got None"):
        export(None, tmp_path / "other")  # type: ignore[arg-type]  # a user's mistake
    with pytest.raises(UsageError, match="the folder of an export must be a path, got None"):
        Recommender.load(None)  # type: ignore[arg-type]  # a user's mistake


def test_a_class_without_layers_is_named() -> None:
    for name, body in (("must define build_layer", {}), ("it returned None", {"build_layer": lambda *_: None})):
        with pytest.raises(TypeError, match=name):
            subclass_model(type("NoLayer", (AttentiveRecommender,), body), "Transformer")


@pytest.mark.usefixtures("isolated_run_dir")
def test_forged_checkpoints_are_refused_before_memory_is_allocated(tmp_path: Path) -> None:
    sizes = {"epochs": 1, "hidden_size": 16, "inner_size": 16, "n_codebooks": 2, "n_codewords": 8}
    path = run("LISAMini", "tiny", config_dict=tiny_settings(tmp_path, **sizes))["checkpoint"]
    for changes, message in (
        ({"hidden_size": 10**12}, "build no model .*overflowed"),
        ({"hidden_size": 18}, r"has the shape \(31, 16\), the settings give \(31, 18\): leave changed settings out"),
        ({"inner_size": 10**12}, "the settings give"),
        ({"MAX_ITEM_LIST_LENGTH": 10**12}, "the settings give"),
        ({"n_codewords": 10**9}, "the settings give"),
        ({"n_target_codewords": 10**9}, "the settings give"),
        ({"n_layers": 10**9}, "parameters, its settings 1000000000 layers"),
        ({"train_neg_sample_args": "x"}, "is damaged: its settings cannot be read|train_neg_sample_args"),
        ({"data_path": None}, "is damaged: its settings cannot be read"),
    ):
        state = load_checkpoint(path)
        state["config"].update(changes)
        save_checkpoint(state, "forged.pth")
        for load in (load_data_and_model, lambda file: export(file, "export")):
            with pytest.raises(UsageError, match=message):
                load("forged.pth")
    for key in ("model", "config", "state_dict", "other_parameter", "item_ids"):
        for value in (5, [1]):
            save_checkpoint({**load_checkpoint(path), key: value}, "forged.pth")
            with pytest.raises(UsageError, match=f"'forged.pth' is damaged: its {key} is of another kind"):
                export("forged.pth", "export")
    assert not Path("export").exists()
    with pytest.raises(UsageError, match=r"the settings give \(31, 18\)"):
        load_data_and_model(path, config_dict={"hidden_size": 18})
    with pytest.raises(UsageError, match=r"config_dict is \[1\], it must hold settings by key"):
        load_data_and_model(path, config_dict=[1])  # type: ignore[arg-type]  # a user's mistake


@pytest.mark.usefixtures("isolated_run_dir")
def test_export_takes_titles_as_the_command_does(tmp_path: Path) -> None:
    path = run("Transformer", "tiny", config_dict=tiny_settings(tmp_path, epochs=1, hidden_size=16))["checkpoint"]
    Path("t.csv").write_text("item_id,title\ni5,Up\ngone,x\n")
    for titles in ("t.csv", Path("t.csv"), {"i5": "Up", "gone": "x"}):
        export(path, "export", titles=titles, overwrite=True)
        assert Recommender.load("export").bundle.titles == {"i5": "Up"}
    Path("t.csv").write_text("item_id,title\ni5,Up\ni5,Down\n")
    with pytest.raises(UsageError, match="'t.csv' gives the item 'i5' two titles, 'Up' and 'Down'"):
        export(path, "export", titles="t.csv", overwrite=True)
