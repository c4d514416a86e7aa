"""Every mistake stops the run before data is read, in a message with the bad value and the right one."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytest import MonkeyPatch
from torch.nn import Linear

from recbole_lisa.config import validation
from recbole_lisa.config.config import LISAConfig
from recbole_lisa.datasets.obtain import ensure_data
from recbole_lisa.errors import UsageError
from tests.helpers import write_interactions

ADAM = "adam or adamw, not sgd"
TEST_ONLY = "the split {'LS': 'test_only'} has no validation items"
VALID_ONLY = "per_user_file='a.csv'; the split {'LS': 'valid_only'} has no test items"
WITHOUT_VALIDATION = "the split {'RS': [0.8, 0, 0.2]} has no validation items"
BOTH_WAYS = {"bidirectional": True, "supervision": "last_position", "histogram_decay": 0}
MISTAKES: list[tuple[dict[Any, Any], str]] = [
    ({"n_codeword": 4}, "unknown key 'n_codeword' (config_dict). Did you mean 'n_codewords'?"),
    ({"MODEL_TYPE": "SEQUENTIAL"}, "'MODEL_TYPE' (config_dict) follows from other settings: leave it out"),
    ({"stoping_step": 4}, "unknown key 'stoping_step' (config_dict). Did you mean 'stopping_step'?"),
    ({"max_item_list_length": 4}, "Did you mean 'MAX_ITEM_LIST_LENGTH'?"),
    ({"n_heads": 4}, "key 'n_heads' for LISASoft (config_dict): it is a setting of Transformer, "),
    ({"n_projected": 4}, "unknown key 'n_projected' for LISASoft (config_dict): it is a setting of Linformer"),
    ({"config_file": "x"}, "unknown key 'config_file' (config_dict). Did you mean 'config_files'?"),
    ({"model_settings": {}}, "unknown key 'model_settings' (config_dict)."),
    ({"model": "LISABase"}, "model is 'LISABase' (config_dict) but 'LISASoft' was chosen"),
    ({"protocol": "papers"}, "unknown protocol 'papers': known are full_ranking, global_time, paper."),
    ({"dataset": "ml-1m"}, "dataset is 'ml-1m' (config_dict) but 'ml-100k' was chosen: settings may repeat it, not"),
    ({"epochs": "ten"}, "epochs (config_dict) is 'ten', it must be int"),
    ({"loss_type": "GBCE"}, "'GBCE' (config_dict): known are BCE, CE, BPR, gBCE, SSM. Did you mean 'gBCE'?"),
    ({"learner": "adamx"}, "unknown learner 'adamx' (config_dict)"),
    ({"nproc": 9, "train_batch_size": 8}, "nproc is 9, but train_batch_size is 8: set nproc to 8 or fewer"),
    ({"amp": "bf32"}, "unknown amp 'bf32' (config_dict): known are no, bf16, fp16."),
    ({"amp": "bf16", "enable_scaler": True}, "enable_scaler is True, but amp is 'bf16': leave enable_scaler out"),
    ({"enable_scaler": True}, "enable_scaler is True, but only fp16 needs a scaled loss: set amp to"),
    ({"metrics": ["Hits"]}, "metric 'Hits' is not computed: known are AveragePopularity, GAUC, GiniIndex, H"),
    ({"metrics": [5]}, "metric 5 is not computed: known are AveragePopularity"),
    ({"metrics": []}, "metrics is [], it must be one or more of AveragePopularity"),
    ({"metrics": ["AUC"]}, "metric 'AUC' is not computed (it compares values, these models rank)"),
    ({"metrics": ["giniindex"], "eval_args": {"mode": {"test": "uni9"}}}, "use eval_args mode 'full', not 'uni9'"),
    ({"topk": [5], "valid_metric": "NDCG@10"}, "choose one of Hit@5, NDCG@5, MRR@5. Did you mean 'NDCG@5'?"),
    ({"topk": [0, 10]}, "topk (config_dict) is [0, 10], it must be >= 1"),
    ({"recipe": "esasrek"}, "known are esasrec, modern, paper, sasrec_plus. Did you mean 'esasrec'?"),
    ({"topk": [2.5]}, "topk is [2.5], it must be one or more whole numbers >= 1"),
    ({"eval_args": {"modes": "full"}}, "unknown part 'modes' of eval_args: known are split, order, group_by, mode."),
    ({"eval_args": {"order": "RO"}}, "unknown order 'RO' (eval_args): known are TO"),
    ({"eval_args": {"split": {"SS": 9}}}, "is {'SS': 9}, it must be {LS: valid_and_test} or {RS:"),
    (
        {"eval_args": {"group_by": "none"}},
        "group_by is 'none', but the split is {'LS': 'valid_and_test'}: set it to user",
    ),
    *(
        (
            {"eval_args": {"split": {"TS": times}}},
            f"eval_args split TS is {times!r}, it must be ratios like [0.8, 0.1, 0.1], the first above 0, or two dates",
        )
        for times in ([2, 1], [0, 0.5, 0.5], [1, -1, 1], ["2020-13-01", "2020-12-01"], [5], [True, False], ["a", 1, 2])
    ),
    ({"eval_args": {"split": {"TS": [1, 2]}, "mode": "uni9"}}, "mode is 'uni9', with split TS it must be full"),
    ({"eval_args": {"split": {"TS": [1, 2]}}, "TIME_FIELD": None}, "TIME_FIELD is ~, but eval_args split TS needs"),
    ({"query_time": "gap", "TIME_FIELD": None}, "TIME_FIELD is ~, but query_time gap needs times: name their column"),
    ({"query_time": "hour"}, "unknown query_time 'hour' (config_dict): known are none, gap, gap_hour_weekday"),
    ({"eval_args": {"split": {"LS": "test"}}}, "unknown LS 'test' (eval_args split): known are valid_and_test,"),
    ({"eval_args": {"mode": "uni"}}, "eval_args mode is 'uni', it must be full, uniN or popN, such as"),
    ({"eval_args": {"mode": {"tset": "full"}}}, "unknown part 'tset' of eval_args mode: known are valid, test."),
    ({"loss_type": "CE", "train_neg_sample_args": {"sample_num": 2}}, "with loss_type CE it must be ~: CE ranks every"),
    ({"windows": "overlapping", "supervision": "last_position"}, "last_position: set it to all_positions"),
    ({"windows": "sliding"}, "unknown windows 'sliding' (config_dict): known are disjoint, overlapping, random_offset"),
    ({"shared_negatives": 9, "loss_type": "CE"}, "shared_negatives is 9, it must be 0 with loss_type CE; SSM,"),
    ({"sparse_item_updates": True, "loss_type": "CE"}, "loss_type CE ranks every item in each step: set SSM or BCE"),
    ({"sparse_item_updates": True, "ema_decay": 0.9}, "ema_decay is 0.9, with sparse_item_updates True it must be 0"),
    ({"train_neg_sample_args": None}, "train_neg_sample_args is None, but loss_type BCE needs it: {sample_num: 1}"),
    ({"train_neg_sample_args": {"sample_nums": 2}}, "unknown part 'sample_nums' of train_neg_sample_args"),
    ({"train_neg_sample_args": {"distribution": "normal"}}, "'normal' (train_neg_sample_args): known are uniform,"),
    ({"train_neg_sample_args": {"sample_num": 0}}, "sample_num (train_neg_sample_args) is 0, it must be >= 1"),
    ({"train_neg_sample_args": {"dynamic": True}}, "dynamic is True, which is not supported: set it to False"),
    ({"bidirectional": True}, "a position would see its target; set supervision to last_position"),
    (BOTH_WAYS | {"histogram_decay": 0.1}, "histogram_decay is 0.1, with bidirectional True it must be 0"),
    (BOTH_WAYS | {"local_window": 8}, "local_window is 8, with bidirectional True it must be 0"),
    (BOTH_WAYS | {"histogram_values": "exact"}, "'exact', with bidirectional True it must be codewords"),
    ({"n_codebooks": 3, "histogram_values": "exact"}, "n_codebooks is 3, it must divide hidden_size, which is 128"),
    ({"local_window": 8, "local_heads": 3}, "local_heads is 3, it must divide hidden_size, which is 128"),
    ({"local_window": -1}, "local_window (config_dict) is -1, it must be in [0, 65536]"),
    ({"seed": -1}, "seed (config_dict) is -1, it must be in [0, 4294967296)"),
    ({"seed": "~"}, "seed (config_dict) is None, it must be int"),
    ({"shuffle": None}, "shuffle (config_dict) is None, it must be bool"),
    ({"adam_betas": [0.9]}, "adam_betas is [0.9], it must be two numbers in [0, 1), such as [0.9, 0.999]"),
    ({"clip_grad_norm": {"maxnorm": 5}}, "unknown part 'maxnorm' of clip_grad_norm: known are max_norm, norm_type."),
    ({"clip_grad_norm": {}}, "clip_grad_norm lacks max_norm: write clip_grad_norm={max_norm: 5}"),
    ({"clip_grad_norm": {"max_norm": "5x"}}, "max_norm (clip_grad_norm) is '5x', it must be float"),
    ({"clip_grad_norm": {"max_norm": 5, "norm_type": "two"}}, "norm_type (clip_grad_norm) is 'two', it must be float"),
    ({"train_neg_sample_args": {"alpha": "x"}}, "alpha (train_neg_sample_args) is 'x', it must be float"),
    ({"train_neg_sample_args": {"alpha": -1}}, "alpha (train_neg_sample_args) is -1.0, it must be >= 0"),
    *(
        ({"eval_args": {"split": {"RS": ratios}}}, f"is {ratios!r}, it must be {right}")
        for ratios, right in (
            *((ratios, "list") for ratios in (None, 0.8)),
            *((ratios, "like [0.8, 0.1, 0.1]") for ratios in ([0.8, 0.2], ["a", 0.1, 0.1], [0, 0.5, 0.5], [0, 0, 0])),
            ([0.8, -0.1, 0.3], ">= 0"),
        )
    ),
    ({"NEG_PREFIX": ""}, "NEG_PREFIX is '', it must be at least one character"),
    ({"LIST_SUFFIX": "", "ITEM_LIST_LENGTH_FIELD": "item_id"}, "LIST_SUFFIX is '', it must be"),
    ({"ITEM_LIST_LENGTH_FIELD": "item_id"}, "two columns of a batch have the name 'item_id': change NEG_PREFIX"),
    ({"USER_ID_FIELD": "item_id_list"}, "two columns of a batch have the name 'item_id_list'"),
    ({"config_files": ["a.yaml"]}, "'config_files' (config_dict) is no setting: give it as an argument of its own"),
    ({"metric_decimal_place": 400}, "metric_decimal_place (config_dict) is 400, it must be in [0, 15"),
    ({"ITEM_ID_FIELD": "user_id"}, "ITEM_ID_FIELD and USER_ID_FIELD are both 'user_id': each must"),
    ({"load_col": {"inter": None}}, "load_col inter is None, it must be a list of columns"),
    ({"load_col": {"users": ["age"]}}, "load_col names the file 'users': known are inter, user, item"),
    ({"normalize_field": ["timestamp"], "normalize_all": True}, "normalize_all are both set"),
    ({"learning_rate": 1e38}, "learning_rate (config_dict) is 1e+38, it must be at most 1e30"),
    ({"epochs": 2**63}, "epochs (config_dict) is 9223372036854775808, it must be a whole number below 2^63"),
    ({"learning_rate": 10**400}, "it must be float"),
    ({"gpu_id": "abc"}, "gpu_id is 'abc', it must be the number of a GPU; use_gpu=False for the CPU"),
    ({"gpu_id": -1}, "gpu_id is '-1', it must be the number of a GPU"),
    ({"epochs": "0x10"}, "epochs (config_dict) is '0x10', it must be int"),
    ({1: 2}, "unknown key 1 (config_dict)."),
    ({"encoding": "foo"}, "encoding is 'foo', it must be a text encoding, such as utf-8 or latin-1"),
    ({"field_separator": ""}, "field_separator is '', it must be at least one character"),
    ({"user_inter_num_interval": "5"}, "user_inter_num_interval must be intervals like '[5,inf)'"),
    ({"item_inter_num_interval": "[9,2]"}, "item_inter_num_interval must be intervals like"),
    ({"rm_dup_inter": "frist"}, "known are first, last. Did you mean 'first'?"),
    ({"unload_col": {"inter": ["rating"]}}, "'item_id', 'timestamp']}) are both set: set one of them to ~"),
    ({"state": "INFOS"}, "state is 'INFOS', it must be one of CRITICAL, ERROR, WARNING, INFO, DEBUG."),
    ({"inner_size": "wide"}, "inner_size is 'wide', it must be a number, or a factor of hidden_size such as 4x"),
    ({"inner_size": "0x"}, "inner_size is '0x', it must be a number, or a factor of hidden_size such as 4x"),
    ({"conv_width": 1}, "conv_width is 1, it must be 0 for no convolution or at least 2"),
    ({"positions": "last"}, "unknown positions 'last' (config_dict): known are absolute, from_end, none."),
    ({"learning_rate": "nan"}, "learning_rate (config_dict) is nan, it must be a finite number"),
    ({"eval_args": "{split: {TS: [2020-99-99]}}"}, "eval_args (config_dict) is not valid yaml: line 1: month"),
    ({"load_col": "{inter: [user_id"}, "load_col (config_dict) is not valid yaml: line 1: expected ',' or ']'"),
    ({"inner_size": 0}, "inner_size (config_dict) is 0, it must be >= 1"),
]


OF_MODELS: list[tuple[str, dict[Any, Any], str]] = [
    *(("LISASoft", *row) for row in MISTAKES),
    ("Linformer", {"windows": "whole"}, "windows is whole, but Linformer reads at most MAX_ITEM_LIST_LENGTH items"),
    ("SinkhornTransformer", {"windows": "whole"}, "windows is whole, but SinkhornTransformer reads at most MAX_ITEM_L"),
    ("LISABase", {"item_codes": "svt"}, "it must be learned, svd, kmeans or a .npz or .npy file. Did"),
    ("LISABase", {"item_codes": "kmeans"}, "but item_codes_checkpoint is ~: name the checkpoint of a trained model"),
    ("LISABase", {"item_codes": "learned", "dense_items": 3}, "dense_items is 3, with item_codes learned it must be 0"),
    ("LISABase", {"item_codes": None}, "item_codes (config_dict) is None, it must be str"),
    (
        "SASRec",
        {"query_time": "gap"},
        "'query_time' for SASRec (config_dict): it is a setting of the models of this pack",
    ),
    ("Mamba2Rec", {"n_heads": 9, "hidden_size": 24}, "Mamba2Rec cannot be built: n_heads must divide 2 hidden_size"),
    ("RecGRELA", {"n_heads": 8, "hidden_size": 24}, "RecGRELA cannot be built: twice n_heads must divide hidden_size"),
    ("Transformer", {"item_codes": "svd"}, "quantize_items is False, with item_codes svd it must be True"),
]


@pytest.mark.parametrize(("model", "settings", "message"), OF_MODELS, ids=str)
def test_a_mistake_is_named_with_what_is_right(model: str, settings: dict[Any, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        LISAConfig(model, "ml-100k", config_dict=settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"seed": 0, "state": "debug", "weight_decay": 0, "eval_step": 2, "encoding": "latin-1"},
        {"clip_grad_norm": "{max_norm: 5, norm_type: .inf}", "adam_betas": "[0, 0.5]"},
        {"train_neg_sample_args": {"distribution": "popularity", "alpha": 0, "candidate_num": 0}},
        {"eval_args": {"split": {"RS": [8, 1, 0]}}},
        {"user_inter_num_interval": None, "item_inter_num_interval": "[2,4];(9,inf)", "rm_dup_inter": "last"},
        {"load_col": None, "unload_col": {"inter": ["rating"]}},
        BOTH_WAYS,
    ],
)
def test_what_is_right_is_accepted(settings: dict[str, Any]) -> None:
    config = LISAConfig("LISASoft", "ml-100k", config_dict=settings)
    assert config["model"] == "LISASoft"


@pytest.mark.parametrize(
    ("settings", "amp", "recboles"),
    [
        ({}, "no", (False, False)),
        ({"amp": False}, "no", (False, False)),  # an unquoted no of a yaml file
        ({"amp": "bf16"}, "bf16", (True, False)),
        ({"amp": "fp16"}, "fp16", (True, True)),
        ({"enable_amp": True}, "bf16", (True, False)),
        ({"enable_amp": True, "enable_scaler": True}, "fp16", (True, True)),
    ],
)
def test_amp_and_recboles_keys_say_the_same(settings: dict[str, Any], amp: str, recboles: tuple[bool, bool]) -> None:
    config = LISAConfig("LISASoft", "ml-100k", config_dict=settings)
    assert (config["amp"], (config["enable_amp"], config["enable_scaler"])) == (amp, recboles)
    again = LISAConfig.from_plain(config.plain())
    assert (again["amp"], (again["enable_amp"], again["enable_scaler"])) == (amp, recboles)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nproc": 3}, "nproc is 3, one GPU each: set it to 2 or fewer, or use_gpu to False"),
        ({"nproc": 2, "gpu_id": "1"}, "nproc=2 takes the first 2 GPUs: choose by CUDA_VISIBLE_DEVICES, not by gpu_id"),
        ({"gpu_id": "2"}, "gpu_id is 2, it must be a number from 0 to 1; use_gpu=False for the CPU"),
    ],
)
def test_gpus_that_are_not_there_are_refused(monkeypatch: MonkeyPatch, settings: dict[str, Any], message: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError) as caught:
        LISAConfig("LISASoft", "ml-100k", config_dict=settings)
    assert str(caught.value) == message
    assert LISAConfig("LISASoft", "ml-100k", config_dict={"nproc": 2})["device"] == torch.device("cuda")


def split(kind: str, value: Any) -> dict[str, Any]:
    return {"eval_args": {"split": {kind: value}}}


NOTES: list[tuple[dict[str, Any], str | None]] = [
    (
        {"worker": 4, "POSITION_FIELD": "p", "threshold": {"rating": 3}, "unused_col": {"inter": ["a"]}},
        "no effect: worker=4, threshold={'rating': 3}, POSITION_FIELD='p', unused_col={'inter': ['a']}",
    ),
    ({"RATING_FIELD": "foo", "LABEL_FIELD": "x"}, "no effect: RATING_FIELD='foo', LABEL_FIELD='x'"),
    ({"loss_type": "BCE", "seen_negatives": False}, "no effect: seen_negatives=False; it needs loss_type CE, not BCE"),
    (
        {"loss_type": "CE", "seen_negatives": False},
        "seen_negatives is False, but eval_seen is rank: seen items, which were no negatives, rank high",
    ),
    ({"loss_type": "CE", "seen_negatives": False, "eval_seen": "mask", "valid_metric": "NDCG@10_masked"}, None),
    ({"loss_type": "CE", "seen_negatives": False, "eval_args": {"mode": "uni100"}}, None),
    ({"recipe": "modern", "loss_type": "SSM"}, "no effect: seen_negatives=False; it needs loss_type CE, not SSM"),
    ({"gbce_t": 0.5, "loss_type": "SSM"}, "no effect: gbce_t=0.5; it needs loss_type gBCE, not SSM"),
    ({"wandb_project": "shop"}, "no effect: wandb_project='shop'; it needs log_wandb True, not False"),
    ({"tail_ratio": 0.2}, "no effect: tail_ratio=0.2; it needs metrics TailPercentage, not ['Hit', 'NDCG', 'MRR']"),
    (
        {"train_neg_sample_args": {"alpha": 0.5}, "loss_type": "BCE"},
        "no effect: train_neg_sample_args alpha=0.5; it needs the distribution popularity, not uniform",
    ),
    ({"score_temperature": 0.5}, "no effect: score_temperature=0.5; it needs score cosine, not dot"),
    ({"gpu_id": "0,1"}, "gpu_id is '0,1': the first GPU is used; nproc takes several"),
    ({"use_gpu": True}, "no effect: use_gpu=True; torch finds no GPU, the run uses the CPU"),
    ({"gpu_id": 3}, "no effect: gpu_id='3'; torch finds no GPU, the run uses the CPU"),
    ({"gpu_id": 3, "use_gpu": False}, None),
    ({"topk": [5, 20]}, "valid_metric is NDCG@20: NDCG@10 is not among the metrics"),
    ({"metrics": ["Hit", "Recall"]}, "valid_metric is Hit@5: NDCG@10 is not among the metrics"),
    ({"metrics": ["Hit"], "valid_metric": "Hit@5"}, None),
    ({"worker": 0, "epochs": 3}, None),
    ({"eval_args": {"split": {"RS": [7, 1, 2]}}}, "eval_args split [7, 1, 2]: the fractions are 0.7, 0.1, 0.2"),
    ({"eval_args": {"split": {"RS": [0.8, 0.1, 0.1]}}}, None),
    ({"epochs": 2, "eval_step": 3}, "no effect: eval_step=3; the run has 2 epochs"),
    ({"epochs": 2, "test_step": 5}, "no effect: test_step=5; the run has 2 epochs"),
    ({"epochs": 9, "stopping_step": 3, "eval_step": 3}, "no effect: stopping_step=3; the run has 9 epochs"),
    ({"epochs": 9, "stopping_step": 8, "eval_step": 1, "test_step": 9}, None),
    ({"epochs": 8, "eval_step": 3}, "eval_step is 3: epoch 6 of 8 is the last that is validated and can be the best"),
    ({"epochs": 8, "eval_step": 4, **split("RS", [0.8, 0, 0.2])}, f"no effect: eval_step=4; {WITHOUT_VALIDATION}"),
    ({"epochs": 8, "eval_step": 3, **split("LS", "test_only")}, "no effect: eval_step=3; " + TEST_ONLY),
    ({"test_step": 1, "per_user_file": "a.csv", **split("LS", "valid_only")}, f"no effect: test_step=1, {VALID_ONLY}"),
    ({"test_step": 1, "per_user_file": "a.csv", **split("TS", ["2020-01-01", "2020-02-01"])}, None),
    (
        {"eval_args": {"split": {"TS": [0.8, 0.1, 0.1]}, "group_by": "user"}},
        "no effect: eval_args group_by='user'; the split {'TS': [0.8, 0.1, 0.1]} is one in time for all",
    ),
    (
        {"shared_negatives": 9, "loss_type": "SSM", "train_neg_sample_args": {"sample_num": 3}},
        "no effect: train_neg_sample_args sample_num=3; the shared_negatives=9 are drawn",
    ),
    ({"local_heads": 4}, "no effect: local_heads=4; it needs local_window above 0, not 0"),
    ({"local_heads": 4, "local_window": 2}, None),
    ({"adam_betas": [0.9, 0.98], "learner": "sgd"}, "no effect: adam_betas=[0.9, 0.98]; it needs learner " + ADAM),
    ({"adam_betas": [0.9, 0.98], "learner": "adamw"}, None),
    *(
        (settings, "no effect on timestamp: normalize_all and normalize_field leave times in seconds")
        for settings in ({"normalize_all": True}, {"normalize_field": ["timestamp"]})
    ),
]


@pytest.mark.parametrize(("settings", "note"), NOTES)
def test_notes_name_what_has_no_effect(monkeypatch: MonkeyPatch, settings: dict[str, Any], note: str | None) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "torch finds no GPU" not in (note or ""))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    config = LISAConfig("LISASoft", "ml-100k", config_dict=settings)
    assert config.notes == ([] if note is None else [note])
    if note is not None and note.startswith("valid_metric"):
        assert config["valid_metric"] == note.split()[2].rstrip(":")


@pytest.mark.parametrize("key", ["n_codebooks", "n_codewords"])
def test_codebooks_without_quantised_items_are_a_note(key: str) -> None:
    settings = ({key: 4, "quantize_items": quantize_items} for quantize_items in (False, True))
    notes = [LISAConfig("Transformer", "ml-100k", config_dict=each).notes for each in settings]
    assert notes == [[f"no effect: {key}=4; it needs quantize_items True, not False"], []]


def test_settings_of_item_embeddings_beside_fixed_codes_are_a_note() -> None:
    changed = {"scale_embedding": False, "codebook_similarity": "dot", "codebook_temperature": 0.3}
    for n_layers, idle in ((1, [*changed]), (2, ["scale_embedding"])):
        settings = {"item_codes": "svd", "n_layers": n_layers, **changed}
        (note,) = LISAConfig("LISABase", "ml-100k", config_dict=settings).notes
        shown = ", ".join(f"{key}={changed[key]!r}" for key in idle)
        assert note == f"no effect: {shown}; items have the codes of item_codes svd"


def test_values_of_numpy_paths_and_tuples_are_plain_ones(isolated_run_dir: Path) -> None:
    Path("mine.yaml").write_text("epochs: 010\n", encoding="utf-8")
    settings = {"hidden_size": np.int64(16), "learning_rate": np.float32(0.5), "topk": np.array([5, 10])}
    settings |= {"data_path": Path("here"), "adam_betas": (np.float64(0.5), 0.9), "bidirectional": np.bool_(False)}
    for files in ("mine.yaml", Path("mine.yaml"), ["mine.yaml"]):
        config = LISAConfig("LISASoft", Path("ml-100k"), config_files=files, config_dict=settings)
        assert config["epochs"] == 10
    assert {key: config[key] for key in settings if key != "data_path"} == {
        **{"hidden_size": 16, "learning_rate": 0.5, "topk": [5, 10], "adam_betas": [0.5, 0.9], "bidirectional": False}
    }
    assert {type(config[key]) for key in ("hidden_size", "learning_rate", "bidirectional")} == {int, float, bool}


def test_wandb_is_refused_where_it_cannot_be_imported(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="log_wandb is True, but wandb is not installed"):
        LISAConfig("LISASoft", "ml-100k", config_dict={"log_wandb": True})


def test_the_data_sets_beside_a_missing_one_are_hinted_at(tmp_path: Path) -> None:
    write_interactions(tmp_path, "tiny-shop")
    with pytest.raises(UsageError) as caught:
        ensure_data(LISAConfig("LISASoft", "tinyshop", config_dict={"data_path": str(tmp_path)}))
    assert str(caught.value).startswith(f"there is no file {tmp_path}/tinyshop/tinyshop.inter ")
    assert str(caught.value).endswith(" Did you mean 'tiny-shop'?")
    (tmp_path / "tiny-shop" / "tiny-shop.inter").rename(tmp_path / "tiny-shop" / "tiny-shop.train.inter")
    with pytest.raises(UsageError, match="tiny-shop.inter, but tiny-shop.train.inter: name the parts in benchmark_fil"):
        ensure_data(LISAConfig("LISASoft", "tiny-shop", config_dict={"data_path": str(tmp_path)}))
    (tmp_path / "odd" / "odd.inter").mkdir(parents=True)
    with pytest.raises(UsageError, match="odd.inter is a folder, it must be a file "):
        ensure_data(LISAConfig("LISASoft", "odd", config_dict={"data_path": str(tmp_path)}))


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
DEEP: Any = 1
for _ in range(5000):
    DEEP = [DEEP]
NAMES: list[tuple[dict[str, Any], str]] = [
    ({"model": "LISASft"}, "Did you mean 'LISASoft'?"),
    ({"model": "BPR"}, "unknown model 'BPR': known are LISABase, LISASoft, LISAMini, Transformer,"),
    ({"model": "sasrec"}, "GLATransformer and RecBole's sequential models, such as SASRec. Did you mean 'SASRec'?"),
    ({"dataset": "ml-10k"}, "there is no file dataset/ml-10k/ml-10k.inter (tab-separated"),
    ({"dataset": "ml-10k"}, "Did you mean 'ml-100k'?"),
    *(
        ({"dataset": name}, f"dataset is {name!r}, it must be the name of a data set, not a path; data_path is the")
        for name in ("/data/shop", "data/shop", "shop/", ".")
    ),
    ({"protocol": "papers"}, "'papers': known are full_ranking, global_time, paper. Did you mean 'paper'?"),
    ({"config_files": "absent.yaml"}, "cannot read the configuration file 'absent.yaml'"),
    *(
        ({"config_files": files}, f"config_files is {files!r}, it must be a yaml file or a list of them")
        for files in (b"x.yaml", {"a": 1}, 3, [None], ["a.yaml", 3], [["a.yaml"]])
    ),
    *(({"dataset": name}, f"dataset is {name!r}, it must be the name of") for name in (None, 3, ["toy"], b"toy")),
    *(
        ({"protocol": name}, f"unknown protocol '{name}': known are full_ranking, global_time, paper")
        for name in (Path("papers"), 3, ["paper"])
    ),
    ({"config_dict": [1]}, "config_dict is [1], it must hold settings by key, such as {'epochs': 10}"),
    *(({"config_dict": {"topk": value}}, "topk (config_dict) is nested without end") for value in (ENDLESS, DEEP)),
    *(
        ({"config_dict": {key: value}}, f"{key} (config_dict) is {value!r}, it must not have the character NUL")
        for key, value in (("result_file", "z\0.json"), ("data_path", Path("a\0")), ("metrics", ["Hit\0"]))
    ),
    *(({key: "z\0.yaml"}, f"{key} is 'z\\x00.yaml', it must not have the") for key in ("dataset", "config_files")),
    ({"model": "Transformer", "config_dict": {"n_heads": 3}}, "n_heads must divide hidden_size 128, got 3"),
    ({"model": Path("LISABase")}, "model must be a name or a class, got PosixPath"),
    ({"dataset": "x" * 5000}, "dataset must be the name of a folder, got 5,000 characters: 'xxx"),
    ({"model": None}, "model must be a name or a class, got None"),
    ({"model": b"x" * 99}, "model must be a name or a class, got a value of the type bytes"),
    ({"model": "FPMC", "config_dict": {"hidden_size": 8}}, "'hidden_size' (config_dict): FPMC has 'embedding_size'"),
    ({"config_dict": {"num_layers": 2}}, "unknown key 'num_layers' (config_dict): LISASoft has 'n_layers' instead"),
    ({"config_dict": {"neg_sampling": {"uniform": 1}}}, "'neg_sampling' (config_dict): LISASoft has 'train_neg_sample"),
    ({"model": Linear}, "Linear is not a recommender: derive the class from AttentiveRecommender"),
]


@pytest.mark.parametrize(("arguments", "message"), NAMES)
def test_unknown_names_come_with_known_ones(isolated_run_dir: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        ensure_data(LISAConfig(**{"model": "LISASoft", "dataset": "ml-100k", **arguments}))


def test_heads_of_mamba_may_divide_twice_the_width_only() -> None:
    assert LISAConfig("Mamba2Rec", "ml-100k", config_dict={"n_heads": 16, "hidden_size": 24})["n_heads"] == 16


def test_a_protocol_may_be_a_path_and_a_far_name_is_not_suggested() -> None:
    assert LISAConfig("LISASoft", "ml-100k", protocol=Path("paper"))["protocol"] == "paper"
    with pytest.raises(UsageError) as caught:
        LISAConfig("LISASoft", "ml-100k", config_dict={"drop_filter_field": True})
    assert str(caught.value) == "unknown key 'drop_filter_field' (config_dict)."


def test_a_mistake_in_a_file_names_the_file_and_a_file_may_repeat_what_was_chosen(isolated_run_dir: Path) -> None:
    Path("mine.yaml").write_text("model: LISASoft\ndataset: ml-100k\nepochs: 3\n", encoding="utf-8")
    assert LISAConfig("LISASoft", "ml-100k", config_files=["mine.yaml"])["epochs"] == 3
    Path("mine.yaml").write_text("epoch: 3\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"unknown key 'epoch' \(file mine\.yaml\)\. Did you mean 'epochs'\?"):
        LISAConfig("LISASoft", "ml-100k", config_files=["mine.yaml"])


@pytest.mark.parametrize(
    ("dataset", "conversion"),
    [
        ("ml-1m", "ml-1m ml-1m.zip --output here/ml-1m "),
        ("ml-25m", "ml-25m ml-25m.zip --output here/ml-25m "),
        ("amazon-video-games-18", "amazon-2018 Video_Games.csv --output here/amazon-video-games-18 "),
        ("alibaba", "csv UserBehavior.csv.zip --output here/alibaba --no_header --user=0 --item=1 --time=4 "),
    ],
)
def test_a_missing_file_is_named_with_its_conversion(isolated_run_dir: Path, dataset: str, conversion: str) -> None:
    with pytest.raises(UsageError) as caught:
        ensure_data(LISAConfig("LISASoft", dataset, config_dict={"data_path": "here", "download": False}))
    message = str(caught.value)
    assert f"needs the file here/{dataset}/{dataset}.inter, which does not exist" in message
    assert f"and run: recbole-lisa convert {conversion}" in message
    assert "tab-separated lines under the header user_id:token item_id:token timestamp:float" in message
    assert list(isolated_run_dir.iterdir()) == []


def test_the_archive_of_a_missing_file_comes_from_the_settings(isolated_run_dir: Path) -> None:
    settings = {"archive": "mirror.zip", "source": "my shelf", "download": False}
    with pytest.raises(UsageError, match=r"get mirror\.zip from my shelf and run: .* ml-1m mirror\.zip "):
        ensure_data(LISAConfig("LISASoft", "ml-1m", config_dict=settings))
    with pytest.raises(UsageError, match="unknown key 'epoch'"):
        LISAConfig("LISASoft", "ml-1m", config_dict={"epoch": 3})
