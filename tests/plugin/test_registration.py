"""RecBole's own functions with these models: by class and by name, in this process and in fresh ones."""

import importlib.util
import multiprocessing
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.data.dataset import SequentialDataset
from recbole.model.sequential_recommender import SASRec
from recbole.trainer import Trainer
from recbole.utils import get_model

import recbole_lisa
from recbole_lisa.config.registry import MODELS, OPTIONAL_MODELS, model_class
from recbole_lisa.errors import UsageError
from recbole_lisa.plugin.dataset import AllPositionsDataset
from recbole_lisa.quick_start import run
from recbole_lisa.saved import load_data_and_model
from tests.helpers import assert_close, write_interactions
from tests.plugin import recbole_pipeline as pipeline
from tests.plugin.recbole_pipeline import SMALL, scores, small, trained

TIMES = {"load_col": {"inter": ["user_id", "item_id", "timestamp"]}}  # RecBole's default lacks the time


class Mine(model_class("Transformer")):  # type: ignore[misc]
    """A model of the user."""


@pytest.mark.parametrize("name", MODELS)
def test_every_model_by_name_and_by_class_and_back_from_its_file(name: str) -> None:
    recbole_lisa.register()
    pipeline.check_steps(name)


@pytest.mark.parametrize("name", ["LISABase", "Transformer"])
def test_the_form_of_the_encoder_survives_recboles_pipeline(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recbole_lisa.register()
    form = {"block": "gated", "hidden_act": "swiglu", "inner_size": "2x", "positions": "from_end", "conv_width": 3}
    form |= {"attention_gate": True, "drop_path": 0.1}
    monkeypatch.setattr(pipeline, "SMALL", SMALL | form)
    pipeline.check_steps(name)


def test_a_class_needs_no_registration_for_its_settings() -> None:
    trainer, (_, _, test) = trained(small(model_class("LISASoft"), **TIMES), SequentialDataset)
    assert trainer.config["n_codewords"] == 16
    assert trainer.evaluate(test, load_best_model=False).keys() == {"hit@5", "ndcg@5"}
    assert trainer.train_loss_dict[1] < trainer.train_loss_dict[0]


def test_a_class_of_the_user_inherits_the_settings_of_its_base() -> None:
    config = small(Mine, **TIMES)
    assert config["n_heads"] is None
    trained(config, SequentialDataset)
    assert config["n_heads"] == 1
    recbole_lisa.register()
    assert small(Mine)["n_heads"] == 1


def test_the_settings_lie_between_those_of_recbole_and_those_of_the_user(tmp_path: Path) -> None:
    recbole_lisa.register()
    (tmp_path / "mine.yaml").write_text("n_codewords: 4\n", encoding="utf-8")
    config = Config("LISASoft", "tiny", ["mine.yaml"], {"n_layers": 2})
    assert (config["n_codewords"], config["n_layers"], config["n_codebooks"]) == (4, 2, 8)
    assert config["load_col"] == {"inter": ["user_id", "item_id", "timestamp"]}
    assert config["train_neg_sample_args"]["distribution"] == "uniform"
    assert config["eval_args"]["split"] == {"LS": "valid_and_test"}
    assert small("LISASoft", loss_type="CE")["train_neg_sample_args"]["distribution"] == "none"


def test_without_negatives_the_loss_needs_none() -> None:
    """RecBole's examples for its own models say `train_neg_sample_args: None` and name no loss."""
    trainer, _ = trained(small(model_class("LISASoft"), **TIMES, train_neg_sample_args=None), SequentialDataset)
    assert trainer.config["loss_type"] == trainer.model.loss_type == "CE"
    message = "loss_type BCE needs negatives: set train_neg_sample_args, or loss_type to CE"
    with pytest.raises(ValueError, match=message):
        trained(small(model_class("LISASoft"), **TIMES, train_neg_sample_args=None, loss_type="BCE"), SequentialDataset)
    recbole_lisa.register()
    assert small("LISASoft", train_neg_sample_args=None)["loss_type"] == "CE"
    with pytest.raises(UsageError, match="train_neg_sample_args is None, but loss_type BCE needs it"):
        small("LISASoft", train_neg_sample_args=None, loss_type="BCE")


@pytest.mark.parametrize("loss_type", ["CE", "BPR", "gBCE", "SSM"])
def test_every_loss_trains_on_the_rows_of_recbole_and_ssm_on_its_counts(loss_type: str) -> None:
    recbole_lisa.register()
    popular = {"train_neg_sample_args": {"distribution": "popularity", "sample_num": 3}} if loss_type == "SSM" else {}
    trainer, (train, _, _) = trained(small("Transformer", loss_type=loss_type, **popular))
    assert trainer.train_loss_dict[1] < trainer.train_loss_dict[0]
    if popular:
        counts = torch.bincount(train.dataset.inter_feat["item_id"], minlength=train.dataset.item_num)
        assert trainer.model.log_q.argmax() == counts.argmax()


def test_registering_twice_and_undoing_leave_recbole_as_it_was() -> None:
    import recbole.data.dataset
    import recbole.quick_start
    import recbole.quick_start.quick_start

    def state() -> list[Any]:
        modules = {name for name in sys.modules if name.startswith("recbole.model.sequential_recommender.")}
        places = (Config, Trainer, recbole.quick_start, recbole.quick_start.quick_start, recbole.data.dataset)
        return [torch.load, modules, *(dict(vars(place)) for place in places)]

    def names() -> list[list[str]]:
        return [sorted(part) for part in state()[1:]]

    before = state()
    recbole_lisa.register()
    once = names()
    assert state() != before
    recbole_lisa.register()
    assert names() == once
    recbole_lisa.register(AllPositionsDataset)
    recbole_lisa.unregister()
    assert state() == before
    recbole_lisa.unregister()
    with pytest.raises((ValueError, ModuleNotFoundError)):
        get_model("LISASoft")


def test_other_models_find_recbole_as_it_was() -> None:
    settings = {**TIMES, "train_neg_sample_args": None}
    before = small(SASRec, **settings).final_config_dict
    recbole_lisa.register(AllPositionsDataset)
    assert small(SASRec, **settings).final_config_dict == before
    trainer, (train, _, test) = trained(small("SASRec", **settings))
    assert type(train.dataset) is SequentialDataset
    with pytest.raises(pickle.UnpicklingError, match="weights_only"):
        trainer.evaluate(test)


def test_no_model_has_the_name_of_a_model_of_recbole() -> None:
    kinds = ("sequential", "general", "context_aware", "knowledge_aware")
    paths = [
        f"recbole.model.{kind}_recommender.{name.lower()}" for kind in kinds for name in (*MODELS, *OPTIONAL_MODELS)
    ]
    assert [path for path in paths if importlib.util.find_spec(path)] == []


def test_an_optional_model_is_found_by_name() -> None:
    recbole_lisa.register()
    for name in OPTIONAL_MODELS:
        assert get_model(name) is model_class(name)


@pytest.mark.parametrize("dataset", ["AllPositionsDataset", dict])
def test_what_is_no_data_set_class_or_function_is_not_registered(dataset: Any) -> None:
    with pytest.raises(UsageError, match="register takes a class of sequential data sets, .* got "):
        recbole_lisa.register(dataset)
    with pytest.raises((ValueError, ModuleNotFoundError)):
        get_model("LISASoft")
    with pytest.raises(UsageError, match="registered takes a function, got 5"):
        recbole_lisa.registered(5)  # type: ignore[arg-type]  # a user's mistake


def test_all_positions_need_the_items_that_the_split_names(tmp_path: Path) -> None:
    write_interactions(tmp_path, "short", [(f"u{n}", f"i{n + k}", k) for n in range(5) for k in range(3)])
    recbole_lisa.register(AllPositionsDataset)
    config = small("Transformer", "short")
    with pytest.raises(UsageError, match="no history is long enough for a validation item: the longest of 5 has 3"):
        data_preparation(config, create_dataset(config))


def test_our_checkpoint_is_loaded_by_both() -> None:
    recbole_lisa.register()
    from recbole.quick_start import load_data_and_model as recbole_load

    result = run("LISASoft", "tiny", config_dict={**SMALL, "loss_type": "CE"})
    for load in (recbole_load, load_data_and_model):
        config, model, dataset, train, valid, test = load(result["checkpoint"])
        assert (config["loss_type"], len(train.windows), dataset.item_num) == ("CE", 48, train.dataset.item_num)
        loader_scores = torch.cat([model.full_sort_predict(batch.interaction) for batch in test])
        assert loader_scores.shape == (24, dataset.item_num)
        trainer = recbole_lisa.training.trainer.LISATrainer(config, model)  # type: ignore[attr-defined]
        assert trainer.evaluate(test, load_best_model=False) == result["test"]
    config, *_ = load_data_and_model(result["checkpoint"], config_dict={"eval_batch_size": 7})
    assert config["eval_batch_size"] == 7


def test_a_file_of_recbole_resumes_and_is_read_only_when_trusted(tmp_path: Path) -> None:
    recbole_lisa.register()
    trainer, (train, valid, _) = trained(small("LISASoft", epochs=1))
    longer = Trainer(small("LISASoft", epochs=3), trainer.model)
    longer.resume_checkpoint(trainer.saved_model_file)
    longer.fit(train, valid)
    assert sorted(longer.train_loss_dict) == [1, 2]
    for trusted in (False, "False"):
        with pytest.raises(UsageError, match=r"can run code .*trusted=True"):
            load_data_and_model(trainer.saved_model_file, trusted=trusted)  # type: ignore[arg-type]  # a user's mistake
    with pytest.raises(UsageError, match="there is no checkpoint 'gone.pth'"):
        load_data_and_model("gone.pth")
    (tmp_path / "odd.pth").write_bytes(b"odd")
    with pytest.raises(UsageError, match="'odd.pth' is damaged or is not a checkpoint"):
        load_data_and_model("odd.pth", trusted=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with a GPU keeps it")
def test_files_of_a_gpu_load_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written here on the CPU, under the device that a GPU would have named."""
    recbole_lisa.register()
    from recbole.quick_start import load_data_and_model as recbole_load

    ours = run("LISASoft", "tiny", config_dict={**SMALL, "epochs": 1})["checkpoint"]
    trainer, (_, _, test) = trained(small("LISASoft", epochs=1))
    theirs = trainer.saved_model_file
    trainer.evaluate(test)
    expected = scores(trainer.model, test)
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda _: "cuda:0")
        for path in (ours, theirs):
            state = torch.load(path, weights_only=False)
            if path == theirs:
                state["config"]["device"] = torch.device("cuda")
            torch.save(state, path)
    with pytest.raises(RuntimeError, match="deserialize object on a CUDA device"):
        torch.load(ours)
    for load in (recbole_load, lambda path: load_data_and_model(path, trusted=True)):
        _, model, _, _, _, loader = load(theirs)
        assert_close(scores(model, loader), expected)
        _, model, *_ = load(ours)
        assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    Trainer(small("LISASoft", epochs=2), trainer.model).resume_checkpoint(theirs)
    assert run("LISASoft", "tiny", config_dict={**SMALL, "epochs": 2, "resume": str(ours)})["epochs_run"] == 2


def test_a_registered_function_travels_into_a_fresh_process() -> None:
    from recbole.quick_start import objective_function

    settings = {**SMALL, "model": "LISASoft", "dataset": "tiny"}
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result = pool.apply(recbole_lisa.registered(objective_function), (settings,))
    assert result["model"] == "LISASoft"


def test_all_positions_are_trained_inside_recbole() -> None:
    recbole_lisa.register(AllPositionsDataset)
    trainer, (train, _, _) = trained(small("LISASoft"))
    batch = next(iter(train))
    windows = 24 * 2  # 9 training targets of each user in windows of at most 8
    assert len(train.dataset) == windows
    assert batch["target_id_list"].shape == (32, 8) == batch["neg_target_id_list"].shape[:2]
    assert (batch["target_id_list"] > 0).sum(dim=1).tolist() == batch["item_length"].tolist()
    assert trainer.train_loss_dict[1] < trainer.train_loss_dict[0]


def test_all_positions_are_trained_by_run_recbole_and_come_back_from_the_file() -> None:
    recbole_lisa.register(AllPositionsDataset)
    from recbole.quick_start import load_data_and_model as recbole_load
    from recbole.quick_start import run_recbole

    settings = {**SMALL, "checkpoint_dir": "all"}
    result = run_recbole(model="LISASoft", dataset="tiny", config_dict={**settings, "save_dataloaders": True})
    (path,) = Path("all").glob("LISASoft*.pth")
    again = run_recbole(model="LISASoft", dataset="tiny", config_dict=dict(settings), saved=False)  # loaders of a file
    assert again["test_result"].keys() == result["test_result"].keys()
    _, model, data, _, _, test = recbole_load(path)
    assert type(data) is AllPositionsDataset
    rows = data[torch.tensor([0, 3])]
    assert rows["item_id_list"].shape == (2, 8)
    assert rows["item_length"].tolist() == [1, 4]
    assert Trainer(small("LISASoft"), model).evaluate(test, load_best_model=False) == result["test_result"]


def test_a_saved_data_set_serves_the_settings_that_it_was_made_with() -> None:
    recbole_lisa.register(AllPositionsDataset)
    create_dataset(small("LISASoft", save_dataset=True))
    other = create_dataset(small("LISASoft", query_time="gap"))
    assert other.config["query_time"] == "gap"
    again = create_dataset(small("LISASoft", epochs=7))
    assert again.config["epochs"] != 7  # from the file


@pytest.mark.parametrize("mode", ["full", "uni10"])
@pytest.mark.parametrize("split", [{"LS": "valid_and_test"}, {"RS": [0.6, 0.2, 0.2]}])
def test_held_out_rows_are_those_of_recbole(mode: str, split: dict[str, Any]) -> None:
    recbole_lisa.register()
    args = {"split": split, "order": "TO", "group_by": "user", "mode": mode}
    config = small("LISASoft", eval_args=args, eval_batch_size=10_000)
    theirs, ours = (data_preparation(config, kind(config)) for kind in (SequentialDataset, AllPositionsDataset))
    for other, mine in zip(theirs[1:], ours[1:], strict=True):
        tokens = [tokens_of(loader) for loader in (other, mine)]
        assert tokens[0] == tokens[1]
        assert len(tokens[0]) == len(mine.dataset)
    model = model_class("LISASoft")(config, ours[0].dataset)
    assert Trainer(config, model).evaluate(ours[2], load_best_model=False).keys() == {"hit@5", "ndcg@5"}


def tokens_of(loader: Any) -> list[tuple[str, list[str], str]]:
    """User, history and held-out item of every row, as text: the two data sets number them differently."""
    data, rows = loader.dataset, loader.dataset[slice(None)]
    users, items = (data.id2token(name, rows[name]) for name in ("user_id", "item_id"))
    pairs = zip(rows["item_id_list"], rows["item_length"], strict=True)
    lists = [data.id2token("item_id", row[:length]).tolist() for row, length in pairs]
    return sorted(zip(users.tolist(), lists, items.tolist(), strict=True))
