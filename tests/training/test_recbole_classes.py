"""RecBole's own model classes in a run of this package: they train, or one line before the training says why not."""

from pathlib import Path
from typing import Any

import pytest
import torch
from recbole.model import sequential_recommender as of_recbole
from recbole.utils import InputType

from recbole_lisa.errors import UsageError
from recbole_lisa.quick_start import run
from recbole_lisa.training.recbole_classes import fit_supervision, try_class
from recbole_lisa.training.step import loss_parts
from tests.tiny import TinyModel, tiny_config, tiny_loaders, tiny_settings


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
        *((name, "KeyError: 'class'") for name in ("FDSA", "GRU4RecF", "SASRecF")),
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


def test_item_features_that_are_loaded_serve_their_class(tmp_path: Path) -> None:
    tiny_settings(tmp_path)
    rows = [f"i{item}\tc{item % 3} c{item % 5}" for item in range(30)]
    (tmp_path / "tiny" / "tiny.item").write_text("\n".join(["item_id:token\tclass:token_seq", *rows, ""]))
    columns = {"inter": ["user_id", "item_id", "timestamp"], "item": ["item_id", "class"]}
    tried(tmp_path, "FDSA", load_col=columns)


def test_a_file_that_the_class_names_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"KSR of RecBole cannot .* Additional feature file \[.*tiny.ent\] not found"):
        run(of_recbole.KSR, "tiny", config_dict=tiny_settings(tmp_path))


def test_sampled_candidates_of_a_class_of_recbole_are_those_of_its_full_scores(tmp_path: Path) -> None:
    result = run(
        of_recbole.GRU4Rec,
        "tiny",
        protocol="paper",
        config_dict=tiny_settings(tmp_path, epochs=1, eval_args={"mode": "uni12"}),
    )
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
