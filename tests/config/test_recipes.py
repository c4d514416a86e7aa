"""Recipes: what they set, for which models, and what is stronger."""

from pathlib import Path
from typing import Any

import pytest

from recbole_lisa.config.config import LISAConfig
from recbole_lisa.config.model_defaults import model_defaults
from recbole_lisa.config.properties import properties_path
from recbole_lisa.config.registry import MODELS, model_class
from recbole_lisa.config.schema import declared_keys, read_yaml
from recbole_lisa.errors import UsageError
from recbole_lisa.quick_start import run
from recbole_lisa.saved import load_bundle
from recbole_lisa.serving import Recommender
from recbole_lisa.training.resuming import differences
from recbole_lisa.tuning.trial import build_config
from tests.serving.build import assert_equal
from tests.tiny import tiny_settings

FOLDER = properties_path() / "recipe"
RECIPES = sorted(file.stem for file in FOLDER.iterdir())
OF_THE_PAPER = ("LISABase", "LISASoft", "LISAMini", "Transformer", "LinearTransformer", "Linformer", "Reformer")


def build(model: Any = "LISASoft", dataset: str = "ml-100k", **settings: Any) -> LISAConfig:
    return LISAConfig(model, dataset, config_dict=settings)


def test_the_recipes_are_those_of_the_documents() -> None:
    assert RECIPES == ["esasrec", "modern", "paper", "sasrec_plus"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_key_of_a_recipe_is_a_setting_of_every_model(recipe: str) -> None:
    overall = declared_keys(properties_path() / "overall.yaml")
    keys = read_yaml(FOLDER / f"{recipe}.yaml").keys() - overall.keys() - {"stopping_step"}
    assert keys <= model_defaults(model_class("LISASoft")).keys()


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("model", MODELS)
def test_a_recipe_holds_for_every_model(model: str, recipe: str) -> None:
    config = build(model, recipe=recipe)
    expected = read_yaml(FOLDER / f"{recipe}.yaml")
    sampling = expected.pop("train_neg_sample_args", {})
    if "inner_size" in expected:
        assert config["inner_size"] == {"4x": 256}.get(expected.pop("inner_size"), 64)
    lacking = set(expected) - config.plain().keys()
    assert lacking <= {"local_window"}
    assert bool(lacking) is any(note == f"recipe {recipe}: {model} has no local_window" for note in config.notes)
    keys = expected.keys() - lacking
    assert {key: config[key] for key in keys} == {key: expected[key] for key in keys}
    assert config["train_neg_sample_args"].items() >= sampling.items()
    assert config["recipe"] == recipe
    assert (config["train_neg_sample_args"]["distribution"] == "none") is (config["loss_type"] == "CE")


@pytest.mark.parametrize("protocol", ["paper", "full_ranking"])
@pytest.mark.parametrize("model", OF_THE_PAPER)
def test_the_recipe_paper_is_the_defaults(model: str, protocol: str) -> None:
    plain = build(model, protocol=protocol).plain()
    assert build(model, protocol=protocol, recipe="paper").plain() == {**plain, "recipe": "paper"}


def test_a_recipe_is_stronger_than_our_files_and_weaker_than_the_users(tmp_path: Path) -> None:
    config = build(recipe="esasrec", protocol="paper")
    # In that order: of the model, of the data set ml-100k too, of the protocol.
    assert [config[key] for key in ("hidden_size", "MAX_ITEM_LIST_LENGTH", "epochs")] == [64, 200, 100]
    assert config["eval_args"]["split"] == {"LS": "test_only"}
    file = tmp_path / "mine.yaml"
    file.write_text("recipe: sasrec_plus\nhidden_size: 32\nn_layers: 3\n", encoding="utf-8")
    config = LISAConfig("LISASoft", "ml-100k", config_files=file, command_line={"n_layers": "4"})
    assert [config[key] for key in ("hidden_size", "n_layers", "loss_type")] == [32, 4, "CE"]
    config = LISAConfig("LISASoft", "ml-100k", config_files=file, command_line={"recipe": "modern"})
    assert [config[key] for key in ("recipe", "hidden_size", "loss_type")] == ["modern", 32, "CE"]
    config = LISAConfig("LISASoft", "ml-100k", config_files=file, command_line={"recipe": "~"})
    assert [config[key] for key in ("recipe", "hidden_size", "loss_type")] == [None, 32, "BCE"]


def test_settings_that_a_model_of_recbole_lacks_are_left_out_and_noted() -> None:
    from recbole.model.sequential_recommender import SASRec

    config = build(SASRec, recipe="sasrec_plus")
    assert [config[key] for key in ("hidden_size", "n_layers", "loss_type")] == [64, 2, "CE"]
    assert "block" not in config
    assert [note for note in config.notes if note.startswith("recipe sasrec_plus: SASRec has no ")]


def test_a_saved_run_does_not_need_its_recipe_and_a_search_takes_it() -> None:
    config = build(recipe="modern", hidden_size=32)
    again = LISAConfig.from_plain(config.plain())
    assert again.plain() == {**config.plain(), "recipe": None}
    assert differences({"config": config.plain()}, again.plain()) == []
    trial = build_config({"model": "LISASoft", "dataset": "ml-100k", "recipe": "modern", "hidden_size": 32})
    assert trial.plain() == config.plain()


@pytest.mark.parametrize("recipe", ["sasrec_plus", "esasrec", "modern"])
def test_a_run_with_a_recipe_trains_and_is_exported(isolated_run_dir: Path, recipe: str) -> None:
    sizes = {"epochs": 1, "hidden_size": 16, "MAX_ITEM_LIST_LENGTH": 8, "n_codebooks": 2, "n_codewords": 4}
    result = run("LISASoft", "tiny", config_dict=tiny_settings(isolated_run_dir, recipe=recipe, **sizes))
    assert result["test"]["ndcg@10"] > 0
    recommender = Recommender(load_bundle(result["checkpoint"]))
    items = [recommender.ids.raw(n) for n in (3, 1, 4)]
    answer = recommender.recommend([items], 3)[0]
    if recipe == "esasrec":  # positions from the end change with every item
        with pytest.raises(UsageError, match="has no sessions: with positions from_end"):
            recommender.start(items)
    else:
        assert_equal(recommender.start(items).recommend(3), answer)
