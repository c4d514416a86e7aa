"""Which value a key ends up with, and what building a configuration leaves alone."""

import copy
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from recbole.model.abstract_recommender import SequentialRecommender
from recbole.utils import InputType

from recbole_lisa.config.config import LISAConfig
from recbole_lisa.config.registry import model_class
from recbole_lisa.errors import UsageError
from tests.helpers import write_interactions


class Unregistered(SequentialRecommender):
    """A model class of a user, without a yaml file."""

    input_type = InputType.POINTWISE


def build(model: Any = "LISASoft", dataset: str = "ml-100k", **arguments: Any) -> LISAConfig:
    return LISAConfig(model, dataset, **arguments)


def yaml_file(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_each_layer_of_settings_overrides_the_weaker_ones(tmp_path: Path) -> None:
    first = yaml_file(tmp_path, "first.yaml", "epochs: 1\nseed: 1\neval_step: 1\nstopping_step: 1\n")
    second = yaml_file(tmp_path, "second.yaml", "epochs: 2\nseed: 2\neval_step: 2\n")
    config = build(config_files=[first, second], config_dict={"epochs": 3, "seed": 3}, command_line={"epochs": "4"})
    assert [config[key] for key in ("epochs", "seed", "eval_step", "stopping_step")] == [4, 3, 2, 1]


def test_our_files_override_recbole_and_the_protocol_overrides_all_of_ours() -> None:
    config = build(protocol="paper")
    assert config["protocol"] == "paper"
    assert config["load_col"] == {"inter": ["user_id", "item_id", "timestamp"]}  # RecBole's ml-100k adds rating
    assert config["normalize_all"] is False  # RecBole's ml-100k says True
    assert config["adam_betas"] == [0.9, 0.98]  # ours in overall.yaml: 0.999
    assert config["eval_args"]["split"] == {"LS": "test_only"}  # RecBole's sequential.yaml: valid_and_test
    assert config["MAX_ITEM_LIST_LENGTH"] == 200


@pytest.mark.parametrize(
    ("given", "files", "protocol"),
    [
        ({}, [], "full_ranking"),
        ({}, ["paper"], "paper"),
        ({}, ["paper", "full_ranking"], "full_ranking"),
        ({"config_dict": {"protocol": "paper"}}, ["full_ranking"], "paper"),
        ({"config_dict": {"protocol": "full_ranking"}, "command_line": {"protocol": "paper"}}, [], "paper"),
        ({"protocol": "full_ranking", "config_dict": {"protocol": "paper"}}, ["paper"], "full_ranking"),
    ],
)
def test_the_strongest_protocol_counts(tmp_path: Path, given: dict[str, Any], files: list[str], protocol: str) -> None:
    written = [yaml_file(tmp_path, f"{i}.yaml", f"protocol: {name}\n") for i, name in enumerate(files)]
    config = build(config_files=written, **given)
    assert config["protocol"] == protocol
    assert (config["adam_betas"] == [0.9, 0.98]) == (protocol == "paper")


@pytest.mark.parametrize(
    ("model", "dataset", "key", "value"),
    [
        ("LISABase", "ml-100k", "n_codewords", 128),
        ("LISABase", "ml-25m", "n_codewords", 256),
        ("LISASoft", "ml-25m", "n_codewords", 16),
        ("LISAMini", "amazon-video-games-18", "n_target_codewords", 256),
        ("LISAMini", "alibaba", "n_codewords", 32),
        ("LISAMini", "ml-1m", "n_target_codewords", 128),
    ],
)
def test_a_data_set_overrides_a_model(tmp_path: Path, model: str, dataset: str, key: str, value: int) -> None:
    write_interactions(tmp_path, dataset)
    config = build(model, dataset, config_dict={"data_path": str(tmp_path)})
    assert config[key] == value
    assert "model_settings" not in config


def test_the_parts_of_eval_args_that_are_not_set_keep_their_value() -> None:
    config = build(config_dict={"eval_args": {"mode": "uni50"}}, command_line={"eval_args": "{group_by: user}"})
    split, mode = {"LS": "valid_and_test"}, {"valid": "uni50", "test": "uni50"}
    assert config["eval_args"] == {"split": split, "order": "TO", "group_by": "user", "mode": mode}
    assert config["test_neg_sample_args"] == {"distribution": "uniform", "sample_num": 50}


@pytest.mark.parametrize(
    ("settings", "number"),
    [
        ({"train_neg_sample_args": "{sample_num: 4}"}, 4),
        *(({"loss_type": loss}, 1) for loss in ("BCE", "BPR", "gBCE", "SSM")),
    ],
)
def test_negatives_that_are_not_set_in_full_keep_their_defaults(settings: dict[str, str], number: int) -> None:
    negatives = build(command_line=settings)["train_neg_sample_args"]
    assert (negatives["distribution"], negatives["sample_num"]) == ("uniform", number)


@pytest.mark.parametrize("protocol", ["paper", "full_ranking"])
@pytest.mark.parametrize("own", [{}, {"train_neg_sample_args": None}])
def test_ce_gets_no_negatives(protocol: str, own: dict[str, Any]) -> None:
    config = build(protocol=protocol, config_dict={"loss_type": "CE", **own})
    assert config["train_neg_sample_args"]["distribution"] == "none"


@pytest.mark.parametrize(("inner_size", "width"), [("4x", 400), ("0.5x", 50), (70, 70), ("70", 70)])
def test_inner_size_is_a_number_or_a_factor(inner_size: int | str, width: int) -> None:
    config = LISAConfig("LISASoft", "ml-100k", config_dict={"inner_size": inner_size, "hidden_size": 100})
    assert config["inner_size"] == width
    assert LISAConfig.from_plain(config.plain())["inner_size"] == width


def test_the_arguments_of_the_process_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pytest", "--epochs=77", "--no_such_key=1"])
    assert build()["epochs"] == 200


def test_text_is_never_evaluated(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    text = f"__import__('pathlib').Path({str(trap)!r}).touch()"
    config = build(command_line={"result_file": text}, config_dict={"dataset_save_path": text})
    assert config["result_file"] == text
    assert config["dataset_save_path"] == text
    assert not trap.exists()


def test_the_arguments_are_not_edited() -> None:
    own = {"eval_args": {"mode": "uni100"}, "topk": [10, 5]}
    before = copy.deepcopy(own)
    config = build(config_dict=own, command_line={"train_neg_sample_args": "{sample_num: 2}"})
    config["topk"].append(1)
    assert own == before
    assert build()["topk"] == [5, 10, 20]


@pytest.mark.parametrize(
    ("gpus", "settings", "device"),
    [
        *((0, settings, "cpu") for settings in ({}, {"use_gpu": False}, {"gpu_id": 3})),
        (2, {}, "cuda"),
        (2, {"gpu_id": "1"}, "cuda:1"),
        (2, {"gpu_id": 0}, "cuda:0"),
        (2, {"gpu_id": "1,0"}, "cuda:1"),
        (2, {"use_gpu": False}, "cpu"),
        (2, {"gpu_id": ""}, "cpu"),
    ],
)
def test_a_gpu_must_be_named(monkeypatch: pytest.MonkeyPatch, gpus: int, settings: dict[str, Any], device: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    for visible in ("5", None):
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert build(config_dict=settings)["device"] == torch.device(device)
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible


def test_own_data_needs_no_yaml_file(tmp_path: Path) -> None:
    write_interactions(tmp_path, "shop")
    config = build(dataset="shop", config_dict={"data_path": str(tmp_path), "user_inter_num_interval": "[2,inf)"})
    assert config["data_path"] == str(tmp_path / "shop")
    assert config["load_col"] == {"inter": ["user_id", "item_id", "timestamp"]}
    assert config["user_inter_num_interval"] == "[2,inf)"


def test_ml_100k_is_the_bundled_one_unless_the_named_folder_has_it(tmp_path: Path) -> None:
    for settings in ({}, {"data_path": str(tmp_path)}):
        assert (Path(build(config_dict=settings)["data_path"]) / "ml-100k.kg").is_file()
    write_interactions(tmp_path, "ml-100k")
    assert build(config_dict={"data_path": str(tmp_path)})["data_path"] == str(tmp_path / "ml-100k")


def test_a_class_without_a_yaml_file_is_a_model_too() -> None:
    config = build(Unregistered)
    assert (config["model"], config["MODEL_INPUT_TYPE"]) == ("Unregistered", InputType.POINTWISE)
    with pytest.raises(UsageError, match="unknown key 'n_codewords'"):
        build(Unregistered, config_dict={"n_codewords": 2})


def test_a_class_inherits_the_settings_of_its_bases_and_may_bring_its_own(tmp_path: Path) -> None:
    own_file = yaml_file(tmp_path, "mine.yaml", "n_layers: 2  # (int) layers, >= 1\nstride: 3  # (int) steps, >= 1\n")
    write_interactions(tmp_path, "ml-25m")
    mine = type("Mine", (model_class("LISABase"),), {"settings_file": own_file})
    config = build(mine, "ml-25m", config_dict={"data_path": str(tmp_path)}, command_line={"stride": "4"})
    assert [config[key] for key in ("model", "n_codewords", "n_layers", "stride")] == ["Mine", 256, 2, 4]


def test_plain_survives_json_and_a_checkpoint(tmp_path: Path) -> None:
    plain = build(protocol="paper").plain()
    assert json.loads(json.dumps(plain)) == plain
    torch.save(plain, tmp_path / "plain.pth")
    assert torch.load(tmp_path / "plain.pth", weights_only=True) == plain
    assert (plain["model"], plain["protocol"], plain["device"]) == ("LISASoft", "paper", "cpu")
    assert plain["MODEL_TYPE"] == "SEQUENTIAL"


def test_a_configuration_can_be_copied_and_pickled() -> None:
    config = build(command_line={"epochs": "9"})
    for other in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert other.plain() == config.plain()
