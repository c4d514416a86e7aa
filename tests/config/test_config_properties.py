"""The yaml files that we ship: every key declared, every default valid, the values the protocols promise."""

from pathlib import Path
from typing import Any

import pytest

from recbole_lisa.config.properties import properties_path
from recbole_lisa.config.registry import MODELS, OPTIONAL_MODELS
from recbole_lisa.config.schema import check_value, declared_keys, read_yaml

ROOT = properties_path()
FILES = sorted(ROOT.rglob("*.yaml"))
IDS = [file.relative_to(ROOT).as_posix() for file in FILES]
DATASETS = {"ml-100k": 200, "ml-1m": 300, "amazon-video-games-18": 50, "ml-25m": 300, "alibaba": 300}


def settings(part: str) -> dict[str, Any]:
    return read_yaml(ROOT / f"{part}.yaml")


@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_every_key_declares_its_type_and_meaning(file: Path) -> None:
    undeclared = [name for name, key in declared_keys(file).items() if not key.types]
    assert undeclared == []
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line[:1].isalpha()]
    assert [line for line in lines if not line.partition("# (")[2].partition(") ")[2]] == []


@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_every_default_passes_its_own_check(file: Path) -> None:
    values = read_yaml(file)
    assert {name: check_value(key, values[name], "default") for name, key in declared_keys(file).items()} == values


def test_every_model_has_a_file_and_every_file_a_model() -> None:
    assert {file.stem for file in (ROOT / "model").iterdir()} == {*MODELS, *OPTIONAL_MODELS, "AttentiveRecommender"}


def test_every_data_set_has_its_longest_window_and_the_five_core_filter() -> None:
    assert {file.stem for file in (ROOT / "dataset").iterdir()} == set(DATASETS)
    for name, longest in DATASETS.items():
        found = settings(f"dataset/{name}")
        assert found["MAX_ITEM_LIST_LENGTH"] == longest
        assert found["user_inter_num_interval"] == found["item_inter_num_interval"] == "[5,inf)"


@pytest.mark.parametrize("name", DATASETS)
def test_model_settings_of_a_data_set_are_keys_of_the_model(name: str) -> None:
    for model, replaced in settings(f"dataset/{name}").get("model_settings", {}).items():
        declared = declared_keys(ROOT / "model" / f"{model}.yaml")
        assert {key: check_value(declared[key], value, name) for key, value in replaced.items()} == replaced


OF_HARD_CODES = ("item_codes", "item_codes_checkpoint", "dense_items")
OF_SOFT_CODES = ("item_input",)


def test_the_lisa_models_share_their_keys() -> None:
    base, soft, mini = (declared_keys(ROOT / "model" / f"LISA{kind}.yaml") for kind in ("Base", "Soft", "Mini"))
    shared = {name: key for name, key in soft.items() if name not in OF_SOFT_CODES}
    assert {name: key for name, key in base.items() if name not in OF_HARD_CODES} == shared
    assert {name: key for name, key in mini.items() if name != "n_target_codewords"} == base


@pytest.mark.parametrize(
    ("model", "differing"),
    [
        ("LISABase", {"n_codewords": 128, "reconstruction_weight": 0.0}),
        ("LISASoft", {"n_codewords": 16, "reconstruction_weight": 0.01}),
        ("LISAMini", {"n_codewords": 32, "reconstruction_weight": 0.0, "n_target_codewords": 128}),
    ],
)
def test_a_lisa_model_differs_only_in_its_codebooks(model: str, differing: dict[str, Any]) -> None:
    found, base = settings(f"model/{model}"), settings("model/LISABase")
    assert {key: found[key] for key in differing} == differing
    other = (*differing, *((*OF_HARD_CODES, *OF_SOFT_CODES) if model == "LISASoft" else ()))
    same = found.keys() - other
    assert {key: found[key] for key in same} == {key: value for key, value in base.items() if key not in other}


def test_the_paper_protocol_is_the_papers() -> None:
    split, mode = {"LS": "test_only"}, {"valid": "uni100", "test": "uni100"}
    assert settings("protocol/paper") == {
        "eval_args": {"split": split, "order": "TO", "group_by": "user", "mode": mode},
        **{"metrics": ["Hit", "NDCG"], "topk": [5, 10], "valid_metric": "NDCG@10"},
        "train_neg_sample_args": {"distribution": "uniform", "sample_num": 1},
        "learner": "adam",
        "learning_rate": 0.001,
        "adam_betas": [0.9, 0.98],
        "train_batch_size": 128,
        "epochs": 200,
        "eval_batch_size": 256,
    }


def test_full_ranking_leaves_out_two_items_and_stops_early() -> None:
    found = settings("protocol/full_ranking")
    assert found["eval_args"]["split"] == {"LS": "valid_and_test"}
    assert found["eval_args"]["mode"] == {"valid": "full", "test": "full"}
    assert (found["stopping_step"], found["valid_metric"]) == (10, "NDCG@10")
