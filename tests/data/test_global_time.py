"""The split at two points in time, on a data set whose answer can be read off."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recbole_lisa.errors import UsageError
from recbole_lisa.quick_start import run
from tests.data.conftest import MakeConfig, Row, rows_of
from tests.tiny import tiny_loaders, tiny_settings

# t1 is 10, t2 is 20. a has all periods; b trains nothing; c begins in validation, d in the test; e only trains.
ROWS: list[Row] = [
    *(("a", "i1", 1), ("a", "i2", 2), ("a", "i3", 3), ("a", "i4", 10), ("a", "i5", 20)),
    *(("b", "i1", 2), ("b", "i2", 12), ("b", "i3", 22), ("b", "i6", 23)),
    *(("c", "i7", 13), ("c", "i1", 14), ("c", "i8", 24)),
    *(("d", "i9", 25), ("d", "i2", 26)),
    *(("e", "i1", 5), ("e", "i3", 5)),
]
TRAIN = {("a", "i1", "i2"), ("a", "i1 i2", "i3"), ("e", "i1", "i3")}
VALID = {("a", "i1 i2 i3", "i4"), ("b", "i1", "i2"), ("c", "i7", "i1")}
TEST = {
    *(("a", "i1 i2 i3 i4", "i5"), ("b", "i1 i2", "i3"), ("b", "i1 i2 i3", "i6")),
    *(("c", "i7 i1", "i8"), ("d", "i9", "i2")),
}
TIMES = {"split": {"TS": [10, 20]}}


@pytest.mark.parametrize(
    "times", [[10, 20], ["1970-01-01T00:00:10", "1970-01-01 00:00:20"], ["1970-01-01T01:00:10+01:00", 20.0]], ids=str
)
def test_every_interaction_of_a_period_is_a_target_after_all_before_it(make_config: MakeConfig, times: Any) -> None:
    config = make_config(ROWS, "global_time", eval_args={"split": {"TS": times}}, supervision="last_position")
    train, valid, test = tiny_loaders(config)
    for loader, expected in ((train, TRAIN), (valid, VALID), (test, TEST)):
        rows = rows_of(loader.dataset, loader)
        assert set(rows) == expected and len(rows) == len(expected)


def test_ranks_within_each_user_are_no_times_of_all(make_config: MakeConfig, caplog: pytest.LogCaptureFixture) -> None:
    ranks = [(user, f"i{rank}", rank) for user in ("a", "b", "c") for rank in range(9)]
    warning = "every history begins at 0: its times look like ranks of one user"
    for rows, is_warned in ((ranks, True), (ROWS, False)):
        caplog.clear()
        tiny_loaders(make_config(rows, "global_time", eval_args={"split": {"TS": [0.5, 0.2, 0.3]}}))
        assert (warning in caplog.text) == is_warned


def test_training_knows_nothing_of_the_future(make_config: MakeConfig) -> None:
    settings = {"supervision": "last_position", "train_neg_sample_args": {"sample_num": 50}}
    train, _, _ = tiny_loaders(make_config(ROWS, "global_time", eval_args=TIMES, **settings))
    items = train.dataset.field2id_token["item_id"]
    counts = dict(zip(items[1:], train.dataset.item_counts[1:].tolist(), strict=True))
    assert {item: count for item, count in counts.items() if count} == {"i1": 3, "i2": 1, "i3": 2}
    assert train.dataset.item_counter == {item: count for item, count in enumerate(train.dataset.item_counts) if count}
    negatives = {str(item) for batch in train for item in items[batch["neg_item_id"].flatten()]}
    assert negatives == {"i1", "i2", "i3"}
    assert train.dataset.time_unit == 1.0


@pytest.mark.parametrize("supervision", ["all_positions", "last_position"])
def test_another_future_gives_the_same_training_batches(make_config: MakeConfig, supervision: str) -> None:
    rng = np.random.default_rng(3)
    users, items = rng.integers(0, 20, 400), rng.integers(0, 30, 400)
    rows = [(f"u{user}", f"i{item}", time) for time, (user, item) in enumerate(zip(users, items, strict=True))]
    others = [(u, f"i{(int(str(item)[1:]) * 7 + 3) % 30}", 240 + (time - 240) * 3) for u, item, time in rows[240:]]
    assert len({item for _, item, _ in rows[:240]}) == 30  # so that the future does not number items
    batches = []
    for future in (rows[240:], others):
        split = {"split": {"TS": [240, 300]}}
        config = make_config([*rows[:240], *future], "global_time", eval_args=split, supervision=supervision)
        train, _, _ = tiny_loaders(config)
        dataset = train.dataset
        batches.append(([dict(batch.interaction) for batch in train], dataset.item_counts, dataset.time_unit))
    (first, counts, unit), (second, other_counts, other_unit) = batches
    np.testing.assert_array_equal(counts, other_counts)
    assert unit == other_unit and len(first) == len(second)
    for left, right in zip(first, second, strict=True):
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left)


def test_seen_items_are_those_before_the_target(make_config: MakeConfig) -> None:
    config = make_config(ROWS, "global_time", eval_args=TIMES, eval_seen="mask", MAX_ITEM_LIST_LENGTH=1)
    test = tiny_loaders(config)[2]
    items, seen = test.dataset.field2id_token["item_id"], {}
    for batch in test:
        assert batch.seen is not None
        for row, target in enumerate(batch.interaction["item_id"].tolist()):
            seen[str(items[target])] = set(items[batch.seen[1][batch.seen[0] == row].tolist()])
    whole = {target: set(inputs.split()) for _, inputs, target in TEST}
    assert seen == whole


@pytest.mark.parametrize(
    ("ratios", "counts"),
    [
        ([0.6, 0.2, 0.2], (5, 2, 2)),
        ([6, 2, 2], (5, 2, 2)),
        ([0.7, 0.1, 0.2], (6, 1, 2)),
        ([0.8, 0, 0.2], (7, 0, 2)),
        ([9, 1, 0], (8, 1, 0)),
        ([1, 0, 0], (9, 0, 0)),
    ],
    ids=str,
)
def test_ratios_are_of_interactions(make_config: MakeConfig, ratios: list[float], counts: tuple[int, ...]) -> None:
    rows = [("u", f"i{time}", time * 100) for time in range(10)]
    config = make_config(rows, "global_time", eval_args={"split": {"TS": ratios}}, supervision="last_position")
    found = [0 if loader is None else len(loader.windows) for loader in tiny_loaders(config)]
    assert tuple(found) == counts


def test_equal_times_stay_together(make_config: MakeConfig) -> None:
    rows = [(user, f"i{n}", time) for user in "uv" for n, time in enumerate((1, 1, 1, 4, 4, 4, 4, 8, 8, 9))]
    config = make_config(rows, "global_time", eval_args={"split": {"TS": [0.5, 0.3, 0.2]}}, supervision="last_position")
    # Half of 20 rows end within time 4, 80% within time 8: these times go to the later part.
    assert [len(loader.windows) for loader in tiny_loaders(config)] == [2 * 2, 2 * 4, 2 * 3]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([27, 28], "the split .* leaves no validation item .*: times are from 1 to 26 seconds, t1 is 27, t2 is 28"),
        ([3, 27], "leaves no test item after another of its user"),
        ([0, 12], "leaves no training item after another of its user"),
    ],
    ids=str,
)
def test_a_period_without_targets_is_refused(make_config: MakeConfig, times: list[int], message: str) -> None:
    config = make_config(ROWS, "global_time", eval_args={"split": {"TS": times}})
    with pytest.raises(UsageError, match=message):
        tiny_loaders(config)


def test_a_run_by_time_gives_both_rankings_and_all_users_a_row(isolated_run_dir: Path) -> None:
    settings = tiny_settings(isolated_run_dir, epochs=2, hidden_size=8, n_codewords=4, show_progress=False)
    files = {"per_user_file": "users.csv", "eval_seen": "both"}
    result = run("LISABase", "tiny", protocol="global_time", config_dict={**settings, **files})
    assert result["protocol"] == "global_time" and result["test"]["ndcg@10_masked"] > result["test"]["ndcg@10"]
    assert len(Path("users.csv").read_text().splitlines()) == 1 + 24 * 2  # times 10 and 11 of every user
    log = Path(result["log"]).read_text()
    assert "training before 9, validation before 10, then test (seconds)" in log
    assert "test: 48 targets of 24 users" in log
