"""RecBole's own model classes in a run of this package: they train, or one line before the training says why not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recbole.model import sequential_recommender as of_recbole
from recbole.utils import InputType

from recbole_lisa.errors import UsageError
from recbole_lisa.quick_start import run
from recbole_lisa.saved import load_data_and_model
from recbole_lisa.training.evaluation import evaluate_targets
from recbole_lisa.training.recbole_classes import fit_supervision, try_class
from recbole_lisa.training.step import loss_parts
from tests.tiny import TinyModel, tiny_config, tiny_loaders, tiny_settings, tiny_trainer


def tried(folder: Path, name: str, **settings: Any) -> None:
    config = tiny_config(folder, model=name, **{"MAX_ITEM_LIST_LENGTH": 30, **settings})
    assert config.model_class is getattr(of_recbole, name)
    fit_supervision(config)
    train, valid, test = tiny_loaders(config)
    batch = train.shortest_batch()
    assert batch["item_id_list"].shape == (2, 30)  # the longest window of the data has 9 items
    assert batch["item_length"].tolist() == [1, 1]
    try_class(config, train, valid, test)


@pytest.mark.parametrize(
    "name",
    [
        *("CORE", "Caser", "FOSSIL", "GCSAN", "GRU4Rec", "HGN", "HRM", "LightSANs", "NARM", "NPE", "NextItNet"),
        *("RepeatNet", "SASRec", "SINE", "SRGNN", "STAMP"),
    ],
)
def test_sequential_classes_of_recbole_are_served_as_in_recbole(tmp_path: Path, name: str) -> None:
    tried(tmp_path, name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, "KeyError: 'class', of selected_features") for name in ("FDSA", "GRU4RecF", "SASRecF")),
        ("S3Rec", r"ValueError: Field \[class\] not defined"),
        ("FEARec", "AttributeError: 'Series' object"),
        ("SASRecCPR", "RuntimeError: selected index k out of range"),
    ],
)
def test_a_class_with_unmet_needs_is_one_line_before_the_training(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"{name} of RecBole cannot be trained on tiny here .{reason}") as caught:
        tried(tmp_path, name)
    assert "load_col is {'inter': ['user_id', 'item_id', 'timestamp']}" in str(caught.value)
    assert "recbole.quick_start.run_recbole" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["FDSA", "GRU4RecF", "SASRecF"])
def test_a_class_with_item_features_trains_and_its_checkpoint_is_read_again(tmp_path: Path, name: str) -> None:
    """Its `other_parameter` is a module."""
    settings = tiny_settings(tmp_path, epochs=1, hidden_size=8, inner_size=8, embedding_size=8)
    settings["load_col"] = {"inter": ["user_id", "item_id", "timestamp"], "item": ["item_id", "cls", "tags"]}
    settings["selected_features"] = ["cls", "tags"]
    for key in {"GRU4RecF": ("inner_size",)}.get(name, ("embedding_size",)):
        del settings[key]
    rows = [f"i{item}\tc{item % 3}\tt{item % 4} t{item % 5}" for item in range(30)]
    (tmp_path / "tiny" / "tiny.item").write_text("\n".join(["item_id:token\tcls:token\ttags:token_seq", *rows, ""]))
    result = run(name, "tiny", config_dict=settings)
    config, network, _, _, _, test = load_data_and_model(result["checkpoint"])
    assert type(network) is getattr(of_recbole, name)
    assert evaluate_targets(network, test, config).metrics == result["test"]
    run(name, "tiny", config_dict={**settings, "epochs": 2, "resume": "auto"})
    trained = torch.cat([p.flatten() for n, p in network.named_parameters() if "feature_embed_layer" in n])
    assert len(trained) > 8 * 7


class Plain(of_recbole.SASRec):
    """A class of the user: RecBole has settings for its base."""


def test_a_subclass_has_the_settings_of_its_base_in_recbole(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, model=Plain, hidden_size=8, inner_size=8, n_heads=1, loss_type="CE")
    assert (config["model"], config["n_layers"], config["loss_type"]) == ("Plain", 2, "CE")
    with pytest.raises(UsageError, match="unknown key 'hidden_sise'.*Did you mean 'hidden_size'"):
        tiny_config(tmp_path, model=Plain, hidden_sise=8)
    fit_supervision(config)
    trainer, (train, valid, _) = tiny_trainer(config)
    trainer.fit(train, valid)
    assert trainer.best_valid_result


def test_sizes_of_a_class_that_exceed_the_memory_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recbole_lisa.training.memory.free_memory", lambda: 10**6)
    tried(tmp_path, "GRU4Rec", hidden_size=8)
    with pytest.raises(UsageError, match=r"GRU4Rec needs at least \d+\.\d GiB of memory and 0\.0 GiB are free: lower"):
        tried(tmp_path, "GRU4Rec", hidden_size=4000)


class Holding(TinyModel):
    """A model of the user with a value beside its weights."""

    value: Any = None
    other_parameter_name = ("value",)


@pytest.mark.parametrize("value", [torch.ones(2), {"a": [1, 2.0, "b", None]}, torch.eye(2).to_sparse()])
def test_a_value_that_a_checkpoint_holds_comes_back(tmp_path: Path, value: Any) -> None:
    trainer, (train, _, test) = tiny_trainer(tiny_config(tmp_path, model=Holding, epochs=1))
    trainer.model.value = value
    trainer.fit(train)
    trainer.model.value = None
    trainer.evaluate(test)
    assert str(trainer.model.value) == str(value)


@pytest.mark.parametrize("entry", ["other_parameter has 'value'", "state_dict has '_extra_state'"])
def test_a_value_that_a_checkpoint_cannot_hold_is_one_line_before_the_training(
    tmp_path: Path, entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, (train, *_) = tiny_trainer(tiny_config(tmp_path, model=Holding))
    trainer.model.value = np.ones(2) if "other" in entry else None
    if "state" in entry:
        monkeypatch.setattr(Holding, "get_extra_state", lambda _: np.ones(2))
    with pytest.raises(UsageError, match=f"Holding cannot be saved: its {entry} of the type ndarray; a checkpoint"):
        trainer.fit(train)
    assert not trainer.history and not list((tmp_path / "saved").glob("*.pth"))
    trainer.fit(train, saved=False)


def test_a_file_that_the_class_names_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"KSR of RecBole cannot .* Additional feature file \[.*tiny.ent\] not found"):
        run(of_recbole.KSR, "tiny", config_dict=tiny_settings(tmp_path))


def test_sampled_candidates_of_a_class_of_recbole_are_those_of_its_full_scores(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, epochs=1, eval_args={"mode": "uni12"})
    result = run(of_recbole.GRU4Rec, "tiny", protocol="paper", config_dict=settings)
    assert 0 < result["test"]["ndcg@10"] < 1


def test_a_class_of_the_user_keeps_its_batches_and_its_errors(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, MAX_ITEM_LIST_LENGTH=30)
    loaders = tiny_loaders(config)
    assert loaders[0].shortest_batch()["item_id_list"].shape == (2, 9)
    try_class(config, *loaders)

    class Wrong(TinyModel):
        input_type = InputType.POINTWISE

        def calculate_loss(self, interaction: Any) -> Any:
            raise KeyError("class")

    with pytest.raises(KeyError, match="class"):
        run(Wrong, "tiny", config_dict=tiny_settings(tmp_path))


@pytest.mark.parametrize(
    ("loss", "what"), [(torch.ones(3), r"a tensor \(3,\)"), (0.5, "float"), ((torch.ones(1), None), "NoneType")]
)
def test_a_loss_that_is_no_number_is_one_line(loss: Any, what: str) -> None:
    with pytest.raises(UsageError, match=f"calculate_loss gives {what}, it must give the mean loss"):
        loss_parts(loss)
    assert [part.shape for part in loss_parts((torch.ones(1), torch.tensor(2.0)))] == [(), ()]
