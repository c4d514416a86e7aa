import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pytest import LogCaptureFixture
from recbole.data.dataset import SequentialDataset
from recbole.model.sequential_recommender import SASRec

from recbole_lisa.config.config import LISAConfig
from recbole_lisa.data.dataloader import create_loaders
from recbole_lisa.data.dataset import WindowDataset, create_dataset
from recbole_lisa.errors import UsageError
from tests.data.conftest import MakeConfig, Row, rows_of
from tests.tiny import tiny_loaders

# Users of 1, 2, 3, 4, 7 and 11 interactions, rows in random order, times that float32 can hold.
LENGTHS = {"u1": 1, "u2": 2, "u3": 3, "u4": 4, "u7": 7, "u11": 11}
TINY = [(user, f"i{(7 * t + n) % 9}", 10 * t) for n, user in enumerate(LENGTHS) for t in range(LENGTHS[user])]
TINY = [TINY[row] for row in np.random.default_rng(0).permutation(len(TINY))]

# RecBole's own loading, which some tests compare with, uses what later versions of pandas warn about.
pytestmark = pytest.mark.filterwarnings("ignore:A value is trying to be set on a copy:FutureWarning")

FIELDS = ["user_id", "item_id", "timestamp"]


def tokens(dataset: WindowDataset | SequentialDataset, field: str, ids: Any) -> tuple[str, ...]:
    return tuple(str(token) for token in dataset.id2token(field, np.asarray(ids)))


@pytest.mark.oracle
@pytest.mark.parametrize(
    "split", [{"LS": "valid_and_test"}, {"LS": "valid_only"}, {"LS": "test_only"}, {"RS": [0.8, 0.1, 0.1]}], ids=str
)
def test_last_position_samples_equal_recboles_augmentation(make_config: MakeConfig, split: dict[str, Any]) -> None:
    config = make_config(TINY, eval_args={"split": split}, supervision="last_position", train_batch_size=3)
    dataset = create_dataset(config)
    loaders = create_loaders(config, dataset)
    assert len(loaders[0]) > 0
    for reference, loader in zip(SequentialDataset(config).build(), loaders, strict=True):
        assert sorted(rows_of(dataset, loader or ())) == sorted(rows_of(reference, [reference.inter_feat]))


def test_items_are_numbered_as_recbole_numbers_them(make_config: MakeConfig) -> None:
    config = make_config(TINY)
    reference, dataset = SequentialDataset(config), create_dataset(config)
    for field in FIELDS[:2]:
        np.testing.assert_array_equal(dataset.field2id_token[field], reference.field2id_token[field])
        assert dataset.token2id(field, reference.field2id_token[field][1]) == 1
        assert dataset.num(field) == reference.num(field)


def test_phases_share_the_store_and_hold_their_own_rows(make_config: MakeConfig) -> None:
    dataset = create_dataset(make_config(TINY))
    phases = dataset.build()
    assert [len(phase.inter_feat) for phase in phases] == [len(TINY) - 3 - 4, 3, 4]
    store = dataset.histories
    assert all(phase.histories is store for phase in phases)
    assert (store.items.dtype, store.gaps.dtype) == (np.int32, np.float32)


def test_item_counts_and_time_unit_come_from_training_rows_only(make_config: MakeConfig) -> None:
    rows: list[Row] = [("u", "a", 0), ("u", "b", 5), ("u", "a", 12), ("u", "c", 1000), ("u", "d", 9000)]
    train, _, _ = create_dataset(make_config(rows)).build()
    assert tokens(train, "item_id", range(1, 5)) == ("a", "b", "c", "d")
    assert train.item_counts[1:].tolist() == [2, 1, 0, 0]
    assert train.item_counts.dtype == np.int64
    assert train.time_unit == 6.0
    train, _, _ = create_dataset(make_config([("u", item, 3) for item in "abcd"])).build()
    assert train.time_unit == 1.0  # no gap is positive


DAY = 881_250_949  # float32 cannot separate the seconds after it
CLOSE: list[Row] = [*(("u", item, DAY + n) for item, n in (("d", 3), ("b", 1), ("c", 2), ("a", 0))), ("v", "c", DAY)]
NO_TIME: list[Row] = [("u", "d", 9), ("v", "a", 1), ("u", "c", 5), ("u", "a", 7), ("v", "b", 0)]
MISSING: list[Row] = [("u", "a", 0), ("u", "b", 100.5), ("u", "c", ""), ("u", "d", 20)]
REPEATED: list[Row] = [("u", "c", 5), ("u", "b", 7), ("u", "a", 7), ("u", "c", 7), ("u", "b", 6)]


@pytest.mark.parametrize(
    ("rows", "settings", "items", "gaps"),
    [
        (CLOSE, {"normalize_all": True}, "abcdc", [0, 1, 1, 1, 0]),
        (CLOSE, {"normalize_all": False}, "abcdc", [0, 1, 1, 1, 0]),
        (NO_TIME, {"TIME_FIELD": "~"}, "dcaab", [0, 1, 1, 0, 1]),
        (MISSING, {}, "adcb", [0, 20, 20.166666, 60.333333]),  # the mean time
        (REPEATED, {"rm_dup_inter": "first"}, "cba", [0, 1, 1]),
        (REPEATED, {"rm_dup_inter": "last"}, "bac", [0, 0, 0]),
    ],
)
def test_items_are_ordered_by_time_and_then_by_file_with_the_seconds_between_them(
    make_config: MakeConfig, rows: list[Row], settings: dict[str, Any], items: str, gaps: list[float]
) -> None:
    train, _, _ = create_dataset(make_config(rows, **settings)).build()
    assert "".join(tokens(train, "item_id", train.histories.items)) == items
    np.testing.assert_allclose(train.histories.gaps, gaps)


@pytest.mark.oracle
@pytest.mark.parametrize(("users", "items"), [("[3,7]", "[2,inf)"), ("(2,inf)", None), (None, "[1,2];(3,9]")])
def test_filters_keep_the_rows_of_recbole(make_config: MakeConfig, users: str | None, items: str | None) -> None:
    config = make_config(TINY, user_inter_num_interval=users, item_inter_num_interval=items)
    reference, dataset = SequentialDataset(config), create_dataset(config)
    assert 0 < len(dataset.inter_feat) < len(TINY)
    pd.testing.assert_frame_equal(dataset.inter_feat, reference.inter_feat, check_dtype=False)


def test_rows_without_user_or_item_are_left_out(make_config: MakeConfig) -> None:
    dataset = create_dataset(make_config([*TINY, ("", "i1", 3), ("u7", "", 4), ("", "", 5)]))
    assert len(dataset.inter_feat) == len(TINY)
    assert not {"nan", ""} & {*dataset.field2id_token["user_id"], *dataset.field2id_token["item_id"]}


def test_renamed_fields_are_loaded_without_load_col(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(TINY, USER_ID_FIELD="session_id", ITEM_ID_FIELD="page", TIME_FIELD="when")
    text = (tmp_path / "tiny" / "tiny.inter").read_text().replace("user_id", "session_id").replace("item_id", "page")
    (tmp_path / "tiny" / "tiny.inter").write_text(text.replace("timestamp", "when"))
    train, _, _ = create_dataset(config).build()
    assert {"session_id", "page", "when"} == set(train.field2type)
    assert len(train.histories.items) == len(TINY)


def test_item_features_are_loaded_as_recbole_loads_them(
    make_config: MakeConfig, tmp_path: Path, caplog: LogCaptureFixture
) -> None:
    config = make_config(TINY, load_col={"inter": FIELDS, "item": ["genre", "year"]})  # and the id
    lines = ["item_id:token\tgenre:token_seq\tyear:float", *(f"i{n}\tx y{n}\t{1990 + n}" for n in range(8))]
    lines.append("i3\tz\t2000")
    (tmp_path / "tiny" / "tiny.item").write_text("\n".join(lines) + "\n", encoding="utf-8")
    dataset = create_dataset(config)
    assert "tiny.item: 1 rows repeat an earlier item_id: the first row of each is kept" in caplog.text
    dataset.build()
    features = dataset.get_item_feature()
    assert features["genre"].shape == (dataset.item_num, 2)
    row = dataset.token2id("item_id", "i3")
    assert tokens(dataset, "genre", features["genre"][row]) == ("x", "y3")
    assert features["year"][row] == 1993
    # Item i8 has no features: by RecBole's filter_inter_by_user_or_item its interactions are left out.
    assert "i8" not in dataset.field2id_token["item_id"]


def test_ml_100k_has_the_papers_counts_and_the_order_of_time() -> None:
    config = LISAConfig(SASRec, "ml-100k", protocol="paper", config_dict={"loss_type": "BPR"})
    train, valid, test = tiny_loaders(config)
    data = train.dataset
    assert (data.user_num - 1, data.item_num - 1, len(data.histories.items)) == (943, 1349, 99_287)
    assert valid is None and test is not None
    assert len(test.windows) == 943
    assert int(train.windows.length.sum()) == 99_287 - 2 * 943
    # The order is a stable sort of the file by user and time.
    frame = pd.read_csv(f"{data.dataset_path}/ml-100k.inter", sep="\t", dtype=str)
    frame = frame[frame["item_id:token"].isin(set(data.field2id_token["item_id"]))]
    users, items = (data.token2id(name, frame[f"{name}:token"].to_numpy()) for name in ("user_id", "item_id"))
    order = np.lexsort([frame["timestamp:float"].astype(int), users])
    np.testing.assert_array_equal(data.histories.items, items[order])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"normalize_field": ["timestmp"]}, "normalize_field names 'timestmp', which is not a loaded .*'timestamp'"),
        ({"save_dataloaders": True}, "save_dataloaders is not supported"),
        ({"benchmark_filename": ["train", "test"]}, "it must be three names that differ: .train, valid, test."),
        ({"item_inter_num_interval": "[99,inf)"}, r"no interaction of tiny passes the filters: .*\[99,inf\)"),
        ({"val_interval": {"timestamps": "[0,5]"}}, "'timestamps'.* Did you mean 'timestamp'"),
        ({"val_interval": {"timestamp": "100"}}, r"val_interval of timestamp must be intervals .* got '100'"),
        ({"val_interval": {"timestamp": None}}, "val_interval of timestamp must be intervals .* got 'None'"),
        ({"val_interval": {"item_id": "i1"}}, "of item_id, a column of tokens, must be a list .* got 'i1'"),
        ({"unload_col": {"inter": ["item_id"]}, "load_col": None}, "no column item_id:token .*, or unload_col names"),
        ({"unload_col": {"item": ["item_id"]}, "load_col": None}, "tiny.item has no column item_id:token .*, or un"),
        ({"load_col": {"inter": [*FIELDS, "item"]}}, "load_col names 'item', .*inter has user_id:.* mean 'item_id'"),
        ({"unload_col": {"inter": ["rating"]}, "load_col": None}, "unload_col names 'rating', .*inter has user_id"),
        ({"normalize_field": ["user_id"]}, "normalize_field names 'user_id', which is not a loaded column of numbers"),
        ({"seq_len": {"user": 3}}, "seq_len names 'user', which is not a loaded column. Did you mean 'user_id'?"),
        ({"USER_ID_FIELD": "session_id"}, r"no column session_id:token \(USER_ID_FIELD\).* has user_id:token"),
        ({"TIME_FIELD": "when"}, "ordered by a column when:float .* set TIME_FIELD to ~ where the file is in"),
        ({"val_interval": {"price": "[0,5]"}}, "loaded are user_id, item_id, timestamp; load_col adds more"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_mistakes_are_named(make_config: MakeConfig, tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    (tmp_path / "tiny").mkdir()
    lines = ["item_id:token\tyear:float", *(f"i{n}\t1" for n in range(20))]
    (tmp_path / "tiny" / "tiny.item").write_text("\n".join(lines) + "\n")
    with pytest.raises(UsageError, match=message):
        create_dataset(make_config(TINY, **settings)).build()


def test_missing_file_is_named_and_leaves_no_folder(make_config: MakeConfig, tmp_path: Path) -> None:
    configs = [make_config(TINY), make_config(TINY, dataset_save_path=str(tmp_path / "kept"))]
    (tmp_path / "tiny" / "tiny.inter").unlink()
    (tmp_path / "tiny").rmdir()
    for config in configs:
        with pytest.raises(UsageError, match="there is no file .*tiny.inter"):
            create_dataset(config)
    assert not (tmp_path / "tiny").exists()


def test_values_keep_numbers_in_intervals_and_tokens_in_lists(make_config: MakeConfig) -> None:
    rows = [("u", str(item), item) for item in range(1, 9)]

    def left(**intervals: Any) -> list[str]:
        dataset = create_dataset(make_config(rows, val_interval=intervals))
        return [str(token) for token in dataset.field2id_token["item_id"][1:]]

    assert left(timestamp="[2,4);(7,inf)") == ["2", "3", "8"]
    assert left(item_id=[3, "5", "gone"]) == ["3", "5"]
    assert left(item_id=["3", "5"], timestamp="(3,9]") == ["5"]


def test_every_filter_logs_what_it_leaves_without_warnings(make_config: MakeConfig, caplog: LogCaptureFixture) -> None:
    rows = [*TINY, ("", "i", 1), ("u1", "i1", 99), ("rare", "i1", 5)]
    filters = {"rm_dup_inter": "first", "user_inter_num_interval": "[2,inf)"}
    config = make_config(rows, val_interval={"timestamp": "[0,98]"}, **filters)
    with caplog.at_level("INFO"), warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny_loaders(config)
    lines = [record.message for record in caplog.records if record.message.startswith("tiny: ")]
    counts = [int(line.split()[1]) for line in lines]
    assert counts[0] == len(rows)
    assert counts == sorted(counts, reverse=True)
    assert "tiny: 31 interactions of" in lines[0] and lines[0].endswith(" read")
    assert lines[1].endswith("left after rows without user or item are left out")
    assert any("rm_dup_inter='first'" in line for line in lines)
    assert "user_inter_num_interval='[2,inf)', item_inter_num_interval=" in lines[-2]


PAIR = [("u", "i", 1), ("u", "j", 2)]
TIMES, COUNTS = {"val_interval": {"timestamp": "[5,9]"}}, {"user_inter_num_interval": "[5,inf)"}


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ([], {}, "tiny holds no interactions: its file has a header and no rows"),
        ([("", "i", 1)], {}, "without user or item are left out leaves nothing of 1 interactions of 0 users with 1"),
        (PAIR, TIMES, r"\{'timestamp': '\[5,9\]'\} leaves nothing of 2 interactions of 1 users with 2 items; loosen"),
        (PAIR, COUNTS, r"='\[5,inf\)', .* leaves nothing of 2 .* \(a user has at most 2, an item 1\); loo"),
    ],
)
def test_no_rows_left_are_an_error(make_config: MakeConfig, rows: list[Row], settings: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        create_dataset(make_config(rows, **settings))


def test_counts_of_the_data_set_and_of_each_part_are_logged(make_config: MakeConfig, caplog: LogCaptureFixture) -> None:
    config = make_config(TINY)
    with caplog.at_level("INFO"):
        train, _, _ = tiny_loaders(config)
        create_dataset(make_config([("u", "i", 1), ("u", "j", 1), ("v", "i", 1)])).build()
        create_dataset(make_config(PAIR, TIME_FIELD="~")).build()
    assert train.skipped_users == 1
    for line in (
        "tiny: 6 users, 9 items, 28 interactions after filtering",
        "6 windows of at most 4 items (all_positions), 1 users skipped",
        "1 interactions have the time of the user's previous interaction: the order of the file decides",
        "TIME_FIELD is ~: interactions keep the order of the file, one time unit apart",
        "training: 1 targets of 1 users",
        "validation: 0 targets of 0 users",
        "test: 0 targets of 0 users",
    ):
        assert line in caplog.text


@pytest.mark.parametrize(
    "settings",
    [
        {"alias_of_user_id": ["u2"], "alias_of_item_id": ["x_list"]},
        {"numerical_features": ["price"], "discretization": {"timestamp": {"method": "ED", "bucket": 3}}},
        {"additional_feat_suffix": ["useremb"], "threshold": {"timestamp": 3}, "unused_col": {"inter": ["timestamp"]}},
        {"RATING_FIELD": "foo", "LABEL_FIELD": "user_id", "ENTITY_ID_FIELD": "e"},
        {"load_col": {"inter": FIELDS, "user": ["user_id", "age"], "link": ["user_id"]}},
    ],
)
def test_keys_have_no_effect(make_config: MakeConfig, caplog: LogCaptureFixture, settings: dict[str, Any]) -> None:
    plain = create_dataset(make_config(TINY)).build()[0]
    config = make_config(TINY, **settings)
    with caplog.at_level("INFO"):
        changed = create_dataset(config).build()[0]
    assert changed.data_fingerprint == plain.data_fingerprint and changed.time_unit == plain.time_unit
    lines = " ".join([*config.notes, *caplog.messages])
    for name in settings.get("load_col", settings):
        assert name == "inter" or ("no effect" in lines and name in lines)
    assert "'inter' in load_col" not in lines


@pytest.mark.parametrize(("kind", "time"), [("token", "5"), ("float", "inf"), ("float", "-inf")])
def test_odd_times_are_named_with_row_and_type(make_config: MakeConfig, tmp_path: Path, kind: str, time: str) -> None:
    config = make_config(TINY)
    text = f"user_id:token\titem_id:token\ttimestamp:{kind}\nu\ta\t1\nu\tb\t{time}\nu\tc\t3\n"
    (tmp_path / "tiny" / "tiny.inter").write_text(text)
    message = "row 2 below the header: the column timestamp must hold finite numbers, got -?inf"
    if kind == "token":
        message = "loaded are user_id:token, item_id:token, timestamp:token: name the column, write timestamp:float"
    with pytest.raises(UsageError, match=message):
        create_dataset(config).build()
