"""Metrics without the seen items, against a dense computation: all scores at once, those of seen items at -inf."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytest import MonkeyPatch
from recbole.evaluator import Collector, Evaluator
from recbole.model.sequential_recommender import SASRec

from recbole_lisa.errors import UsageError
from recbole_lisa.quick_start import run
from recbole_lisa.training import ranking
from recbole_lisa.training.evaluation import evaluate
from recbole_lisa.training.ranking import rank_all_items
from tests.helpers import write_interactions
from tests.tiny import BlockModel, TinyModel, histories_of, tiny_config, tiny_loaders, tiny_settings

METRICS = ["Hit", "MRR", "NDCG", "Recall", "Precision", "MAP", "GAUC", "ItemCoverage", "ShannonEntropy"]
SETTINGS: dict[str, Any] = {"metrics": METRICS, "topk": [1, 4, 9], "metric_decimal_place": 9}


def dense_metrics(model: Any, loader: Any, config: Any, histories: dict[str, list[str]]) -> dict[str, float]:
    """RecBole's metrics of the masked score matrix; the seen items come from the file, up to the target's position."""
    collector, dataset = Collector(config), loader.dataset
    for batch in loader.batches(range(len(loader))):
        scores, target = model.full_sort_predict(batch.interaction).detach(), batch.interaction["item_id"]
        scores[:, 0] = -torch.inf
        columns = (batch.interaction[name].tolist() for name in ("user_id", "item_id_list", "item_length"))
        for row, (user, inputs, length) in enumerate(zip(*columns, strict=True)):
            history = dataset.token2id("item_id", histories[dataset.field2id_token["user_id"][user]]).tolist()
            ends = [end for end in range(1, len(history)) if history[end] == target[row] and end >= length]
            end = next(end for end in ends if history[end - length : end] == inputs[:length])
            seen = sorted(set(history[:end]) - {int(target[row])})
            scores[row, seen] = -torch.inf
        collector.eval_batch_collect(scores, batch.interaction, torch.arange(len(scores)), target)
    data = collector.get_data_struct()
    data.set("data.num_items", dataset.item_num - 1)  # the padding is no item
    # RecBole takes the place of the lowest score, here -inf, for the number of ranked items.
    return {name: float(value) for name, value in Evaluator(config).evaluate(data).items()}


@pytest.mark.parametrize("block_scores", [1, 7 * 11, 10**6])
@pytest.mark.parametrize("split", [{"LS": "valid_and_test"}, {"RS": [0.5, 0.2, 0.3]}], ids=str)
@pytest.mark.parametrize("kind", [TinyModel, BlockModel])
def test_masked_metrics_equal_those_of_a_dense_matrix(
    tmp_path: Path, monkeypatch: MonkeyPatch, kind: type[Any], split: dict[str, Any], block_scores: int
) -> None:
    monkeypatch.setattr(ranking, "BLOCK_SCORES", block_scores)
    given = {**SETTINGS, "eval_args": {"split": split}, "MAX_ITEM_LIST_LENGTH": 3}  # the window forgets seen items
    configs = {seen: tiny_config(tmp_path, model=kind, eval_seen=seen, **given) for seen in ("rank", "mask", "both")}
    train, valid, test = tiny_loaders(configs["both"])
    model = kind(configs["both"], train.dataset).eval()
    for loader in filter(None, (valid, test)):
        loaders = {seen: tiny_loaders(config)[1 if loader is valid else 2] for seen, config in configs.items()}
        metrics = {seen: evaluate(model, loaders[seen], config) for seen, config in configs.items()}
        assert metrics["both"] == {**metrics["rank"], **metrics["mask"]}
        assert set(metrics["mask"]) == {f"{name}_masked" for name in metrics["rank"]}
        expected = dense_metrics(model, loader, configs["rank"], histories_of(tmp_path))
        for name, value in expected.items():
            if name != "gauc":
                assert metrics["mask"][f"{name}_masked"] == pytest.approx(value, abs=1e-9), name
        assert metrics["mask"]["ndcg@9_masked"] > metrics["rank"]["ndcg@9"]


def test_seen_items_are_those_of_the_whole_history_before_the_target_without_the_target(tmp_path: Path) -> None:
    rows = [("u", item, time) for time, item in enumerate("abcbadab")]
    write_interactions(tmp_path, "tiny", rows)
    config = tiny_config(tmp_path, eval_seen="mask", MAX_ITEM_LIST_LENGTH=2)
    _, valid, test = tiny_loaders(config)
    known = {}
    for loader in (valid, test):
        (batch,) = loader
        names = loader.dataset.field2id_token["item_id"]
        assert batch.seen is not None and batch.seen[0].tolist() == [0] * len(batch.seen[0])
        known[str(names[batch.interaction["item_id"].item()])] = sorted(names[batch.seen[1]].tolist())
    # The targets a and b were had before: they stay in the ranking. Test knows the validation item.
    assert known == {"a": ["b", "c", "d"], "b": ["a", "c", "d"]}


@pytest.mark.parametrize("block_scores", [1, 5, 1000])
def test_ranks_count_higher_and_equal_scores_in_the_random_order(monkeypatch: MonkeyPatch, block_scores: int) -> None:
    monkeypatch.setattr(ranking, "BLOCK_SCORES", block_scores)
    scores = torch.tensor([[9.0, 2.0, 2.0, 3.0, 2.0, 1.0], [9.0, 5.0, 4.0, 3.0, 2.0, 1.0]])  # column 0 is padding
    order, target = torch.tensor([4, 0, 2, 5, 1, 3]), torch.tensor([2, 5])
    seen = torch.tensor([0, 1, 1, 0]), torch.tensor([4, 1, 3, 3])
    masked = rank_all_items(lambda ids: scores[:, ids], target, order, 2, seen)
    columns = [x.tolist() for x in (masked.higher, masked.before, masked.tied, masked.n_ranked)]
    assert columns == [[0, 2], [0, 0], [1, 0], [3, 3]]
    assert masked.top.tolist()[1] == [2, 4] and set(masked.top.tolist()[0]) == {1, 2}
    nothing = torch.tensor([], dtype=torch.long)
    plain, same = (rank_all_items(lambda ids: scores[:, ids], target, order, 2, x) for x in (None, (nothing, nothing)))
    assert all(torch.equal(left, right) for left, right in zip(plain, same, strict=True))
    assert [x.tolist() for x in (plain.higher, plain.before, plain.tied)] == [[1, 4], [1, 0], [2, 0]]
    assert plain.top[0, 0] == 3 and plain.n_ranked.tolist() == [5, 5]


@pytest.mark.parametrize(
    ("seen", "given", "chosen"),
    [
        ("rank", {}, "NDCG@10"),
        ("mask", {}, "NDCG@10_masked"),
        ("both", {}, "NDCG@10"),
        ("both", {"valid_metric": "ndcg@5_masked"}, "ndcg@5_masked"),
        ("mask", {"metrics": ["Hit"]}, "Hit@5_masked"),
        ("mask", {"topk": [4, 7]}, "NDCG@7_masked"),
        ("both", {"topk": [4, 7]}, "NDCG@7"),
    ],
)
def test_a_reported_metric_chooses_the_epoch(tmp_path: Path, seen: str, given: dict[str, Any], chosen: str) -> None:
    config = tiny_config(tmp_path, eval_seen=seen, **given)
    assert (config["valid_metric"], config["valid_metric_bigger"]) == (chosen, True)


def test_a_smaller_value_is_better_without_seen_items_too(tmp_path: Path) -> None:
    settings = {"metrics": ["GiniIndex"], "valid_metric": "GiniIndex@5_masked", "eval_seen": "both"}
    assert tiny_config(tmp_path, **settings)["valid_metric_bigger"] is False


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eval_seen": "masked"}, "unknown eval_seen 'masked' .*known are rank, mask, both"),
        ({"eval_seen": "mask", "valid_metric": "NDCG@10"}, "'NDCG@10' is not reported: .* mean 'NDCG@10_masked'"),
        ({"valid_metric": "NDCG@10_masked"}, "'NDCG@10_masked' is not reported"),
        ({"eval_seen": "both", "eval_args": {"mode": {"test": "uni9"}}}, "but eval_args mode is 'uni9', whose cand"),
    ],
)
def test_a_protocol_that_does_not_exist_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tiny_config(tmp_path, **settings)


@pytest.mark.parametrize("model", [SASRec, "LISABase"])
def test_a_run_reports_both_protocols_and_names_them(isolated_run_dir: Path, model: Any) -> None:
    settings = tiny_settings(isolated_run_dir, epochs=2, show_progress=False, hidden_size=8, test_step=1)
    if model is SASRec:
        settings.update(loss_type="CE", train_neg_sample_args=None, n_heads=1)
    settings.update(eval_seen="both", valid_metric="NDCG@10_masked", result_file="r.json")
    result = run(model, "tiny", config_dict=settings)
    best = [epoch["ndcg@10_masked"] for epoch in result["curve"]]
    assert result["test"]["ndcg@10_masked"] == best[result["best_epoch"] - 1] > result["test"]["ndcg@10"]
    assert json.loads(Path("r.json").read_text())["eval_seen"] == result["config"]["eval_seen"] == "both"
    log = Path(result["log"]).read_text()
    assert "test: 24 targets, ranked among all items each, eval_seen: both" in log
    assert "ndcg@10_masked" in log and not np.isnan(result["valid"]["ndcg@10_masked"])
    assert math.isfinite(result["valid"]["hit@5"])
