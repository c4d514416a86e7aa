"""Plain pre-split files in this package's own run: one numbering, the files are the split."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recbole_lisa.data.dataset import create_dataset
from recbole_lisa.errors import UsageError
from recbole_lisa.quick_start import run
from tests.tiny import tiny_config, tiny_settings

HEAD = "user_id:token\titem_id:token\ttimestamp:float\n"
NAMES = ("train", "valid", "test")


def split_files(folder: Path) -> None:
    """Write the data set `tiny`, of 12 interactions a user, as three files: the last two are held out."""
    tiny_settings(folder)
    rows = (folder / "tiny" / "tiny.inter").read_text().splitlines(keepends=True)[1:]
    for number, name in enumerate(NAMES):
        part = [row for at, row in enumerate(rows) if max(0, at % 12 - 9) == number]
        (folder / "tiny" / f"tiny.{name}.inter").write_text(HEAD + "".join(reversed(part)))


def test_pre_split_files_give_the_run_of_one_file_with_the_same_split(isolated_run_dir: Path) -> None:
    whole = run("Transformer", "tiny", config_dict=tiny_settings(isolated_run_dir, epochs=1, hidden_size=8))
    split_files(isolated_run_dir)
    settings = tiny_settings(isolated_run_dir, epochs=1, hidden_size=8, benchmark_filename=list(NAMES))
    (isolated_run_dir / "tiny" / "tiny.inter").unlink()
    metrics = []
    for more in ({}, {"dataset_save_path": "kept"}, {"memory_map": True}, {"normalize_all": True}):
        parts = run("Transformer", "tiny", config_dict={**settings, **more})
        note = "no effect: eval_args split, the files train, valid, test are the split"
        log = Path(parts["log"]).read_text()
        assert note in log and "'inter' in load_col" not in log
        metrics.append(parts["test"])
    assert metrics[0].keys() == whole["test"].keys()
    assert metrics == [metrics[0]] * 4


@pytest.mark.parametrize("memory_map", [False, True])
def test_the_parts_are_those_of_the_files(tmp_path: Path, memory_map: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    split_files(tmp_path)
    rows = "u0\tnew\t10\nu0\ti1\t10\nu1\ti2\t10\nw\ti3\t1\nw\ti4\t2\n"
    (tmp_path / "tiny" / "tiny.valid.inter").write_text(HEAD + rows)
    config = tiny_config(tmp_path, benchmark_filename=list(NAMES), memory_map=memory_map)
    train, valid, test = create_dataset(config).build()
    assert "1 users begin in the validation or test part: their first interaction there is no target" in caplog.text
    users = train.field2token_id["user_id"]
    by_user = {token: np.flatnonzero(train.histories.users == number) for token, number in users.items()}
    assert [int(valid.part.count[by_user[user]][0]) for user in ("u0", "u1", "u2", "w")] == [2, 1, 0, 1]
    assert [int(test.part.count[by_user[user]][0]) for user in ("u0", "u2", "w")] == [1, 1, 0]
    assert (train.part.count.sum(), train.item_counts.sum()) == (24 * 9, 24 * 10)
    names = train.field2id_token["item_id"]
    assert sorted(names[valid.inter_feat["item_id"]]) == ["i1", "i2", "i4", "new"]
    assert train.item_counts[list(names).index("new")] == 0


@pytest.mark.parametrize(
    ("files", "settings", "message"),
    [
        ({"valid": None}, {}, r"there is no file .*tiny\.valid\.inter .* which benchmark_filename names"),
        ({"valid": HEAD}, {}, "the validation file of benchmark_filename has no item after another of its user"),
        ({"test": HEAD + "u0\ti1\t3\n"}, {}, "1 users have, .* an interaction of an earlier part after one of a later"),
        ({"test": HEAD.replace("item_id", "item") + "u\ti\t3\n"}, {}, r"test\.inter has no column item_id:token"),
        ({"test": HEAD + "u\ti\t3\nu\ti\tinf\n"}, {}, r"test\.inter, row 2 below the header: the column timestamp"),
        ({"test": HEAD[:-1] + "\tx:float\nu\ti\t1\t1\n"}, {"load_col": None}, r"test\.inter has other columns than"),
        ({"test": HEAD[:-1] + "\titem_id_list:token_seq\nu\ti\t1\ti i\n"}, {}, "histories in the column item_id_list"),
        ({}, {"benchmark_filename": ["train", "train", "test"]}, "it must be three names that differ"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, files: dict[str, Any], settings: dict[str, Any], message: str) -> None:
    split_files(tmp_path)
    for name, text in files.items():
        path = tmp_path / "tiny" / f"tiny.{name}.inter"
        path.unlink() if text is None else path.write_text(text)
    for memory_map in (False, True):
        with pytest.raises(UsageError, match=message):
            given = {"benchmark_filename": list(NAMES), "memory_map": memory_map} | settings
            create_dataset(tiny_config(tmp_path, **given)).build()
