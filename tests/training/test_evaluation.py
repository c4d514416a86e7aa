"""HR and NDCG through RecBole's evaluator, against fractions worked out by hand."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pytest import MonkeyPatch
from recbole.data.interaction import Interaction
from recbole.evaluator import Collector, Evaluator, register
from recbole.evaluator.base_metric import AbstractMetric
from recbole.utils import EvaluatorType

from recbole_lisa.data.dataloader import EvalBatch
from recbole_lisa.errors import TrainingDivergedError, UsageError
from recbole_lisa.training.evaluation import check_phases, evaluate, evaluate_targets
from recbole_lisa.tuning.trial import check_validation
from tests.tiny import BlockModel, ConstantBlockModel, ConstantModel, TinyModel, tiny_config, tiny_loaders, tiny_trainer

# Ranks of the held-out item in four histories; 11 is outside every cut-off.
RANKS = (1, 3, 6, 11)
# HR@5 counts ranks 1 and 3, HR@10 also 6; NDCG adds 1 / log2(rank + 1).
EXPECTED = {
    "hit@5": 2 / 4,
    "hit@10": 3 / 4,
    "ndcg@5": (1 + 1 / 2) / 4,
    "ndcg@10": (1 + 1 / 2 + 1 / math.log2(7)) / 4,
}
N_RANKED = 20


@dataclass
class Scores(torch.nn.Module):
    """A model whose scores are written down: (N, V) over the items or over the candidates, batch by batch."""

    rows: torch.Tensor

    def __post_init__(self) -> None:
        super().__init__()

    def full_sort_predict(self, interaction: Any) -> torch.Tensor:
        return self.rows[interaction["user_id"]].clone()

    def score_candidates(self, interaction: Any, candidates: torch.Tensor) -> torch.Tensor:
        assert candidates.shape == (len(interaction), N_RANKED)
        return self.rows[interaction["user_id"]]


class Batches(list[EvalBatch]):
    """A loader whose batches are written down."""

    dataset = SimpleNamespace(item_num=N_RANKED + 1, training=None)

    def batches(self, numbers: Iterable[int]) -> Iterator[EvalBatch]:
        return (self[number] for number in numbers)


@pytest.mark.parametrize(
    ("protocol", "first", "columns"), [("full_ranking", 1, [4, 20, 1, 9]), ("paper", 0, [0, 19, 7, 3])]
)
def test_ranking_gives_the_fractions(tmp_path: Path, protocol: str, first: int, columns: list[int]) -> None:
    scores = torch.full((len(RANKS), first + N_RANKED), 1e6)  # the padding item must not be ranked
    for row, (rank, column) in enumerate(zip(RANKS, columns, strict=True)):
        others = [other for other in range(first, first + N_RANKED) if other != column]
        scores[row, [*others[: rank - 1], column, *others[rank - 1 :]]] = torch.arange(N_RANKED, 0, -1.0)
    target = torch.tensor(columns)
    # The ids of the candidates must not matter, only their columns.
    sampled = (torch.arange(500, 500 + 4 * N_RANKED).reshape(4, N_RANKED), target) if protocol == "paper" else None
    ids = sampled[0][torch.arange(4), target] if sampled else target
    interaction = Interaction({"user_id": torch.arange(4), "item_id": ids})
    parts = (slice(0, 3), slice(3, 4))
    rows = [[x[part] for x in sampled] if sampled else [None, None] for part in parts]
    batches = Batches(EvalBatch(interaction[part], *columns) for part, columns in zip(parts, rows, strict=True))
    metrics = evaluate(Scores(scores), batches, tiny_config(tmp_path, protocol, metrics=["Hit", "NDCG"]))
    assert metrics == pytest.approx(EXPECTED, abs=5e-5)  # RecBole rounds to four places
    assert all(type(value) is float for value in metrics.values())


def test_sampled_metrics_equal_those_over_the_whole_catalogue_with_the_others_at_minus_infinity(tmp_path: Path) -> None:
    paper = tiny_config(tmp_path, "paper")
    n_users, n_items = 50, 90
    candidates = torch.stack([torch.randperm(n_items - 1)[:N_RANKED] + 1 for _ in range(n_users)])
    column = torch.randint(N_RANKED, (n_users,))
    scores, rows = torch.randn(n_users, N_RANKED), torch.arange(n_users)
    batch = EvalBatch(Interaction({"user_id": rows}), candidates, column)

    collector = Collector(paper)
    spread = torch.full((n_users, n_items), -torch.inf).scatter(1, candidates, scores)
    collector.eval_batch_collect(spread, None, rows, candidates[rows, column])
    expected = Evaluator(paper).evaluate(collector.get_data_struct())
    assert evaluate(Scores(scores), Batches([batch]), paper) == dict(expected)


@pytest.mark.parametrize(("protocol", "mode"), [("paper", "uni9"), ("full_ranking", "full")])
def test_every_history_is_encoded_once_and_a_perfect_model_scores_one(tmp_path: Path, protocol: str, mode: str) -> None:
    seen: list[int] = []

    class Oracle(TinyModel):
        def full_sort_predict(self, interaction: Any) -> torch.Tensor:
            seen.extend(interaction["user_id"].tolist())
            return torch.nn.functional.one_hot(interaction["item_id"], self.n_items).float()

    config = tiny_config(tmp_path, protocol, eval_args={"mode": mode})
    train, _, test = tiny_loaders(config)
    assert set(evaluate(Oracle(config, train.dataset), test, config).values()) == {1.0}
    assert sorted(seen) == list(range(1, 25))
    if mode == "uni9":  # topk 10 is as long as the ranking
        assert evaluate(TinyModel(config, train.dataset), test, config)["hit@10"] == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(("kind", "mode"), [(TinyModel, "full"), (BlockModel, "full"), (TinyModel, "uni12")])
def test_scores_that_are_not_finite_stop_the_evaluation(tmp_path: Path, bad: float, kind: Any, mode: str) -> None:
    config = tiny_config(tmp_path, model=kind, eval_args={"mode": mode})
    train, _, test = tiny_loaders(config)
    model = kind(config, train.dataset)
    torch.nn.init.constant_(model.embedding.weight, bad)
    with pytest.raises(TrainingDivergedError, match="NaN or infinite for 7 of 7 histories.*rate 0.05"):
        evaluate(model, test, config)


def test_topk_longer_than_the_ranking_is_refused(tmp_path: Path) -> None:
    for mode, longest, message in (
        ("full", 31, "the 31 best of only 30 items; give at most 30"),
        ("uni8", 10, "10 best of only 9 cand.* most 9"),
    ):
        config = tiny_config(tmp_path, eval_args={"mode": mode}, topk=[5, longest], valid_metric="NDCG@5")
        with pytest.raises(UsageError, match=message):
            check_phases(config, *tiny_loaders(config))
    with pytest.raises(UsageError, match="there is no target to evaluate"):
        evaluate(None, None, config)
    model, test = Scores(torch.zeros(1, 3)), Batches([])
    for arguments in ((None, test, config), (model, 5, config), (model, test, {})):
        with pytest.raises(UsageError, match="evaluate takes a model, a loader for validation or test, and a config"):
            evaluate(*arguments)  # type: ignore[arg-type]  # a user's mistakes


CATALOGUE_METRICS = ["ItemCoverage", "AveragePopularity", "GiniIndex", "ShannonEntropy", "TailPercentage"]


@pytest.mark.parametrize("kind", [TinyModel, BlockModel])
@pytest.mark.parametrize("tail_ratio", [0.3, 12])
def test_metrics_of_the_catalogue_equal_those_of_recbole(tmp_path: Path, kind: type[Any], tail_ratio: float) -> None:
    settings = {"metrics": CATALOGUE_METRICS, "topk": [1, 4, 30], "tail_ratio": tail_ratio, "metric_decimal_place": 9}
    config = tiny_config(tmp_path, model=kind, valid_metric="ItemCoverage@4", **settings)
    train, _, test = tiny_loaders(config)
    model = kind(config, train.dataset).eval()
    collector = Collector(config)
    for batch in test.batches(range(len(test))):
        scores = model.full_sort_predict(batch.interaction).detach()
        scores[:, 0] = -torch.inf
        collector.eval_batch_collect(scores, batch.interaction, torch.arange(len(scores)), batch.interaction["item_id"])
    data = collector.get_data_struct()
    lines = (tmp_path / "tiny" / "tiny.inter").read_text().splitlines()[1:]
    rows = [line.split("\t")[:2] for line in lines]  # 12 of each user, in order: the last two are held out
    trained = [item for number, (_, item) in enumerate(rows) if number % 12 < 10]
    data.set("data.num_items", train.dataset.item_num - 1)  # without the padding, which RecBole counts
    data.set("data.count_items", Counter(train.dataset.token2id("item_id", trained).tolist()))
    metrics = evaluate(model, test, config)
    assert metrics == dict(Evaluator(config).evaluate(data))
    assert (metrics["itemcoverage@30"], metrics["giniindex@30"]) == (1, 0), "lists of all items"


class MeanRank(AbstractMetric):
    """A metric of the user, smaller is better: the mean number of items above the target."""

    metric_type, metric_need, smaller = EvaluatorType.RANKING, ["rec.meanrank", "data.num_users"], True

    def calculate_metric(self, dataobject: Any) -> dict[str, float]:
        return {"meanrank": float(dataobject.get("rec.meanrank")[:, 0].mean()) + dataobject.get("data.num_users")}


def test_a_metric_of_the_user_is_computed_and_chooses_the_epoch(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="metric 'MeanRank' is not computed: known are .*GiniIndex"):
        tiny_config(tmp_path, metrics=["MeanRank"])
    monkeypatch.setitem(register.metrics_dict, "meanrank", MeanRank)
    monkeypatch.setitem(register.metric_information, "meanrank", MeanRank.metric_need)
    monkeypatch.setitem(register.metric_types, "meanrank", MeanRank.metric_type)
    register.smaller_metrics.append("meanrank")
    try:
        config = tiny_config(tmp_path, metrics=["MeanRank"], valid_metric="MeanRank", epochs=3)
        trainer, (train, valid, _) = tiny_trainer(config)
        best, metrics = trainer.fit(train, valid, saved=False)
        assert best == metrics["meanrank"] == min(epoch["valid"]["meanrank"] for epoch in trainer.history)
        assert 26 < best < 25 + 30
        with pytest.raises(UsageError, match="needs a valid_metric whose highest value is the best, not MeanRank"):
            check_validation(config)
        wrong = tiny_config(tmp_path, metrics=["MeanRank"], valid_metric="MeanRank@5")
        trainer, (train, valid, _) = tiny_trainer(wrong)
        with pytest.raises(UsageError, match="meanrank@5 is not reported: choose one of meanrank"):
            trainer.fit(train, valid, saved=False)
        monkeypatch.setattr(MeanRank, "calculate_metric", lambda *_: {"meanrank": float("nan")})
        with pytest.raises(UsageError, match="valid_metric meanrank is no number in epoch 1: choose another"):
            tiny_trainer(config)[0].fit(train, valid, saved=False)
        for wrong_value in (None, {"meanrank": None}, {"meanrank": "x"}):
            monkeypatch.setattr(MeanRank, "calculate_metric", lambda *_, value=wrong_value: value)
            with pytest.raises(
                UsageError, match="the metrics MeanRank cannot be computed .* a dictionary of names and"
            ):
                trainer.evaluate(valid, load_best_model=False)
    finally:
        register.smaller_metrics.remove("meanrank")


@pytest.mark.parametrize(
    ("kind", "mode"), [(ConstantModel, "full"), (ConstantBlockModel, "full"), (ConstantModel, "uni12")]
)
def test_targets_that_share_their_score_are_counted(tmp_path: Path, kind: type[Any], mode: str) -> None:
    config = tiny_config(tmp_path, eval_args={"mode": mode})
    train, _, test = tiny_loaders(config)
    assert evaluate_targets(kind(config, train.dataset), test, config).tied_targets == 1.0

    class HalfTied(TinyModel):
        """Items of odd ids have different scores, the others one."""

        def full_sort_predict(self, interaction: Any) -> torch.Tensor:
            ids = torch.arange(self.n_items)
            return torch.where(ids % 2 == 1, ids, 0).float().expand(len(interaction), -1).clone()

    targets = torch.cat([batch.interaction["item_id"] for batch in test.batches(range(len(test)))])
    metrics, tied, _ = evaluate_targets(HalfTied(config, train.dataset), test, config)
    assert tied == pytest.approx((targets % 2 == 0).double().mean().item())
    assert 0 < tied < 1 and metrics == evaluate(HalfTied(config, train.dataset), test, config)
    assert evaluate_targets(TinyModel(config, train.dataset), test, config).tied_targets == 0
