"""A saved data set is used only for the same data and the same shaping settings, and is the same data set."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest

from recbole_lisa.data import cache, mapped
from recbole_lisa.data.dataset import create_dataset
from recbole_lisa.errors import UsageError
from tests.data.conftest import MakeConfig
from tests.data.test_mapped import contents

ROWS = [(f"u{user}", f"i{(user * 3 + step) % 7}", 10.25 * step + user) for user in range(5) for step in range(6)]


@pytest.fixture
def parsed() -> Iterator[Mock]:
    """Counts the data sets that are loaded from text."""
    with patch.object(mapped, "write_arrays", side_effect=mapped.write_arrays) as loaded:
        yield loaded


def test_a_saved_data_set_is_equal_and_no_text_is_read(make_config: MakeConfig, tmp_path: Path, parsed: Mock) -> None:
    settings = {"save_dataset": True, "checkpoint_dir": str(tmp_path / "saved"), "item_inter_num_interval": "[3,inf)"}
    first, second, third = (
        create_dataset(make_config(ROWS, **settings, memory_map=memory_map)) for memory_map in ("auto", True, False)
    )
    assert parsed.call_count == 1
    bases = [data.histories.items.base for data in (second, third)]
    assert [isinstance(base, np.memmap) for base in bases] == [True, False]
    assert contents(third) == contents(second) == contents(first)
    assert [path.suffix for path in (tmp_path / "saved").iterdir()] == [".dataset"]


@pytest.mark.parametrize(
    ("changed", "rebuilt"),
    [
        ({}, False),
        ({"train_batch_size": 7, "eval_batch_size": 9, "seed": 4}, False),
        ({"MAX_ITEM_LIST_LENGTH": 2, "eval_args": {"split": {"RS": [0.5, 0.2, 0.3]}}}, False),
        ({"user_inter_num_interval": "[2,inf)"}, True),
        ({"rm_dup_inter": "first"}, True),
        ({"val_interval": {"timestamp": "[1,inf)"}}, True),
        ({"encoding": "latin-1"}, True),
    ],
)
def test_settings_that_shape_the_data_rebuild_it_and_others_are_honoured(
    make_config: MakeConfig, tmp_path: Path, parsed: Mock, changed: dict[str, Any], rebuilt: bool
) -> None:
    saved = {"dataset_save_path": str(tmp_path / "kept")}
    create_dataset(make_config(ROWS, **saved))
    config = make_config(ROWS, **saved, **changed)
    for _ in range(2):
        assert create_dataset(config).config is config
        assert parsed.call_count == 1 + rebuilt


def test_other_interactions_rebuild_and_the_same_elsewhere_do_not(
    make_config: MakeConfig, tmp_path: Path, parsed: Mock, caplog: pytest.LogCaptureFixture
) -> None:
    saved = {"dataset_save_path": str(tmp_path / "kept")}
    create_dataset(make_config(ROWS, **saved))
    shutil.copytree(tmp_path / "tiny", tmp_path / "moved" / "tiny")
    create_dataset(make_config(ROWS, **saved, data_path=str(tmp_path / "moved")))
    assert parsed.call_count == 1
    for name in ("svd", "svd_kmeans"):  # codes of item_codes, today's and those of before, which belong to the data
        (tmp_path / "kept" / f"{name}-0123.npz").touch()
    with caplog.at_level("INFO"):
        changed = create_dataset(make_config([*ROWS[:-1], ("u4", "new", 99)], **saved))
    assert parsed.call_count == 2
    assert "new" in changed.field2token_id["item_id"]
    assert f"'{tmp_path / 'kept'}' is of other data or settings and is written anew" in caplog.text


def test_a_link_to_a_folder_is_kept(make_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "large").mkdir()
    (tmp_path / "kept").symlink_to(tmp_path / "large")
    with caplog.at_level("INFO"):
        create_dataset(make_config(ROWS, dataset_save_path=str(tmp_path / "kept")))
    assert (tmp_path / "kept").is_symlink() and (tmp_path / "large" / "manifest.json").is_file()
    assert "written anew" not in caplog.text


def test_what_cannot_be_saved_is_an_error(make_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the data set cannot be saved to '/dev/null/kept'"):
        create_dataset(make_config(ROWS, dataset_save_path="/dev/null/kept"))
    (tmp_path / "tiny" / "tiny.user").write_text("user_id:token\tage:float\nu1\t5\n", encoding="utf-8")
    with pytest.raises(UsageError, match="dataset_save_path is set, but load_col reads .*tiny.user"):
        create_dataset(make_config(ROWS, load_col=None, dataset_save_path=str(tmp_path / "fresh")))


def test_the_key_reads_the_file_to_its_end(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_BLOCK_BYTES", 10)
    keys = [cache.dataset_key(make_config([*ROWS, ("u", "i", last)])) for last in (1, 2, 1)]
    assert keys[0] == keys[2] != keys[1]
    assert mapped.MappedFolder.of(make_config(ROWS)) is None
