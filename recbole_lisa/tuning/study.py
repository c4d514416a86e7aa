"""Run a search, from checked settings to results, with Ray's Tuner, searchers, ASHA scheduler and restore."""

import importlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from recbole_lisa.data.dataloader import create_loaders
from recbole_lisa.data.dataset import create_dataset
from recbole_lisa.datasets.obtain import ensure_data
from recbole_lisa.errors import UsageError, install_extra
from recbole_lisa.files import atomic_writer, locked
from recbole_lisa.training.evaluation import check_phases
from recbole_lisa.training.memory import check_memory
from recbole_lisa.tuning.results import Row, conclude, trial_row
from recbole_lisa.tuning.session import check_address, check_resources, import_tune, ray_session
from recbole_lisa.tuning.space import Domain, Settings, draws, grid, planned
from recbole_lisa.tuning.trial import PRUNING_EPOCH, RUN_TO_END, build_config, trainable

SEARCH_FILE = "search.json"
_FORMAT = "recbole-lisa search 2"
_RESTARTS = 3  # of a trial that failed, from its newest checkpoint
_OTHER_FOLDER = "choose another --name or --storage"


@dataclass(frozen=True)
class Study:
    """A checked search."""

    fixed: Settings  # what all trials share: model, dataset, protocol, config_files and settings
    space: dict[str, Domain]
    default: Settings  # trial 0
    search: str  # random | grid | optuna
    seed: int
    valid_metric: str
    num_samples: int | None  # None for a grid
    halving: dict[str, Any] | None  # max_t (epochs), grace_period and reduction_factor of ASHA
    resources: tuple[float, float | None]  # cores and GPUs of a trial; None for 1 GPU where there is one
    folder: Path  # absolute

    def identity(self) -> dict[str, Any]:
        """The settings that --resume may not change; it may change the number of trials and their resources."""
        space = {key: [domain.kind, *domain.values] for key, domain in self.space.items()}
        identity = {
            "format": _FORMAT, **self.fixed, "space": space, "search": self.search, "asha": self.halving,
            "seed": self.seed, "valid_metric": self.valid_metric,
        }  # fmt: skip
        return dict(json.loads(json.dumps(identity)))

    def points(self) -> list[Settings]:
        """The settings of the trials that are known before the search; with Optuna only those of the default trial."""
        if self.search == "optuna":
            return [self.default]

        def problem(settings: Settings) -> str | None:
            try:
                build_config({**self.fixed, **settings})
            except UsageError as error:
                return str(error)
            return None

        candidates = grid(self.space) if self.search == "grid" else draws(self.space, self.seed)
        points = planned(candidates, self.default, self.num_samples, problem)
        if len(points) < (self.num_samples or 0):
            print(f"the space has only {len(points)} combinations that the model accepts, the default included")
        return points


def run_study(study: Study, *, address: str | None, resume: bool) -> int:
    """Run a search, or with `resume` the rest of it, on the cluster at `address`, and write its results.

    Returns the exit status, 1 when a trial failed. A UsageError leaves no trial behind: a package is missing, the
    folder is in use or of another search, or Ray, the resources or the data do not fit.
    """
    import_tune()
    if study.search == "optuna" and find_spec("optuna") is None:
        raise UsageError(f"--search=optuna needs optuna: {install_extra('tune')}, or write --search=random")
    _check_folder(study, resume=resume)
    check_address(address)
    check_memory(build_config(study.fixed))
    for line in ensure_data(build_config(study.fixed)):
        print(line)
    points = study.points()
    study.folder.mkdir(parents=True, exist_ok=True)
    refusal = f"another `recbole-lisa tune` runs in '{study.folder}': wait for it, or {_OTHER_FOLDER}"
    with locked(study.folder / ".lock", refusal):
        _check_folder(study, resume=resume)
        fixed = save_data(study.fixed, study.folder)  # what it refuses costs no start of Ray
        with ray_session(address):
            gpus = check_resources(*study.resources)
            with atomic_writer(study.folder / SEARCH_FILE) as stream:
                stream.write(json.dumps(study.identity(), indent=2).encode() + b"\n")
            on_cpu = {} if gpus else {"use_gpu": False}
            rows = _run_trials(study, {**fixed, **on_cpu}, points, {"cpu": study.resources[0], "gpu": gpus})
            return conclude(rows, study.fixed, study.folder, study.valid_metric)


def _run_trials(study: Study, fixed: Settings, points: Sequence[Settings], resources: dict[str, float]) -> list[Row]:
    """Run the trials; each --resume that adds trials runs a further Tuner, in its own folder `trials-N`."""
    # By default, Ctrl+C lets Ray wait for the next reports and then return as if the search had ended.
    os.environ.update(RAY_AIR_NEW_OUTPUT="0", TUNE_DISABLE_SIGINT_HANDLER="1")
    tune, scheduler = import_tune(), None
    if study.halving is not None:
        from ray.tune.schedulers import ASHAScheduler

        scheduler = ASHAScheduler(time_attr=PRUNING_EPOCH, **study.halving)
    function = tune.with_resources(trainable, resources)
    rows: list[Row] = []
    total = study.num_samples if study.search == "optuna" and study.num_samples else len(points)
    for number in count(1):
        path = study.folder / ("trials" if number == 1 else f"trials-{number}")
        if tune.Tuner.can_restore(str(path)):
            tuner = tune.Tuner.restore(str(path), trainable=function)
        elif len(rows) < total:
            space = {**fixed, RUN_TO_END: study.default, **_ray_space(study)}
            config = tune.TuneConfig(
                metric="score", mode="max", num_samples=total - len(rows), scheduler=scheduler,
                search_alg=_searcher(study, points, rows), reuse_actors=False,
                # The folders sort by the numbers that Ray gives to new trials.
                trial_dirname_creator=lambda trial: f"trial_{int(trial.experiment_tag.split('_')[0]):05d}",
            )  # fmt: skip
            tuner = tune.Tuner(function, param_space=space, tune_config=config, run_config=_run_config(study, path))
        else:
            break
        for result in sorted(tuner.fit(), key=lambda result: str(result.path)):
            rows.append(trial_row(result, len(rows), list(study.space), study.seed))
    return rows


def _ray_space(study: Study) -> dict[str, Any]:
    """The space for Ray. The default is added to the choices, since Optuna's first point must be one of them."""
    space = {}
    for key, domain in study.space.items():
        if domain.kind == "choice" and study.default[key] not in domain.values:
            domain = Domain("choice", (study.default[key], *domain.values))
        space[key] = domain.to_ray()
    return space


def _searcher(study: Study, points: Sequence[Settings], rows: Sequence[Row]) -> Any:
    """Ray's searcher for the trials that `rows` lacks."""
    if study.search != "optuna":
        from ray.tune.search.basic_variant import BasicVariantGenerator

        return BasicVariantGenerator(points_to_evaluate=list(points[len(rows) :]))
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    ranges = {key: domain.values for key, domain in study.space.items() if domain.kind != "choice"}
    known = [  # Optuna learns only from points inside the space; the default may be outside
        row for row in rows if row["score"] is not None
        and all(low <= row["settings"][key] <= high for key, (low, high) in ranges.items())
    ]  # fmt: skip
    return OptunaSearch(
        points_to_evaluate=[row["settings"] for row in known] or list(points),
        evaluated_rewards=[row["score"] for row in known] or None,
        seed=study.seed + len(rows),
    )


def _run_config(study: Study, path: Path) -> Any:
    """Ray's RunConfig; its class is in `ray.tune` since Ray 2.43 and in `ray.air` before."""
    tune, options = import_tune(), {}
    if not hasattr(tune, "RunConfig"):
        options = {"sync_config": tune.SyncConfig(syncer=None)}  # the storage is a folder that all nodes share
        tune = importlib.import_module("ray.air")
    return tune.RunConfig(
        name=path.name,
        storage_path=str(path.parent),
        failure_config=tune.FailureConfig(max_failures=_RESTARTS),
        # Two: the newest may be missing in Ray's last snapshot, which then names the one before.
        checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
        callbacks=[_trial_lines(study.valid_metric, list(study.space))],
        verbose=0,
        **options,
    )


def _trial_lines(valid_metric: str, keys: Sequence[str]) -> Any:
    """A callback that prints a line for each trial that ends."""
    from ray.tune import Callback

    class TrialLines(Callback):
        """Prints epoch, score and settings."""

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            self._line(trial, "finished" if trial.last_result.get("finished") else "stopped early")

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            self._line(trial, "failed")

        def _line(self, trial: Any, status: str) -> None:
            last = trial.last_result
            score = f"{valid_metric} {last['score']:.4f}" if "score" in last else "no validation"
            settings = " ".join(f"{key}={trial.config[key]}" for key in keys)
            print(f"trial {status}: epoch {last.get('epoch', 0)}, {score}, {settings}", flush=True)

    return TrialLines()


def save_data(fixed: Settings, folder: Path) -> Settings:
    """Read, check and save the data once for all trials; `fixed` with `dataset_save_path` if it can be saved."""
    settings = {"dataset_save_path": str(folder / f"{fixed['dataset']}.dataset"), **fixed}
    try:
        dataset = create_dataset(build_config(settings))
    except UsageError:  # features of users or items cannot be saved: each trial reads the files
        settings = fixed
        dataset = create_dataset(build_config(settings))
    config = build_config(settings)
    check_phases(config, *create_loaders(config, dataset))
    return settings


def _check_folder(study: Study, *, resume: bool) -> None:
    """Refuse a folder with another search or with other files; --resume needs a folder with the same search."""
    folder, file = study.folder, study.folder / SEARCH_FILE
    names = ("trials", "results.csv", "results.json", "results.png", "best.yaml")
    existing = [name for name in names if (folder / name).exists()]
    if not resume and file.exists():
        raise UsageError(f"'{folder}' already has a search: continue it with --resume, or {_OTHER_FOLDER}")
    if not resume and existing:
        raise UsageError(f"'{folder}' has {', '.join(existing)} and no search.json: {_OTHER_FOLDER}")
    if resume and not file.is_file():
        raise UsageError(f"there is no search in '{folder}' to resume: leave --resume out, or give its --storage")
    new = study.identity()
    try:
        saved = dict(json.loads(file.read_bytes())) if resume else new
    except (ValueError, TypeError) as error:
        raise UsageError(f"'{file}' is damaged ({error}): start a new search, {_OTHER_FOLDER}") from error
    if changed := [key for key in sorted(saved.keys() | new.keys()) if saved.get(key) != new.get(key)]:
        text = "; ".join(f"{key} is {saved.get(key)!r} there and {new.get(key)!r} here" for key in changed)
        raise UsageError(f"cannot resume the search in '{folder}': {text}")
