"""Pre-split files in RecBole's own pipeline: rows that bring their histories."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recbole.config import Config
from recbole.data import create_dataset

import recbole_lisa
from recbole_lisa.errors import UsageError
from recbole_lisa.plugin.dataset import AllPositionsDataset
from tests.plugin.recbole_pipeline import SMALL, trained

HEAD = "user_id:token\titem_id_list:token_seq\titem_id:token"
LONG = {"train": 11, "valid": 12, "test": 13}  # histories, of which MAX_ITEM_LIST_LENGTH = 8 items count


def presplit(head: str = HEAD, rename: Callable[[str], str] = str, **settings: Any) -> Any:
    """The data set of files with these columns. Histories hold items that are no target, so ids of their own differ."""
    Path("own").mkdir()
    for part, length in LONG.items():
        histories = [" ".join(f"i{user + k}" for k in range(length)) for user in range(9)]
        rows = [f"u{user}\t{rename(items)}\ti{user + length}" for user, items in enumerate(histories)]
        Path("own", f"own.{part}.inter").write_text("\n".join([head, *rows[::-1], ""]), encoding="utf-8")
    recbole_lisa.register()
    dictionary = {**SMALL, "benchmark_filename": list(LONG), **settings}
    return create_dataset(Config("LISASoft", "own", config_dict=dictionary))


@pytest.mark.parametrize("names", [("user_id", "item_id"), ("visitor", "movie")])
def test_histories_have_the_ids_of_the_items_and_their_last_part_counts(names: tuple[str, str]) -> None:
    user, item = names
    head = f"{user}:token\t{item}_list:token_seq\t{item}:token"
    data = presplit(head, USER_ID_FIELD=user, ITEM_ID_FIELD=item)
    trainer, loaders = trained(data.config, lambda _: data)
    for loader, length in zip(loaders, LONG.values(), strict=True):
        rows = loader.dataset[:]
        assert rows["item_length"].tolist() == [8] * 9
        for visitor, history, target in zip(rows[user], rows[f"{item}_list"], rows[item], strict=True):
            first = int(data.id2token(user, visitor)[1:])
            assert data.id2token(item, history).tolist() == [f"i{first + k}" for k in range(length - 8, length)]
            assert data.id2token(item, target) == f"i{first + length}"
    assert trainer.evaluate(loaders[2]).keys() == {"hit@5", "ndcg@5"}
    with pytest.raises(UsageError, match=r"leave benchmark_filename out, or call recbole_lisa.register\(\) without"):
        AllPositionsDataset(data.config)


@pytest.mark.parametrize(
    ("head", "settings", "message"),
    [
        (HEAD.replace("item_id_list", "history"), {}, "need a column item_id_list:token_seq.*user_id:token, it"),
        (HEAD.replace("token_seq", "token"), {}, "need a column item_id_list:token_seq.*_list:token, "),
        (HEAD, {"load_col": {"inter": ["user_id", "item_id"]}}, "need a column item_id_list:token_seq.*load_col"),
        (HEAD, {"alias_of_item_id": ["other"]}, "alias_of_item_id names 'other'; loaded are user_id:token, it"),
        (HEAD, {"benchmark_filename": ["train"]}, r"\['train'\], it must name the files of training, v"),
        (HEAD, {"USER_ID_FIELD": "visitor"}, r"visitor:token \(USER_ID_FIELD\); loaded are item_id_list:token_seq, i"),
    ],
)
def test_histories_that_cannot_be_read_are_one_line(head: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        presplit(head, **settings)


def test_histories_in_other_ids_than_the_items_are_refused() -> None:
    with pytest.raises(UsageError, match="no item of item_id_list is the item_id of a row of the files of benchmark_f"):
        presplit(rename=lambda history: history.replace("i", ""))
    recbole_lisa.unregister()


def test_items_of_histories_that_are_no_target_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        presplit()
    assert "11 of 21 items of item_id_list are the target of no row" in caplog.text


def test_lists_with_another_separator_are_named(caplog: pytest.LogCaptureFixture) -> None:
    def one_of_them(history: str) -> str:  # so that the ids are not all unknown
        return "i11" if history.startswith("i0 ") else history.replace(" ", ",")

    presplit(rename=one_of_them)
    assert "every item_id_list holds one item: where a list of items was meant, set seq_separator" in caplog.text


def test_a_row_without_a_history_is_counted() -> None:
    Path("own").mkdir()
    for part in LONG:
        rows = [HEAD, "u1\t\ti1", "u2\ti1 i2\ti3", ""]
        Path("own", f"own.{part}.inter").write_text("\n".join(rows), encoding="utf-8")
    recbole_lisa.register()
    with pytest.raises(UsageError, match="3 rows of the files of benchmark_filename have no item in item_id_list"):
        create_dataset(Config("LISASoft", "own", config_dict={**SMALL, "benchmark_filename": list(LONG)}))


def test_other_models_read_presplit_files_as_before() -> None:
    presplit()
    columns = {"inter": ["user_id", "item_id_list", "item_id"]}
    settings = {**SMALL, "benchmark_filename": list(LONG), "load_col": columns}
    settings |= {"MAX_ITEM_LIST_LENGTH": 50, "train_neg_sample_args": None}
    before = create_dataset(Config("SASRec", "own", config_dict=dict(settings)))
    recbole_lisa.unregister()
    after = create_dataset(Config("SASRec", "own", config_dict=dict(settings)))
    assert before.inter_feat.equals(after.inter_feat)
