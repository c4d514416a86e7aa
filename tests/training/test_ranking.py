"""Ranks counted block by block equal what RecBole's collector makes of all scores at once."""

import math
from pathlib import Path

import pytest
import torch
from pytest import MonkeyPatch
from recbole.evaluator import Collector, Evaluator

from benchmarks.measure import in_fresh_process, peak_of_call
from recbole_lisa.config.config import LISAConfig
from recbole_lisa.training import ranking
from recbole_lisa.training.evaluation import evaluate
from recbole_lisa.training.ranking import collect, rank_all_items
from tests.helpers import assert_close, write_interactions
from tests.tiny import tiny_config, tiny_loaders

ALL_METRICS = ["Hit", "MRR", "NDCG", "Recall", "Precision", "MAP", "GAUC", "ShannonEntropy"]
N, V = 37, 61


@pytest.fixture
def config(tmp_path: Path) -> LISAConfig:
    return tiny_config(tmp_path, metrics=ALL_METRICS, topk=[1, 4, 9], valid_metric="NDCG@4", metric_decimal_place=9)


@pytest.mark.parametrize("block_scores", [1, N * 7, N * V - 1, 10**6])
def test_all_metrics_equal_those_of_recbole(config: LISAConfig, monkeypatch: MonkeyPatch, block_scores: int) -> None:
    monkeypatch.setattr(ranking, "BLOCK_SCORES", block_scores)
    scores, target = torch.randn(N, V), torch.randint(1, V, (N,))
    recboles, ours = Collector(config), Collector(config)
    masked = scores.clone()
    masked[:, 0] = -torch.inf
    recboles.eval_batch_collect(masked, None, torch.arange(N), target)
    for part in (slice(0, 20), slice(20, N)):
        rows = scores[part]
        ranks = rank_all_items(lambda ids, rows=rows: rows[:, ids], target[part], torch.randperm(V), 9)
        collect(ours, ranks, 9)
    expected, actual = (Evaluator(config).evaluate(collector.get_data_struct()) for collector in (recboles, ours))
    assert actual.keys() == expected.keys()
    # RecBole averages GAUC in float32.
    for name, value in expected.items():
        assert_close(torch.tensor(float(actual[name])), torch.tensor(float(value)), computed_in=torch.float32)


@pytest.mark.parametrize("block_scores", [1, N * 7, 10**6])
def test_equal_scores_have_one_order_in_ranks_and_lists(monkeypatch: MonkeyPatch, block_scores: int) -> None:
    monkeypatch.setattr(ranking, "BLOCK_SCORES", block_scores)
    scores, order = torch.randint(4, (N, V)).float(), torch.randperm(V)
    for target in torch.randint(1, V, (5, N)):
        ranks = rank_all_items(lambda ids: scores[:, ids], target, order, V - 1)
        assert torch.equal(ranks.top.gather(1, ranks.place.unsqueeze(1) - 1).squeeze(1), target)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("item", [2, 5])
def test_scores_that_are_no_numbers_are_marked(bad: float, item: int) -> None:
    scores = torch.randn(3, 6)
    scores[1, item] = bad
    ranks = rank_all_items(lambda ids: scores[:, ids], torch.tensor([2, 2, 2]), torch.randperm(6), 0)
    assert (ranks.higher < 0).tolist() == [False, True, False]


def measured(folder: Path, name: str) -> dict[str, float]:
    """What ranking the items of the data set `big` takes, for a fresh process."""
    settings = {"data_path": str(folder), "hidden_size": 64, "inner_size": 64, "use_gpu": False, "eval_batch_size": 256}
    config = LISAConfig(name, "big", config_dict=settings)
    train, _, test = tiny_loaders(config)
    model = config.model_class(config, train.dataset).eval()
    with torch.no_grad():
        model.item_view()
    peak = peak_of_call(lambda: evaluate(model, test, config))
    return {"items": train.dataset.item_num - 1, "targets": len(test.order), **peak._asdict()}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory from /proc")
@pytest.mark.parametrize("model", ["Transformer", "LISABase"])
def test_a_million_items_are_ranked_in_500_mb_above_the_model(isolated_run_dir: Path, model: str) -> None:
    write_interactions(isolated_run_dir, "big", ((item % 1000, item, item) for item in range(10**6)))
    found = in_fresh_process(measured, isolated_run_dir, model)
    print(found)
    assert (found["items"], found["targets"]) == (1_000_000, 1000)
    assert found["extra_mb"] < 500
    assert found["seconds"] < 300
