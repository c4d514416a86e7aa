"""A search from its checked plan to its trials: Ray's Tuner with its searchers, its ASHA and its restore."""

import contextlib
import json
import logging
import os
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from recbole_lisa.data.dataloader import create_loaders
from recbole_lisa.data.dataset import create_dataset
from recbole_lisa.data.split import check_held_out
from recbole_lisa.datasets.obtain import ensure_data
from recbole_lisa.errors import UsageError
from recbole_lisa.files import Termination, atomic_writer
from recbole_lisa.training.evaluation import check_loader
from recbole_lisa.tuning.results import conclude, trial_row
from recbole_lisa.tuning.space import Domain, Settings, planned
from recbole_lisa.tuning.trial import PRUNING_EPOCH, RUN_TO_END, build_config, import_tune, trainable

FORMAT = "recbole-lisa search 2"
MAX_FAILURES = 3
"""How often Ray restarts a trial that failed, from its newest checkpoint."""

_STORE_BYTES = 2**27
_PACKAGE_ROOT = str(Path(__file__).parents[2])
_OTHER = "choose another --name or --storage"


@dataclass(frozen=True)
class Study:
    """A checked search.

    Attributes:
        fixed: What all trials share: `model`, `dataset`, `protocol`, `config_files` and settings.
        space: The keys that are searched.
        default: The default configuration for these keys, trial 0.
        search: random | grid | optuna.
        num_samples: Number of trials; None for a grid.
        halving: max_t (epochs), grace_period and reduction_factor of ASHA, or None.
        seed: Seed of the draws and of every trial.
        valid_metric: The metric that compares trials.
        cpus: Cores of a trial.
        gpus: GPUs of a trial, may be a fraction; None for 1 where there is one.
        address: `auto` or HOST:PORT of a Ray cluster; None starts Ray on this machine.
    """

    fixed: Settings
    space: dict[str, Domain]
    default: Settings
    search: str
    num_samples: int | None
    halving: dict[str, Any] | None
    seed: int
    valid_metric: str
    cpus: float = 1.0
    gpus: float | None = None
    address: str | None = None

    def identity(self) -> dict[str, Any]:
        """What a resumed search must have in common; the number of trials and their resources may change."""
        space = {key: [domain.kind, *domain.values] for key, domain in self.space.items()}
        identity = {
            "format": FORMAT, **self.fixed, "space": space, "search": self.search, "asha": self.halving,
            "seed": self.seed, "valid_metric": self.valid_metric,
        }  # fmt: skip
        return dict(json.loads(json.dumps(identity)))

    def problem(self, chosen: Settings) -> str | None:
        """Why the model refuses a combination, or None."""
        try:
            build_config({**self.fixed, **chosen})
        except UsageError as error:
            return str(error)
        return None


def run_study(study: Study, folder: Path, *, resume: bool) -> int:
    """Run a search, or the rest of it, and write its results.

    Args:
        study: The search.
        folder: Folder of the search, absolute.
        resume: Continue the search in the folder.

    Returns:
        0; 1 when a trial failed.

    Raises:
        UsageError: A package is missing, the folder is in use or of another search, or Ray, the resources or the data
            do not fit; no trial has begun.
    """
    with _same_handler():
        _hush()
        import_tune()
    if study.search == "optuna" and find_spec("optuna") is None:
        raise UsageError("--search=optuna needs optuna: pip install 'recbole-lisa[tune]', or write --search=random")
    _check_folder(study, folder, resume=resume)
    for line in ensure_data(build_config(study.fixed)):
        print(line)
    points = [study.default]
    if study.search != "optuna":
        points = planned(study.search, study.space, study.default, num_samples=study.num_samples, seed=study.seed,
                         problem=study.problem)  # fmt: skip
        if study.num_samples is not None and len(points) < study.num_samples:
            print(f"the space has only {len(points)} combinations that the model accepts, the default included")
    with _locked(folder), ray_session(study.address):
        _check_folder(study, folder, resume=resume)
        gpus = study.gpus
        if gpus is None:
            gpus = float(bool(build_config(study.fixed)["use_gpu"]) and cluster_gpus() >= 1)
        check_resources({"--cpus_per_trial": study.cpus, "--gpus_per_trial": gpus})
        fixed = _keep_data({**study.fixed, **({} if gpus else {"use_gpu": False})}, folder)
        with atomic_writer(folder / "search.json") as stream:
            stream.write(json.dumps(study.identity(), indent=2).encode() + b"\n")
        rows = _run_rounds(study, fixed, points, {"cpu": study.cpus, "gpu": gpus}, folder)
    return conclude(rows, study.fixed, folder, study.valid_metric)


def _run_rounds(
    study: Study, fixed: Settings, points: Sequence[Settings], resources: Mapping[str, float], folder: Path
) -> list[dict[str, Any]]:
    """Run the trials: one Tuner, and a further one for each time that --resume added trials."""
    tune = import_tune()
    function = tune.with_resources(trainable, resources)
    rows: list[dict[str, Any]] = []
    total = study.num_samples if study.search == "optuna" and study.num_samples else len(points)
    for number in count(1):
        name = "trials" if number == 1 else f"trials-{number}"
        if tune.Tuner.can_restore(str(folder / name)):
            tuner = tune.Tuner.restore(str(folder / name), trainable=function)
        elif len(rows) < total:
            tuner = _new_tuner(study, function, fixed, points, rows, total, folder, name)
        else:
            return rows
        for result in sorted(tuner.fit(), key=lambda result: str(result.path)):
            rows.append(trial_row(result, len(rows), list(study.space), study.seed))
    raise AssertionError  # count() does not end


def _new_tuner(
    study: Study, function: Any, fixed: Settings, points: Sequence[Settings], rows: Sequence[Mapping[str, Any]],
    total: int, folder: Path, name: str,
) -> Any:  # fmt: skip
    """Ray's Tuner over the trials that `rows` lacks."""
    tune = import_tune()
    space = {key: domain.to_ray() for key, domain in study.space.items()}
    scheduler = None
    if study.halving is not None:
        from ray.tune.schedulers import ASHAScheduler

        scheduler = ASHAScheduler(time_attr=PRUNING_EPOCH, **study.halving)
    if study.search == "optuna":
        from ray.tune.search.optuna import OptunaSearch

        for key, value in study.default.items():  # Optuna takes no first point outside the choices
            domain = study.space[key]
            if domain.kind == "choice" and value not in domain.values:
                space[key] = tune.choice([value, *domain.values])
        known = [row for row in rows if row["score"] is not None]
        search: Any = OptunaSearch(
            points_to_evaluate=[row["settings"] for row in known] or list(points),
            evaluated_rewards=[row["score"] for row in known] or None,
            seed=study.seed + len(rows),
        )
    else:
        from ray.tune.search.basic_variant import BasicVariantGenerator

        search = BasicVariantGenerator(points_to_evaluate=list(points[len(rows) :]))
    return tune.Tuner(
        function,
        param_space={**fixed, RUN_TO_END: study.default, **space},
        tune_config=tune.TuneConfig(
            metric="score", mode="max", search_alg=search, scheduler=scheduler, num_samples=total - len(rows),
            reuse_actors=False, trial_dirname_creator=_folder_name,
        ),
        run_config=_run_config(folder, name, [_progress_lines(study.valid_metric, list(space))]),
    )  # fmt: skip


def _folder_name(trial: Any) -> str:
    """A name that sorts by the number that Ray gave the trial when it was created."""
    return f"trial_{int(trial.experiment_tag.split('_')[0]):05d}"


def _run_config(folder: Path, name: str, callbacks: list[Any]) -> Any:
    """Ray's RunConfig; its class is in `ray.tune` since Ray 2.43 and in `ray.air` before."""
    tune = import_tune()
    place, options = tune, {}
    if not hasattr(tune, "RunConfig"):
        place = __import__("ray.air", fromlist=["RunConfig"])
        options = {"sync_config": tune.SyncConfig(syncer=None)}  # the storage is a folder that all nodes share
    return place.RunConfig(
        name=name,
        storage_path=str(folder),
        failure_config=place.FailureConfig(max_failures=MAX_FAILURES),
        # Two, so that Ray's last snapshot never names a deleted one.
        checkpoint_config=place.CheckpointConfig(num_to_keep=2),
        callbacks=callbacks,
        verbose=0,
        **options,
    )


def _progress_lines(valid_metric: str, keys: list[str]) -> Any:
    """A callback that prints a line for each trial that ends."""
    from ray.tune import Callback

    class ProgressLines(Callback):  # type: ignore[misc]  # Ray's classes are Any
        """Prints trial, epochs, score and settings."""

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            self._line(trial, "finished" if trial.last_result.get("finished") else "stopped early")

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            self._line(trial, "failed")

        def _line(self, trial: Any, status: str) -> None:
            last = trial.last_result
            score = f"{valid_metric} {last['score']:.4f}" if "score" in last else "no validation"
            settings = " ".join(f"{key}={trial.config[key]}" for key in keys)
            print(f"trial {status}: epoch {last.get('epoch', 0)}, {score}, {settings}", flush=True)

    return ProgressLines()


def _keep_data(fixed: Settings, folder: Path) -> Settings:
    """Read the data once, check it, and save it for all trials where it can be saved."""
    if "dataset_save_path" in fixed:
        kept = fixed
        dataset = create_dataset(build_config(kept))
    else:
        kept = {**fixed, "dataset_save_path": str(folder / f"{fixed['dataset']}.dataset")}
        try:
            dataset = create_dataset(build_config(kept))
        except UsageError:  # features of users or items cannot be saved: each trial reads the files
            kept = fixed
            dataset = create_dataset(build_config(kept))
    config = build_config(kept)
    train, valid, test = create_loaders(config, dataset)
    check_held_out(config["eval_args"], config["eval_step"], train.dataset.histories.lengths)
    for loader in filter(None, (valid, test)):
        check_loader(loader, config)
    return kept


def _check_folder(study: Study, folder: Path, *, resume: bool) -> None:
    """Refuse a folder that another search or other files use, and a --resume without the same search."""
    file = folder / "search.json"
    if not resume:
        if file.exists():
            raise UsageError(f"'{folder}' has a search already: continue it by --resume, or {_OTHER}")
        names = ("trials", "results.csv", "results.json", "results.png", "best.yaml")
        existing = [name for name in names if (folder / name).exists()]
        if existing:
            raise UsageError(f"'{folder}' has {', '.join(existing)} and no search.json: {_OTHER}")
        return
    if not file.is_file():
        raise UsageError(f"there is no search in '{folder}' to resume: leave --resume out, or write its --storage")
    try:
        saved = dict(json.loads(file.read_bytes()))
    except (ValueError, TypeError) as error:
        raise UsageError(f"'{file}' is damaged ({error}): begin a new search, {_OTHER}") from error
    new = study.identity()
    changed = sorted(key for key in saved.keys() | new.keys() if saved.get(key) != new.get(key))
    if changed:
        text = "; ".join(f"{key} is {saved.get(key)!r} there and {new.get(key)!r} here" for key in changed)
        raise UsageError(f"cannot resume the search in '{folder}': {text}")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder of the search; the lock ends with the process, however it ends."""
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout as error:
        raise UsageError(f"another `recbole-lisa tune` runs in '{folder}': wait for its end, or {_OTHER}") from error


def _hush() -> None:
    """Turn off messages of Ray and Optuna that a user cannot act on."""
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    # Ray would go on until the running reports have come, then return as if the search had ended.
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # the table at the end names failed trials
    warnings.filterwarnings("ignore", message="pkg_resources is deprecated")
    if find_spec("optuna") is not None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)


@contextlib.contextmanager
def ray_session(address: str | None) -> Iterator[None]:
    """Connect to a Ray cluster, or start one with the cores and GPUs of this machine, until the block ends.

    Args:
        address: `auto` for the cluster that runs here, HOST:PORT of another one, or None (also `local`) to start one.

    Raises:
        UsageError: There is no cluster at the address.
    """
    if address in (None, "local"):
        place: dict[str, Any] = {"address": "local", "include_dashboard": False, "object_store_memory": _STORE_BYTES}
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if _PACKAGE_ROOT not in paths:  # the processes of trials import the package that this process runs
            os.environ["PYTHONPATH"] = os.pathsep.join([_PACKAGE_ROOT, *filter(None, paths)])
    else:
        place = {"address": address}
    with _same_handler():
        import ray

        try:
            ray.init(log_to_driver=False, logging_level="ERROR", **place)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise UsageError(
                f"--address is '{address}': no Ray cluster answers there ({reason}); start one by `ray start --head`, "
                "or leave --address out"
            ) from error
    try:
        with _termination_as_interrupt():
            yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _same_handler() -> Iterator[None]:
    """Put the handler of SIGTERM back, which Ray replaces when it is imported and when it starts."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """Take SIGTERM as an interrupt: Ray ends the process at once, without a message, when a handler exits."""
    received: list[int] = []

    def interrupt(number: int, _: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    with _same_handler():
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, interrupt)
        try:
            yield
        except KeyboardInterrupt:
            if received:
                raise Termination(128 + signal.SIGTERM) from None
            raise


def cluster_gpus() -> float:
    """GPUs of all nodes together."""
    import ray

    return float(ray.cluster_resources().get("GPU", 0))


def check_resources(needs: Mapping[str, float]) -> None:
    """Refuse resources that no node has: the trials would wait for ever.

    Args:
        needs: The options that set cores and GPUs, in this order, with their values.

    Raises:
        UsageError: No node has enough.
    """
    import ray

    cpus, gpus = needs.values()
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        return
    sizes = "; ".join(f"{node.get('CPU', 0):g} cores and {node.get('GPU', 0):g} GPUs" for node in nodes)
    needed = " and ".join(f"{option} {value:g}" for option, value in needs.items())
    raise UsageError(f"{needed} fit on no node of Ray, which has {sizes}: write less")
