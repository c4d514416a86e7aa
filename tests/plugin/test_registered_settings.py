"""Settings in RecBole's own pipeline are checked as in a run of this package, before the training."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.trainer import Trainer

import recbole_lisa
from recbole_lisa.errors import UsageError
from recbole_lisa.plugin.dataset import AllPositionsDataset
from tests.helpers import write_interactions
from tests.plugin.recbole_pipeline import SMALL, small, trained
from tests.plugin.test_presplit import HEAD, LONG, presplit


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        ("LISASoft", {"hidden_size": 7.5}, r"hidden_size \(settings of RecBole\) is 7.5, it must be int"),
        ("LISASoft", {"n_codewords": "a"}, "n_codewords .* is 'a', it must be int"),
        ("LISASoft", {"n_layers": 0}, "n_layers .* is 0, it must be >= 1"),
        ("LISASoft", {"loss_type": "XYZ"}, "unknown loss_type 'XYZ'"),
        ("LISASoft", {"hidden_dropout_prob": 2}, "hidden_dropout_prob .* it must be in"),
        ("LISABase", {"item_codes": "svd"}, "item_codes is 'svd', in RecBole's own run it must be learned"),
        ("LISASoft", {"loss_type": "SSM", "shared_negatives": 8}, "shared_negatives is 8, in RecBole's own run"),
        ("LISASoft", {"bidirectional": True}, "histogram_decay is 0.1, with bidirectional True it must be 0"),
        ("Transformer", {"n_heads": 3}, "n_heads must divide hidden_size 16, got 3"),
        ("Transformer", {"conv_width": 1}, "conv_width is 1, it must be 0"),
        *(
            ("LISASoft", {"windows": kind}, f"windows is {kind}, which only recbole_lisa.run can follow")
            for kind in ("random_offset", "whole")
        ),
        (
            "LISASoft",
            {"metrics": ["Hit", "GiniIndex"]},
            "metrics has GiniIndex, RecBole 1.2.1 cannot compute it in its",
        ),
        ("LISASoft", {"metrics": "itemcoverage"}, "metrics has itemcoverage, RecBole 1.2.1 cannot compute it"),
        ("LISASoft", {"topk": [5], "valid_metric": "MRR@10"}, "'MRR@10' is not reported: choose one of Hit@5"),
        ("LISASoft", {"benchmark_filename": "train"}, "benchmark_filename .* is 'train', it must be list"),
        ("LISASoft", {"MAX_ITEM_LIST_LENGTH": 0}, "MAX_ITEM_LIST_LENGTH .* is 0, it must be >= 1"),
        ("Transformer", {"train_batch_size": 0}, "train_batch_size .* is 0, it must be >= 1"),
        (
            "Transformer",
            {"loss_type": "CE", "train_neg_sample_args": {"sample_num": 1}},
            "with loss_type CE it must be ~",
        ),
        (
            "LISASoft",
            {"loss_type": "BPR", "train_neg_sample_args": None},
            "but loss_type BPR needs it: {sample_num: 1}",
        ),
        ("LISASoft", {"train_neg_sample_args": 3}, "train_neg_sample_args .* is 3, it must be dict"),
        ("LISASoft", {"learning_rate": -1}, "learning_rate .* is -1.0, it must be > 0"),
    ],
)
def test_a_wrong_setting_is_one_line_before_data_is_read(model: str, settings: dict[str, Any], message: str) -> None:
    recbole_lisa.register()
    with pytest.raises(UsageError, match=message):
        small(model, "no such data", **settings)


def test_right_settings_and_those_of_other_models_are_as_before() -> None:
    settings: dict[str, Any] = {"learning_rate": 1e-2, "topk": 5, "unknown": 1, "gpu_id": "0", "load_col": None}
    before = small("GRU4Rec", hidden_size=7.5, train_neg_sample_args=None).final_config_dict
    recbole_lisa.register()
    assert small("GRU4Rec", hidden_size=7.5, train_neg_sample_args=None).final_config_dict == before
    config = small("LISASoft", **settings)
    assert {key: config[key] for key in settings} == {**settings, "topk": [5]}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ITEM_ID_FIELD": "item"}, r"need a column item:token \(ITEM_ID_FIELD\); loaded are user_id:token, timestamp"),
        ({"USER_ID_FIELD": "visitor"}, r"need a column visitor:token \(USER_ID_FIELD\)"),
        ({"USER_ID_FIELD": "timestamp"}, r"need a column timestamp:token \(USER_ID_FIELD\)"),
        ({"TIME_FIELD": "when"}, r"need a column when:float \(TIME_FIELD\); loaded are user_id:token, item_id:token:"),
    ],
)
def test_a_column_that_the_files_do_not_give_is_one_line(settings: dict[str, Any], message: str) -> None:
    recbole_lisa.register()
    with pytest.raises(UsageError, match=message):
        create_dataset(small("LISASoft", **settings))


@pytest.mark.parametrize(
    ("dataset", "model", "settings", "message"),
    [
        (AllPositionsDataset, "Transformer", {"bidirectional": True}, "True: a position would see its target; set sup"),
        (AllPositionsDataset, "LISABase", {"bidirectional": True, "histogram_decay": 0}, "a position would see its"),
        (AllPositionsDataset, "LISABase", {"histogram_decay": "time"}, None),
        (AllPositionsDataset, "LISABase", {"TIME_FIELD": None}, None),
        (None, "LISABase", {"TIME_FIELD": None}, "TIME_FIELD is None, but RecBole sorts its rows by time: name the"),
        (None, "LISABase", {"histogram_decay": "time"}, "histogram_decay is 'time', and RecBole's rows have no time"),
        (None, "LISASoft", {"query_time": "gap"}, "query_time is 'gap', and RecBole's rows have no time of the target"),
        (None, "Transformer", {"bidirectional": True}, None),
    ],
)
def test_what_the_rows_of_a_data_set_do_not_allow_is_refused_before_the_training(
    dataset: type[Any] | None, model: str, settings: dict[str, Any], message: str | None
) -> None:
    recbole_lisa.register(dataset)
    with pytest.raises(UsageError, match=message) if message else nullcontext():
        create_dataset(small(model, **settings))


@pytest.mark.parametrize(
    ("settings", "metric"),
    [
        ({"topk": 5}, "MRR@5"),
        ({"topk": [5, 20], "metrics": ["Hit", "NDCG"]}, "Hit@5"),
        ({"topk": [5, 10]}, "MRR@10"),
        ({"topk": [5], "valid_metric": "mrr@9", "eval_step": 0}, "mrr@9"),
    ],
)
def test_the_metric_of_the_best_epoch_is_a_reported_one(settings: dict[str, Any], metric: str) -> None:
    recbole_lisa.register()
    kept = {key: value for key, value in SMALL.items() if key != "valid_metric"} | {"metrics": ["Hit", "MRR"]}
    assert Config(model="LISASoft", dataset="tiny", config_dict=kept | settings)["valid_metric"] == metric


@pytest.mark.parametrize(("old", "new"), [("\ti\t", '\t"i" the best\t'), ("\t1\n", "\t2026-01-01\n")])
def test_what_recboles_reader_cannot_read_is_one_line(old: str, new: str, tmp_path: Path) -> None:
    path = write_interactions(tmp_path, "odd")
    path.write_text(path.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    recbole_lisa.register()
    with pytest.raises(UsageError, match=r"RecBole cannot read a file in .*odd \(.*\): call .*AllPositionsDataset"):
        create_dataset(small("LISASoft", "odd", data_path=str(tmp_path)))


@pytest.mark.parametrize(("key", "value"), [("n_codewords", 10**8), ("MAX_ITEM_LIST_LENGTH", 10**10)])
@pytest.mark.parametrize("dataset", [None, AllPositionsDataset])
def test_what_does_not_fit_in_memory_is_refused_before_the_data(key: str, value: int, dataset: Any) -> None:
    recbole_lisa.register(dataset)
    with pytest.raises(UsageError, match=f"LISABase needs at least .* GiB are free: lower .*{key}"):
        create_dataset(small("LISABase", "no such data", **{key: value}))


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [("LISASoft", UsageError, "wide is not text in the encoding utf-8"), ("GRU4Rec", UnicodeDecodeError, "codec")],
)
def test_a_file_in_another_encoding_is_one_line(model: str, error: Any, message: str, tmp_path: Path) -> None:
    write_interactions(tmp_path, "wide").write_text("user_id:token\titem_id:token\n", encoding="utf-16")
    recbole_lisa.register()
    with pytest.raises(error, match=message):
        create_dataset(small(model, "wide", data_path=str(tmp_path), train_neg_sample_args=None))


@pytest.mark.parametrize("topk", [[31], [5, 100]])
def test_a_topk_above_the_items_is_refused_before_the_training(topk: list[int]) -> None:
    recbole_lisa.register()
    config = small("LISASoft", topk=topk, valid_metric=f"NDCG@{topk[0]}")
    train, _, _ = data_preparation(config, create_dataset(config))
    with pytest.raises(UsageError, match=rf"topk asks for the {topk[-1]} best of only 30 items"):
        Trainer(config, config.model_class(config, train.dataset))


@pytest.mark.parametrize(
    ("dataset", "settings", "names"),
    [
        (None, {"recipe": "modern", "ema_decay": 0.9, "windows": "overlapping"}, "recipe, ema_decay, windows"),
        (None, {"learning_rate_warmup": 5, "codebook_init": "data"}, "learning_rate_warmup, codebook_init"),
        (AllPositionsDataset, {"windows": "overlapping", "adam_betas": [0.9, 0.98]}, "adam_betas"),
        (None, {"ema_decay": 0.0, "adam_betas": [0.9, 0.999], "windows": "disjoint"}, None),
        (None, {"supervision": "all_positions", "protocol": "paper"}, "supervision, protocol"),
        (AllPositionsDataset, {"supervision": "all_positions"}, None),
    ],
    ids=str,
)
def test_settings_that_recboles_trainer_does_not_read_are_named(
    dataset: Any, settings: dict[str, Any], names: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    recbole_lisa.register(dataset)
    config = small("LISASoft", **settings)
    train, _, _ = data_preparation(config, create_dataset(config))
    caplog.clear()
    Trainer(config, config.model_class(config, train.dataset))
    line = f"no effect in RecBole's run, only in recbole_lisa.run: {names}"
    logged = [record.message[: len(line)] for record in caplog.records if "no effect" in record.message]
    assert logged == ([line] if names else [])


def test_settings_without_effect_beside_others_are_named(caplog: pytest.LogCaptureFixture) -> None:
    recbole_lisa.register()
    config = small("LISASoft", score_temperature=0.5, local_heads=2, tail_ratio=0.2)
    train, _, _ = data_preparation(config, create_dataset(config))
    caplog.clear()
    Trainer(config, config.model_class(config, train.dataset))
    assert [record.message for record in caplog.records if "no effect" in record.message] == [
        "no effect: score_temperature=0.5; it needs score cosine, not dot",
        "no effect: local_heads=2; it needs local_window above 0, not 0",
        "no effect: tail_ratio=0.2; it needs metrics TailPercentage, not ['Hit', 'NDCG']",
    ]


@pytest.mark.parametrize("kind", ["float_seq", "token"])
@pytest.mark.parametrize("part", list(LONG))
def test_a_list_column_of_another_type_in_one_file_is_one_line(part: str, kind: str) -> None:
    presplit()
    path = Path("own", f"own.{part}.inter")
    path.write_text(path.read_text().replace(HEAD, HEAD.replace("token_seq", kind)))
    message = f"item_id_list:{'token_seq' if part == 'train' else kind}, a file before it item_id_list"
    with pytest.raises(UsageError, match=message):
        create_dataset(Config("LISASoft", "own", config_dict={**SMALL, "benchmark_filename": list(LONG)}))


def test_a_pre_split_file_that_is_not_there_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"there is no file .*own.nowhere.inter, which benchmark_filename names"):
        presplit(benchmark_filename=["train", "nowhere", "test"])


@pytest.mark.parametrize(
    "settings",
    [
        {"train_neg_sample_args": {"distribution": "popularity", "sample_num": 3}},
        {"eval_args": {"split": {"LS": "valid_and_test"}, "order": "TO", "group_by": "user", "mode": "pop10"}},
    ],
    ids=["training", "evaluation"],
)
def test_negatives_by_popularity_train_every_position(settings: dict[str, Any]) -> None:
    recbole_lisa.register(AllPositionsDataset)
    trainer, (_, _, test) = trained(small("LISASoft", epochs=1, **settings))
    assert 0 <= trainer.evaluate(test)["ndcg@5"] <= 1
