"""Ranking metrics: each held-out history is encoded once, RecBole's evaluator computes the metrics.

Full ranking counts, a block of items at a time, the items with a higher score than the held-out one (`ranking.py`).
Sampled ranking gives RecBole's collector an (N, 1 + K) matrix over the candidates of each history. RecBole's own
sampled evaluation runs the model on 1 + K copies of every history; the metrics are the same.

Equal scores are common (items with equal codes), and the collector keeps the first of them. So the order of columns
must not depend on the held-out item or its popularity: candidates come in a random order, and the items of a full
ranking, numbered by first appearance in the file, are permuted.

The setting `eval_seen` says what a full ranking does with the items of the whole history before the target. `rank`
ranks them, as RecBole does. `mask` leaves them out, but never the target itself: names of metrics end in `_masked`.
`both` gives both sets of metrics; each history is encoded once.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import torch
from recbole.config import Config
from recbole.evaluator import Collector, Evaluator
from recbole.evaluator.register import metrics_dict

from recbole_lisa.config.validation import SEEN_SUFFIXES
from recbole_lisa.data.dataloader import EvalBatch, EvalLoader, TrainLoader
from recbole_lisa.data.split import check_held_out
from recbole_lisa.distributed.processes import from_first, gathered, n_processes, rank, several
from recbole_lisa.errors import TrainingDivergedError, UsageError
from recbole_lisa.progress import progress_bar
from recbole_lisa.training.ranking import Scorer, collect, rank_all_items

_OURS = ("lisa.rank", "lisa.tied", "lisa.number")
_PER_HISTORY = ("rec.topk", "rec.items", "rec.meanrank", "rec.score", "data.label", *_OURS)


class Evaluation(NamedTuple):
    """Metrics, and what they are computed from."""

    metrics: dict[str, float]
    tied_targets: float  # fraction of held-out items that have the score of another ranked item
    collected: dict[str, Any]  # ending of the metrics' names -> RecBole's `DataStruct`, a row for each held-out item


def evaluate(model: Any, loader: EvalLoader | None, config: Config, *, show_progress: bool = False) -> dict[str, float]:
    """The metrics of `evaluate_targets`."""
    return evaluate_targets(model, loader, config, show_progress=show_progress).metrics


@torch.no_grad()
def evaluate_targets(
    model: Any, loader: EvalLoader | None, config: Config, *, show_progress: bool = False
) -> Evaluation:
    """Rank the held-out item of every history in `loader` and average the metrics of `config`.

    Several processes each rank every P-th batch; all of them return the metrics of all histories.

    The model has `item_scorer(interaction) -> Scorer` or `full_sort_predict(interaction) -> (N, V)`, and
    `score_candidates(interaction, candidates (N, 1 + K)) -> (N, 1 + K)`; it is put into evaluation mode.

    Returns:
        Metrics: name (for example `ndcg@10` or `ndcg@10_masked`) to its mean over all histories; and the fraction of
        tied targets, among the unseen items only where `eval_seen` is `mask`.

    Raises:
        UsageError: max(topk) is larger than the number of ranked items, there is no loader, or an argument is another.
        TrainingDivergedError: A score is NaN or infinite.
    """
    if loader is None:
        raise UsageError("there is no target to evaluate: the split of the data (eval_args) gives this phase none")
    is_config = isinstance(config, Config) or (isinstance(config, dict) and "eval_seen" in config)
    if not (is_config and hasattr(model, "eval") and hasattr(loader, "batches")):
        kinds = ", ".join(type(one).__name__ for one in (model, loader, config))
        raise UsageError(f"evaluate takes a model, a loader for validation or test, and a configuration, got {kinds}")
    model.eval()
    collectors = {suffix: Collector(config) for suffix in SEEN_SUFFIXES[config["eval_seen"] or "rank"]}
    item_order = order_of_equal_scores(config, loader.dataset.item_num)
    numbers = range(rank(), len(loader), n_processes())
    batches = loader.batches(numbers)
    for batch in progress_bar(batches, "Evaluate   ", total=len(numbers), show_progress=show_progress):
        check_ranking(batch, config, loader.dataset.item_num)
        if batch.candidates is None:
            _rank_all_items(model, batch, config, item_order, collectors)
        else:
            _rank_candidates(model, batch, config, collectors[""])
    metrics: dict[str, float] = {}
    for suffix, collector in collectors.items():
        _merge(collector.data_struct)
        # What metrics need of the training data comes after `get_data_struct`, which takes tensors alone.
        collector.data_struct = collector.get_data_struct()
        collector.data_collect(SimpleNamespace(dataset=loader.dataset.training))
        if "data.num_items" in collector.data_struct:  # RecBole counts the padding as an item
            collector.data_struct.set("data.num_items", loader.dataset.training.item_num - 1)
        metrics |= {f"{name}{suffix}": value for name, value in _values(config, collector.data_struct).items()}
    # From one process, so that decisions that depend on them are the same in all.
    collected = {suffix: collector.data_struct for suffix, collector in collectors.items()}
    tied = next(iter(collected.values())).get("lisa.tied").double().mean()
    return Evaluation(*from_first((metrics, float(tied))), collected)


def order_of_equal_scores(config: Config, n_items: int) -> torch.Tensor:
    """A permutation (V,) of the ids of all items, at random by `seed`: those of the same score rank in this order."""
    generator = torch.Generator().manual_seed(config["seed"])
    return torch.randperm(n_items, generator=generator).to(config["device"])


def _values(config: Config, collected: Any) -> dict[str, float]:
    """RecBole's evaluation; a UsageError where a metric that the user registered gives something else than numbers."""
    try:
        return {name: float(value) for name, value in Evaluator(config).evaluate(collected).items()}
    except (TypeError, ValueError, AttributeError) as error:
        classes = [metrics_dict[name.lower()] for name in config["metrics"]]
        own = [one.__name__ for one in classes if one.__module__.partition(".")[0] not in ("recbole", "recbole_lisa")]
        if not own:
            raise
        right = "calculate_metric must return a dictionary of names and numbers"
        raise UsageError(f"the metrics {', '.join(own)} cannot be computed ({error}): {right}") from error


def _merge(collected: Any) -> None:
    """Add the histories of all processes to RecBole's `DataStruct`, which has a row for each history."""
    if not several():
        return
    parts = gathered({name: collected.get(name).cpu() for name in _PER_HISTORY if name in collected})
    for name in dict.fromkeys(name for part in parts for name in part):
        collected.set(name, torch.cat([part[name] for part in parts if name in part]))


def _rank_candidates(model: Any, batch: EvalBatch, config: Config, collector: Collector) -> None:
    """Score the candidates of a batch, (N, 1 + K), and collect what the metrics need."""
    device = config["device"]
    assert batch.candidates is not None and batch.positive_column is not None
    scores = candidate_scores(model, batch, device)
    _check_finite(scores.amax(dim=1).isfinite(), config)
    rows = torch.arange(len(scores), device=device)
    columns = batch.positive_column.to(device)
    own = scores.gather(1, columns.unsqueeze(1))  # (N, 1)
    same = scores == own  # before the collector, which sorts and may write
    earlier = (torch.arange(scores.shape[1], device=device) < columns.unsqueeze(1)) & same
    _collect_rows(collector, batch, ((scores > own) | earlier).sum(dim=1) + 1, same.sum(dim=1) > 1)
    collector.eval_batch_collect(scores, batch.interaction, rows, columns)


def candidate_scores(model: Any, batch: EvalBatch, device: torch.device) -> torch.Tensor:
    """Scores (N, 1 + K) of the candidates of a batch, or (N, V) of all items without candidates."""
    interaction = batch.interaction.to(device)
    if batch.candidates is not None and hasattr(model, "score_candidates"):
        return cast(torch.Tensor, model.score_candidates(interaction, batch.candidates.to(device)))
    scores: torch.Tensor = model.full_sort_predict(interaction)
    return scores if batch.candidates is None else scores.gather(1, batch.candidates.to(device))


def scorer_of(model: Any, batch: EvalBatch, config: Config) -> Scorer:
    """The scores of any items for the histories of a batch, which are encoded once, here."""
    if hasattr(model, "item_scorer"):
        return cast(Scorer, model.item_scorer(batch.interaction.to(config["device"])))
    scores = candidate_scores(model, batch, config["device"])
    return lambda ids: scores[:, ids]


def _rank_all_items(
    model: Any, batch: EvalBatch, config: Config, item_order: torch.Tensor, collectors: Mapping[str, Collector]
) -> None:
    """Rank all items for a batch and collect what the metrics need; `item_order` (V,) decides between equal scores."""
    scorer, targets = scorer_of(model, batch, config), batch.interaction[config["ITEM_ID_FIELD"]].to(config["device"])
    longest = max(config["topk"])
    n_top = longest if next(iter(collectors.values())).register.need("rec.items") else 0
    seen = batch.seen and (batch.seen[0].to(item_order.device), batch.seen[1].to(item_order.device))
    for suffix, collector in collectors.items():
        left_out = seen if suffix else None
        ranks = rank_all_items(scorer, targets, item_order, n_top, left_out)
        _check_finite(ranks.higher >= 0, config)
        _collect_rows(collector, batch, ranks.place, ranks.tied > 0)
        collect(collector, ranks, longest)


def _collect_rows(collector: Collector, batch: EvalBatch, rank_of_target: torch.Tensor, tied: torch.Tensor) -> None:
    """Collect what RecBole has no name for: rank from 1, tied or not, number of the target; (N,) each."""
    for name, rows in zip(_OURS, (rank_of_target, tied, batch.number), strict=True):
        if rows is not None:
            collector.data_struct.update_tensor(name, rows)


def _check_finite(finite: torch.Tensor, config: Config) -> None:
    if wrong := int((~finite).sum()):
        raise TrainingDivergedError(
            f"the model's scores are NaN or infinite for {wrong} of {len(finite)} histories, trained at learning "
            f"rate {config['learning_rate']:g}: lower learning_rate or set clip_grad_norm"
        )


def check_ranking(batch: EvalBatch, config: Config, n_items: int) -> None:
    """Refuse, as a UsageError, a `topk` above the number of ranked items; `n_items` is V, padding included."""
    if batch.candidates is None:
        check_topk(config, n_items - 1, "items")
    else:
        check_topk(config, batch.candidates.shape[1], "candidates (the held-out item and the sampled ones)")


def check_topk(config: Config, ranked: int, what: str) -> None:
    """Refuse, as a UsageError, a `topk` above the number of ranked items; `what` they are."""
    longest = max(config["topk"])
    if longest > ranked:
        raise UsageError(f"topk asks for the {longest} best of only {ranked} {what}; give at most {ranked}")


def check_phases(config: Config, train: TrainLoader, *held_out: EvalLoader | None) -> None:
    """Refuse, as a UsageError, a phase without items, and a `topk` above the ranked items."""
    if config["benchmark_filename"] is None:  # `by_file` has checked its targets
        check_held_out(config["eval_args"], config["eval_step"], train.dataset.histories.lengths)
    for loader in filter(None, held_out):
        for batch in loader.batches(range(1)):  # the first: a mistake shows before the training
            check_ranking(batch, config, loader.dataset.item_num)
