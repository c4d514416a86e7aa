"""A run that needs too much memory ends in one line, before the work where that can be known."""

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from pytest import MonkeyPatch

from recbole_lisa.environment import free_memory
from recbole_lisa.errors import UsageError
from recbole_lisa.model.sequential_recommender.lisabase import LISABase
from recbole_lisa.quick_start import run, run_configured
from recbole_lisa.training.memory import check_memory
from tests.tiny import tiny_config, tiny_loaders

CPU_ERROR = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes\nmore")


def test_the_largest_part_is_named_and_items_count_once_they_are_known(tmp_path: Path) -> None:
    for settings, n_items, key in (
        ({"hidden_size": 10**7}, 0, "hidden_size"),
        ({"inner_size": 10**13}, 0, "inner_size"),
        ({"n_codewords": 10**7}, 0, "n_codewords or n_codebooks"),
        ({}, 10**12, "hidden_size .of 1,000,000,000,000 items."),
    ):
        config = tiny_config(tmp_path, model=LISABase, **settings)
        with pytest.raises(UsageError, match=rf"needs at least \d+\.\d GiB .* free: lower {key}, which takes \d"):
            check_memory(config, n_items)
    check_memory(tiny_config(tmp_path, model=LISABase, inner_size="4x"), 30)


@pytest.mark.parametrize(
    ("model", "settings", "key"),
    [
        ("LISASoft", {"n_layers": 10**7}, "n_layers"),
        ("LISAMini", {"n_target_codewords": 10**10}, "n_target_codewords"),
        ("Transformer", {"quantize_items": True, "n_codebooks": 10**8}, "n_codewords or n_codebooks"),
        ("Linformer", {"n_projected": 2 * 10**9}, "n_projected"),
        ("Reformer", {"n_hashes": 10**10}, "n_hashes"),
        ("ClusteredTransformer", {"n_hash_planes": 2 * 10**9}, "n_hash_planes"),
        ("SinkhornTransformer", {"n_top_buckets": 10**12}, "n_top_buckets"),
        ("Mamba2Rec", {"state_size": 10**10}, "state_size"),
        ("Transformer", {"conv_width": 10**10}, "conv_width"),
        (
            "LISABase",
            {"local_window": 2**16, "local_heads": 2**13, "hidden_size": 2**13, "n_layers": 99},
            "local_window",
        ),
        ("Transformer", {"loss_type": "SSM", "shared_negatives": 10**12}, "shared_negatives"),
        ("LISABase", {"nproc": 10**6, "train_batch_size": 10**6}, "nproc"),
    ],
)
def test_settings_of_models_count_before_data(tmp_path: Path, model: str, settings: dict[str, Any], key: str) -> None:
    with pytest.raises(UsageError, match=rf"{model} needs at least .* are free: lower {key}, which takes \d"):
        check_memory(tiny_config(tmp_path, model=model, **settings))


@pytest.mark.parametrize(
    ("model", "settings", "key"),
    [
        ("Transformer", {"inner_size": 10**10}, "inner_size"),
        ("Transformer", {"hidden_size": 10**10, "inner_size": 8}, "train_batch_size or MAX_ITEM_LIST_LENGTH"),
        ("LISAMini", {"train_neg_sample_args": {"sample_num": 10**9}}, "sample_num of train_neg_sample_args"),
        ("Reformer", {"n_hashes": 10**6}, "n_hashes"),
        ("Mamba2Rec", {"state_size": 10**9}, "state_size"),
        ("Transformer", {"conv_width": 10**9}, "conv_width"),
        ("Transformer", {"attn_dropout_prob": 0.1, "n_heads": 2**34, "hidden_size": 2**34}, "attn_dropout_prob to 0"),
    ],
)
def test_a_step_counts_once_the_windows_are_known(
    tmp_path: Path, monkeypatch: MonkeyPatch, model: str, settings: dict[str, Any], key: str
) -> None:
    config = tiny_config(tmp_path, model=model, **settings)
    train, _, _ = tiny_loaders(config)
    monkeypatch.setattr("recbole_lisa.training.memory._parameter_bytes", lambda *_: Counter(hidden_size=1))
    check_memory(config)
    with pytest.raises(UsageError, match=rf"lower {key}"):
        check_memory(config, train.dataset.item_num, train.windows)


def test_no_data_set_is_fetched_for_a_run_that_is_too_large(isolated_run_dir: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr("recbole_lisa.quick_start.ensure_data", lambda _: pytest.fail("the data was fetched"))
    for settings, message in (
        ({"n_codewords": 10**6}, "lower n_codewords or n_codebooks"),
        ({"resume": "gone.pth"}, "no checkpoint 'gone.pth'"),
    ):
        with pytest.raises(UsageError, match=message):
            run("LISABase", "ml-1m", config_dict=settings)


@pytest.mark.parametrize("model", ["Transformer", "SASRec"])
def test_positions_that_no_history_has_are_refused_where_they_are_many(tmp_path: Path, model: str) -> None:
    sizes = {"hidden_size": 8, "inner_size": 8, "n_heads": 1, "loss_type": "CE", "train_neg_sample_args": None}
    for length, message in ((2**20, ""), (10**7, "MAX_ITEM_LIST_LENGTH is 10,000,000, the longest history trains")):
        config = tiny_config(tmp_path, model=model, MAX_ITEM_LIST_LENGTH=length, **sizes)
        windows = tiny_loaders(config)[0].windows
        with pytest.raises(UsageError, match=message) if message else nullcontext():
            check_memory(config, 30, windows)


@pytest.mark.parametrize(
    ("cgroup", "files", "left"),
    [
        ("0::/", {"memory.max": "1000", "memory.current": "900", "memory.stat": "file 9\ninactive_file 50\n"}, 150),
        ("0::/pod/own", {"pod/memory.max": "500", "pod/memory.current": "100", "pod/own/memory.max": "max"}, 400),
        ("0::/unseen", {"memory.max": "500", "memory.current": "100"}, 400),
        ("0::/", {"memory.max": "max", "memory.current": "900"}, None),
        ("4:memory:/a\n0::/", {"memory/a/memory.limit_in_bytes": "7", "memory/a/memory.usage_in_bytes": "6"}, 1),
        ("4:memory:/\n0::/", {"memory/memory.limit_in_bytes": str(2**63), "memory/memory.usage_in_bytes": "6"}, None),
        ("3:cpu:/", {}, None),
        ("0::/", {"memory.max": "100", "memory.current": "900"}, 0),
    ],
)
def test_the_limits_of_a_container_count(
    tmp_path: Path, monkeypatch: MonkeyPatch, cgroup: str, files: dict[str, str], left: int | None
) -> None:
    for name, text in {"proc/self/cgroup": cgroup, **{f"sys/fs/cgroup/{k}": v for k, v in files.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=10**6))
    assert free_memory(tmp_path) == (10**6 if left is None else left)


@pytest.mark.usefixtures("isolated_run_dir")
@pytest.mark.parametrize("error", [MemoryError(), CPU_ERROR, torch.OutOfMemoryError("CUDA out of memory. Tried")])
def test_an_error_of_an_allocator_is_one_line(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(UsageError, match="there is not enough memory .*: lower train_batch_size, .* or n_codewords$"):
        run_configured(tiny_config(tmp_path), prepare=Mock(side_effect=error))


@pytest.mark.usefixtures("isolated_run_dir")
def test_a_run_checks_before_the_data_and_before_the_model(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr("recbole_lisa.quick_start.check_memory", lambda _, *n_items: calls.append(n_items))
    run_configured(tiny_config(tmp_path, epochs=1))
    assert calls[0] == () and calls[1][0] == 31 and len(calls[1][1].length) > 0
