"""A search from its checked plan to its results."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recbole_lisa.data.cache import DatasetCache, dataset_state
from recbole_lisa.data.dataloader import create_loaders
from recbole_lisa.data.dataset import WindowDataset
from recbole_lisa.data.split import check_held_out
from recbole_lisa.errors import UsageError
from recbole_lisa.training.evaluation import check_loader
from recbole_lisa.tuning import ray_adapter
from recbole_lisa.tuning.live import LiveTable
from recbole_lisa.tuning.optuna_search import OptunaSearch
from recbole_lisa.tuning.plan import Request, planned
from recbole_lisa.tuning.record import ENDED, FAILED, Record
from recbole_lisa.tuning.results import check_best, describe, summary, write_results
from recbole_lisa.tuning.search import Search
from recbole_lisa.tuning.space import Domain, Settings
from recbole_lisa.tuning.trial import surroundings

FORMAT = "recbole-lisa search 1"


@dataclass(frozen=True)
class Plan:
    """What a search does; all of it has been checked.

    Attributes:
        request: What all trials share.
        space: What is searched.
        default: The default configuration in these keys.
        search: random | grid | optuna.
        num_samples: Number of trials; None for a grid.
        halving: epochs, grace_period and reduction_factor of ASHA, or None.
        epochs: The most epochs of a trial.
        seed: Of the draws and of every trial.
        valid_metric: What is compared.
    """

    request: Request
    space: dict[str, Domain]
    default: Settings
    search: str
    num_samples: int | None
    halving: dict[str, Any] | None
    epochs: int
    seed: int
    valid_metric: str

    def identity(self) -> dict[str, Any]:
        """What must be the same when the search is resumed; the number of trials and their resources may change."""
        space = {
            key: list(domain.values) if domain.kind == "choice" else {domain.kind: list(domain.values)}
            for key, domain in self.space.items()
        }
        scheduler = {"asha": self.halving} if self.halving else "none"
        return {
            "format": FORMAT, **self.request.plain(), "space": space, "search": self.search, "scheduler": scheduler,
            "seed": self.seed, "valid_metric": self.valid_metric,
        }  # fmt: skip

    def problem(self, chosen: Settings) -> str | None:
        """Why the model refuses a combination, or None."""
        try:
            self.request.config(chosen)
        except UsageError as error:
            return str(error)
        return None


@dataclass(frozen=True)
class Resources:
    """Cores and GPUs of a trial (None: 1 GPU where there is one), and the address of the cluster."""

    cpus: float
    gpus: float | None
    address: str | None


def run_plan(plan: Plan, folder: Path, resources: Resources, *, resume: bool) -> int:
    """Run a search, or what is left of it, and write its results.

    Args:
        plan: Of the search.
        folder: Of the search, absolute.
        resources: Of every trial.
        resume: Go on with the search in the folder.

    Returns:
        0; 1 when a trial failed or has not ended.

    Raises:
        UsageError: Ray, the resources, the data or the folder do not fit; no trial has begun.
    """
    ray_adapter.check_tune()
    if resume:
        Record.read(folder, plan.identity())
    else:
        Record.check_new(folder)
    suggestions = OptunaSearch(plan.space, seed=plan.seed, problem=plan.problem) if plan.search == "optuna" else None
    chosen = [plan.default] if suggestions else _planned(plan)  # a space that the model refuses leaves nothing behind
    with ray_adapter.ray_session(resources.address):
        gpus = resources.gpus
        if gpus is None:
            gpus = float(bool(plan.request.config({})["use_gpu"]) and ray_adapter.cluster_gpus() >= 1)
        ray_adapter.check_resources({"--cpus_per_trial": resources.cpus, "--gpus_per_trial": gpus})
        around = surroundings(folder, plan.request.dataset, use_gpu=gpus > 0)
        keep_data(plan, around)
        record = Record.read(folder, plan.identity()) if resume else Record.create(folder, plan.identity())
        record.add_trials(chosen[len(record.trials) :])
        n_trials = max(len(record.trials), plan.num_samples or 0) if suggestions else len(record.trials)
        table = LiveTable(sys.stderr, plan.epochs)
        search = Search(record, n_trials, suggestions=suggestions, table=table)
        common = {
            "request": plan.request.plain(), "folder": str(folder), "surroundings": around,
            "threads": max(1, int(resources.cpus)),
        }  # fmt: skip
        if search.remaining():
            ray_adapter.run_search(common, search, halving=plan.halving, cpus=resources.cpus, gpus=gpus)
        table.show(record, now=True)
    return _conclude(plan, record, n_trials, around)


def keep_data(plan: Plan, around: Settings) -> None:
    """Read the data once for all trials: what is left after filtering is saved, and every trial reads that.

    Args:
        plan: Of the search.
        around: Settings of a trial; `dataset_save_path` goes where the copy cannot be made.

    Raises:
        UsageError: The data cannot be read, or there is nothing to validate on.
    """
    config = plan.request.config({}, around)
    cache = DatasetCache.of(config)
    assert cache is not None  # `around` names its file
    state = cache.read()
    if state is not None:
        dataset = WindowDataset.restored(config, state)
    else:
        dataset = WindowDataset(config)
        try:
            kept = dataset_state(dataset)
        except UsageError:  # features of users or items are not saved: each trial reads them
            around.pop("dataset_save_path")
        else:
            cache.write(kept)
    train, valid, test = create_loaders(config, dataset)
    check_held_out(config["eval_args"], config["eval_step"], train.dataset.histories.lengths)
    for loader in filter(None, (valid, test)):
        check_loader(loader, config)


def _planned(plan: Plan) -> list[Settings]:
    """The trials that are known beforehand, told when they are fewer than asked for."""
    chosen = planned(
        plan.search, plan.space, plan.default, num_samples=plan.num_samples, seed=plan.seed, problem=plan.problem
    )
    if plan.num_samples is not None and len(chosen) < plan.num_samples:
        print(f"the space has only {len(chosen)} combinations that the model accepts, the default included")
    return chosen


def _conclude(plan: Plan, record: Record, n_trials: int, around: Settings) -> int:
    """Print and write the results; the exit status."""
    best = record.best()
    missing = n_trials - sum(trial.status in ENDED for trial in record.trials.values())
    if best is None:
        problems = {trial.problem for trial in record.trials.values() if trial.problem}
        print(f"no trial got as far as a validation: {'; '.join(sorted(problems)) or 'interrupted'}", file=sys.stderr)
        return 1
    test, note = check_best(best, {key: value for key, value in around.items() if key != "show_progress"})
    document = describe(record, test, epochs=plan.epochs, seed=plan.seed, note=note)
    print("\n".join(summary(record, document, plan.valid_metric)))
    for file in write_results(document, record.folder, plan.valid_metric):
        print(file)
    if missing:
        print(f"{missing} of {n_trials} trials have not ended: go on by the same words and --resume", file=sys.stderr)
    failed = any(trial.status == FAILED for trial in record.trials.values())
    return 1 if missing or failed else 0
