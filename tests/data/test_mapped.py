"""Memory-mapped data sets are those in memory, byte for byte; nothing half-written is used."""

import errno
import json
import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import torch
from pytest import MonkeyPatch

from recbole_lisa.data import mapped, preparation
from recbole_lisa.data.dataloader import create_loaders
from recbole_lisa.data.dataset import MappedDataset, WindowDataset, create_dataset
from recbole_lisa.data.tokens import _HASH_KEYS, Numbering
from recbole_lisa.errors import UsageError
from recbole_lisa.quick_start import run
from recbole_lisa.saved import bundle_of_checkpoint
from tests.data.conftest import MakeConfig, Row
from tests.tiny import tiny_settings

ODD_TIMES = ("", 5, 5.5, 1e-3, -7, 2**53, 1.1)


def odd_rows(n: int = 700) -> list[Row]:
    """Unsorted rows with ties in time, repeats, missing cells, padding as a token and ids that no number equals."""
    users = [*(f"u{n}" for n in range(25)), "", "[PAD]", "07", "7", "é" * 40]
    items = [*(f"i{n}" for n in range(30)), "", "[PAD]", "nan", "0", "x\x1fy"]
    rng = np.random.default_rng(0)
    return [(rng.choice(users), rng.choice(items), rng.choice(ODD_TIMES)) for _ in range(n)]


def contents(data: WindowDataset) -> dict[str, Any]:
    """Everything that models, samplers and metrics read, with all batches."""
    train, valid, test = create_loaders(data.config, data)
    built = train.dataset
    loaders = [loader for loader in (train, valid, test) if loader is not None]
    store = built.histories
    batches = [batch.interaction for batch in train]
    for batch in (batch for loader in loaders[1:] for batch in loader):
        candidates = torch.zeros(0) if batch.candidates is None else batch.candidates
        batches.append({**batch.interaction.interaction, "candidates": candidates})
    return {
        "arrays": [(part.dtype, part.tobytes()) for part in (store.items, store.gaps, store.offsets, store.users)],
        "tokens": {name: list(data.field2id_token[name]) for name in (data.uid_field, data.iid_field)},
        "numbers": {name: dict(data.field2token_id[name]) for name in (data.uid_field, data.iid_field)},
        "statistics": (built.item_counts.tobytes(), built.time_unit, built.data_fingerprint),
        "columns": (data.field2source, dict(data.field2seqlen), data.field2bucketnum),
        "frames": [loader.dataset.inter_feat.to_dict("list") for loader in loaders],
        "sizes": (data.user_num, data.item_num, data.inter_num, data.sparsity, data.avg_actions_of_users),
        "batches": [[(name, value.numpy().tobytes()) for name, value in batch.items()] for batch in batches],
    }


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "_BLOCK_ROWS", 37)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"user_inter_num_interval": "[16,inf)", "item_inter_num_interval": "[15,26];(27,30)"},
        {"rm_dup_inter": "first", "item_inter_num_interval": "[6,inf)"},
        {"rm_dup_inter": "last"},
        {"TIME_FIELD": "~", "rm_dup_inter": "last"},
        {"TIME_FIELD": "~"},
        {"val_interval": {"timestamp": "(-10,6];[9,inf)", "item_id": [f"i{n}" for n in range(20)]}},
        {"protocol": "global_time"},
        {"protocol": "paper", "eval_args": {"mode": {"valid": "uni3", "test": "pop3"}}},
    ],
    ids=str,
)
def test_mapped_data_are_those_in_memory(make_config: MakeConfig, tmp_path: Path, settings: dict[str, Any]) -> None:
    rows, settings = odd_rows(), {**settings, "checkpoint_dir": str(tmp_path / "saved")}
    expected = contents(create_dataset(make_config(rows, memory_map=False, **settings)))
    for _ in range(2):
        data = create_dataset(make_config(rows, memory_map=True, **settings))
        assert isinstance(data, MappedDataset)
        actual = contents(data)
        assert {name for name in expected if actual[name] != expected[name]} == set()


def test_a_run_has_the_metrics_checkpoint_and_export_of_data_in_memory(tmp_path: Path) -> None:
    results, exported = [], []
    for memory_map in (False, True):
        folder = tmp_path / str(memory_map)
        settings = tiny_settings(folder, epochs=1, memory_map=memory_map, hidden_size=8, n_codewords=4)
        results.append(run("LISASoft", "tiny", protocol="full_ranking", config_dict=settings))
        bundle, data = bundle_of_checkpoint(results[-1]["checkpoint"])
        exported.append((list(bundle.ids.arrays()["text"]), data.data_fingerprint))
        assert "inter_feat" not in vars(data) or not memory_map
    assert results[0]["test"] == results[1]["test"]
    assert exported[0] == exported[1]


@pytest.mark.parametrize("size", [0, 2**40])
def test_auto_maps_large_files(make_config: MakeConfig, monkeypatch: MonkeyPatch, tmp_path: Path, size: int) -> None:
    monkeypatch.setattr(mapped, "AUTO_BYTES", size)
    data = create_dataset(make_config(odd_rows(), checkpoint_dir=str(tmp_path / "saved")))
    assert isinstance(data, MappedDataset) == (not size)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"load_col": None}, "load_col reads .*tiny.user"), ({"TIME_FIELD": "no"}, ".*tiny.inter has no column no:float")],
    ids=str,
)
def test_what_cannot_be_mapped_is_an_error_and_stays_in_memory_with_auto(
    make_config: MakeConfig, tmp_path: Path, settings: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(odd_rows(), memory_map=True, **settings)
    (tmp_path / "tiny" / "tiny.user").write_text("user_id:token\tage:float\nu1\t5\n", encoding="utf-8")
    with pytest.raises(UsageError, match=f"memory_map is set, but {reason}"):
        create_dataset(config)
    config["memory_map"] = "auto"
    with patch.object(mapped, "AUTO_BYTES", 0), caplog.at_level("INFO"):
        assert mapped.MappedFolder.of(config) is None
    assert re.search(f"memory_map: auto leaves the data in memory, as .*{reason}", caplog.text)


def test_other_data_is_prepared_anew_and_a_damaged_folder_is_kept(make_config: MakeConfig, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    settings = {"memory_map": True, "dataset_save_path": str(kept)}
    create_dataset(make_config(odd_rows(), **settings))
    other = create_dataset(make_config([*odd_rows(), ("new", "i1", 3)], **settings))
    assert other.field2token_id["user_id"]["new"] == other.user_num - 1
    assert "newer" not in other.field2token_id["user_id"]
    assert other.field2id_token["user_id"][-1] == "new"
    with pytest.raises(IndexError):
        other.field2id_token["user_id"][other.user_num]
    manifest = json.loads((kept / "manifest.json").read_text())
    (kept / "manifest.json").write_text(json.dumps(manifest | {"format": "recbole-lisa mapped data set 1", "key": "a"}))
    create_dataset(make_config([*odd_rows(), ("new", "i1", 3)], **settings))
    assert json.loads((kept / "manifest.json").read_text()) == manifest
    (kept / "manifest.json").write_text(json.dumps(manifest | {"format": "other"}))
    with pytest.raises(UsageError, match="its manifest is of another program"):
        create_dataset(make_config([*odd_rows(), ("new", "i1", 3)], **settings))
    (kept / "manifest.json").write_text(json.dumps(manifest))
    (kept / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"it holds notes\.txt, which would be lost.*: name another folder"):
        create_dataset(make_config(odd_rows()[1:], **settings))
    (kept / "notes.txt").unlink()
    cut = kept / "items.npy"
    cut.write_bytes(cut.read_bytes()[:-1])
    (tmp_path / "file").write_text("half", encoding="utf-8")
    for name, change in {
        "keys": {"surprise": 1},
        "names": {"arrays": {"../x": 1}},
        "types": {"types": {"user_id": "odd"}},
        "parts": {"sources": []},
    }.items():
        shutil.copytree(kept, tmp_path / name)
        manifest = json.loads((kept / "manifest.json").read_text(encoding="utf-8"))
        (tmp_path / name / "manifest.json").write_text(json.dumps(manifest | change), encoding="utf-8")
    for path in (kept, *(tmp_path / name for name in ("file", "keys", "names", "types", "parts"))):
        settings["dataset_save_path"] = str(path)
        with pytest.raises(UsageError, match=f"'{path}' is not a saved data set, or is damaged .*: name another"):
            create_dataset(make_config([*odd_rows(), ("new", "i1", 3)], **settings))
        assert path.exists()
    assert (tmp_path / "file").read_text(encoding="utf-8") == "half"


@pytest.mark.parametrize("checked_bytes", [mapped.CHECKED_BYTES, 0])
def test_a_changed_byte_is_refused_in_arrays_that_are_read_and_in_small_ones_that_are_mapped(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked_bytes: int
) -> None:
    monkeypatch.setattr(mapped, "CHECKED_BYTES", checked_bytes)
    settings = {"save_dataset": True, "dataset_save_path": str(tmp_path / "kept")}
    create_dataset(make_config(odd_rows(), **settings))
    for path in sorted((tmp_path / "kept").glob("*.npy")):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        for memory_map in (False, True):
            config = make_config(odd_rows(), **settings, memory_map=memory_map)
            if memory_map and not checked_bytes:
                assert isinstance(create_dataset(config), MappedDataset)
                continue
            with pytest.raises(UsageError, match=f"is damaged .{path.name} has another size or checksum.: name"):
                create_dataset(config)
        path.write_bytes(content)
    assert create_dataset(config).build()


FORGED: list[tuple[str, Any]] = [
    *(("items", value) for value in (-1, 0, 1000)),
    *(("offsets", value) for value in (-1, 10**6)),
    *(("times", value) for value in (np.nan, np.inf)),
    *(("gaps", value) for value in (np.nan, -1)),
    *((name, value) for name in ("user_ends", "item_ends") for value in (0, 10**9)),
    *((name, value) for name in ("user_text", "item_text") for value in (0, 255)),
    *(("arrays", [name, change]) for name in ("items", "gaps", "offsets") for change in ("float16", "shape")),
    *(("lengths", {"user_id": value}) for value in (10**12, "x", 0)),
    ("buckets", {"timestamp": "x"}),
]


@pytest.mark.parametrize(("name", "value"), FORGED, ids=str)
def test_forged_arrays_with_right_checksums_are_refused(
    make_config: MakeConfig, tmp_path: Path, name: str, value: Any
) -> None:
    kept = tmp_path / "kept"
    settings = {"save_dataset": True, "dataset_save_path": str(kept), "memory_map": True}
    create_dataset(make_config(odd_rows(), **settings))
    manifest = json.loads((kept / "manifest.json").read_text())
    if isinstance(value, dict):
        manifest[name] |= value
    else:
        name, change = value if name == "arrays" else (name, None)
        array, path = np.load(kept / f"{name}.npy"), kept / f"{name}.npy"
        if change is None:
            array[1] = value
        np.save(path, array[:-1] if change == "shape" else array if change is None else np.zeros_like(array, change))
        manifest["arrays"][name] = [path.stat().st_size, mapped._checksum(path)]
    (kept / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match=r"is not a saved data set, or is damaged \(.+\): name another folder"):
        create_dataset(make_config(odd_rows(), **settings))


FAILURES = {
    "full disk": (OSError(errno.ENOSPC, "No space left on device"), UsageError, "kept': No space left on device; pre"),
    "interrupted": (KeyboardInterrupt(), KeyboardInterrupt, None),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("step", ["_sort", "_read"])
def test_nothing_is_left_of_a_data_set_that_is_not_complete(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: MonkeyPatch, step: str, failure: str
) -> None:
    config = make_config(odd_rows(), memory_map=True, dataset_save_path=str(tmp_path / "saved" / "kept"))
    done, (error, raised, message) = getattr(preparation, step), FAILURES[failure]

    def fail(*arguments: Any) -> None:
        done(*arguments)
        raise error

    with monkeypatch.context() as patched, pytest.raises(raised, match=message):
        patched.setattr(preparation, step, fail)
        create_dataset(config)
    assert list((tmp_path / "saved").iterdir()) == []
    assert create_dataset(config).build()


def test_one_of_two_prepares_and_the_other_waits(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(odd_rows(), memory_map=True, dataset_save_path=str(tmp_path / "saved" / "kept"))
    begun, may_end, prepare = threading.Event(), threading.Event(), mapped.write_arrays
    calls: list[Path] = []

    def slow(data: Any, folder: Path) -> None:
        calls.append(folder)
        begun.set()
        assert may_end.wait(60)
        prepare(data, folder)

    monkeypatch.setattr(mapped, "write_arrays", slow)
    with ThreadPoolExecutor(2) as pool, caplog.at_level("INFO"):  # the lock is between threads as between processes
        first = pool.submit(create_dataset, config)
        assert begun.wait(60)
        second = pool.submit(create_dataset, config)
        end = time.monotonic() + 60
        while f"another process prepares '{tmp_path / 'saved' / 'kept'}'" not in caplog.text:
            assert time.monotonic() < end
            time.sleep(0.01)
        may_end.set()
        assert contents(first.result()) == contents(second.result())
    assert (len(calls), caplog.text.count("data set mapped from")) == (1, 2)
    assert [path.name for path in (tmp_path / "saved").iterdir()] == ["kept"]


def test_texts_with_one_hash_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    numbering = Numbering()
    texts = np.array(["a", "b", "ä" * 300], dtype=object)
    assert [*numbering.numbers(texts), *numbering.numbers(texts[::-1])] == [0, 1, 2, 2, 1, 0]
    hashed = pd.util.hash_array

    def one_hash(texts: Any, hash_key: str, categorize: bool) -> Any:
        return hashed(texts, hash_key=hash_key, categorize=categorize) * np.uint64(hash_key != _HASH_KEYS[0])

    monkeypatch.setattr(pd.util, "hash_array", one_hash)
    numbering = Numbering()
    numbering.numbers(texts[:1])
    with pytest.raises(UsageError, match="two users or two items have one 64-bit hash"):
        numbering.numbers(texts[1:2])
