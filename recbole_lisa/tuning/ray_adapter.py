"""The only file that knows Ray, whose interface moved between 2.6 and 2.60.

A trial's checkpoints, and what a search knows of its trials, are files of ours (`trial.py`, `record.py`), so that
resuming depends neither on Ray's version nor on how old its last snapshot is: every start is a new Ray experiment over
the trials that have not ended. `ray` is imported when it is needed, as everything else works without it.
"""

import contextlib
import importlib
import inspect
import json
import os
import pickle
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, TypeVar

from recbole_lisa.errors import UsageError
from recbole_lisa.tuning.record import FAILED, RUNNING, STOPPED, Record
from recbole_lisa.tuning.search import Search

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_FAILURES = 3
"""How often a trial whose process or machine died is begun again, from its newest checkpoint."""

_STORE_BYTES = 2**27
_PACKAGE_ROOT = str(Path(__file__).parents[2])
_INSTALL = "pip install 'recbole-lisa[tune]'"


def check_tune() -> None:
    """Refuse to search without what Tune needs: RecBole brings Ray alone, and Tune 2.6 misses pyarrow only at its end.

    Raises:
        UsageError: A package is missing.
    """
    _hush_pkg_resources()
    try:
        importlib.import_module("ray.tune")
        importlib.import_module("pyarrow")
    except ImportError as error:
        raise UsageError(f"recbole-lisa tune needs Ray Tune ({error}): {_INSTALL}") from error


def _hush_pkg_resources() -> None:
    """Ray 2.6 imports it, which prints a warning that nobody here can do anything about."""
    warnings.filterwarnings("ignore", message="pkg_resources is deprecated")


def _interrupt(_: int, frame: FrameType | None) -> None:
    """Take a request to terminate for Ctrl+C, at which Tune ends well; at a SystemExit Ray ends the process at once."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # ignored, where a shell starts the program in the background
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)


@contextlib.contextmanager
def ray_session(address: str | None) -> Iterator[None]:
    """Connect to a Ray cluster, or start one of this machine's cores and GPUs, until the block ends.

    Args:
        address: `auto` for the cluster that runs here, HOST:PORT of another, or None (also `local`) to start one.

    Raises:
        UsageError: Ray is not installed, or there is no cluster at the address.
    """
    _hush_pkg_resources()
    try:
        import ray
    except ImportError as error:
        raise UsageError(f"this needs ray, which cannot be imported ({error}): {_INSTALL}") from error
    if address in (None, "local"):
        place: dict[str, Any] = {"address": "local", "include_dashboard": False, "object_store_memory": _STORE_BYTES}
    else:
        place = {"address": address}
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", **place)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"--address is '{address}': no Ray cluster answers there ({reason}); start one by `ray start --head`, or "
            "leave --address out"
        ) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)  # Ray's own handler prints a stack and aborts
    try:
        yield
    finally:
        ray.shutdown()


def cluster_gpus() -> float:
    """GPUs of all nodes together."""
    import ray

    return float(ray.cluster_resources().get("GPU", 0))


def check_resources(needs: Mapping[str, float]) -> None:
    """Refuse what would wait for ever.

    Args:
        needs: The options that ask for cores and for GPUs, in this order, with their values.

    Raises:
        UsageError: No node has as much.
    """
    import ray

    cpus, gpus = needs.values()
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        return
    found = "; ".join(f"{node.get('CPU', 0):g} cores and {node.get('GPU', 0):g} GPUs" for node in nodes)
    asked = " and ".join(f"{option} {value:g}" for option, value in needs.items())
    raise UsageError(f"{asked} fit on no node of Ray, which has {found}: ask for less")


def run_jobs(
    function: Callable[[Item], Result], items: Sequence[Item], *, cpus: float, gpus: float
) -> Iterator[tuple[Item, Result]]:
    """Call a function for every item, as many at a time as there is room for.

    Args:
        function: Of this package, or a partial of one; what it takes and returns travels between machines.
        items: What to call it with.
        cpus: Of each call.
        gpus: Of each call; CUDA_VISIBLE_DEVICES is set to them.

    Yields:
        Items with their results, as they come.
    """
    import ray

    call = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=MAX_FAILURES)(_portable(function))
    waiting = {call.remote(pickle.dumps(item)): item for item in items}
    while waiting:
        (done, *_), _ = ray.wait(list(waiting))
        yield waiting.pop(done), ray.get(done)


def run_search(
    common: Mapping[str, Any], search: Search, *, halving: Mapping[str, Any] | None, cpus: float, gpus: float
) -> None:
    """Run trials until none is left, all reports going into the record of the search.

    Args:
        common: See `trial.run_trial`.
        search: Gives the trials.
        halving: ASHA's epochs, grace_period and reduction_factor; None lets every trial run to its end.
        cpus: Of each trial.
        gpus: Of each trial; may be a fraction.
    """
    # The record and the trials' own files hold more than Tune's loggers and its output would tell.
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    from ray import tune

    try:
        from ray.tune import FailureConfig, RunConfig
    except ImportError:  # before 2.43 they are Ray AIR's
        from ray.air import FailureConfig, RunConfig

    scheduler = _scheduler(halving, search.record)
    storage = search.record.folder / "ray"
    tuner = tune.Tuner(
        tune.with_resources(_trainable(dict(common)), {"cpu": cpus, "gpu": gpus}),
        tune_config=tune.TuneConfig(
            search_alg=_searcher(search),
            scheduler=scheduler,
            num_samples=search.remaining(),
            reuse_actors=False,  # a new process leaves no memory of the last trial on the GPU
            trial_dirname_creator=lambda trial: f"trial-{trial.config['number']:04d}",
        ),
        run_config=RunConfig(
            name=f"start-{len(list(storage.glob('start-*'))) + 1}",
            storage_path=str(storage),
            failure_config=FailureConfig(max_failures=MAX_FAILURES),
            callbacks=[_watch(search, scheduler)],
            verbose=0,
        ),
    )
    tuner.fit()


def report(told: Mapping[str, Any]) -> None:
    """Hand a trial's report to Tune, with the name of its node; raises in the trial when Tune stops it."""
    import ray
    from ray import tune

    # Two nodes of a cluster may be on one machine: the beginning of Ray's own name tells them apart.
    node = f"{socket.gethostname()}-{ray.get_runtime_context().get_node_id()[:6]}"
    metrics = {
        "told": json.dumps({**told, "node": node}),
        **{key: told[key] for key in ("epoch", "score") if key in told},
    }
    if "metrics" in inspect.signature(tune.report).parameters:
        tune.report(metrics)
        return
    from ray.air import session

    session.report(metrics)


def _portable(function: Callable[..., Any]) -> Callable[[bytes], Any]:
    """`function`, to be called with a pickled argument, where this package lies in the same folder uninstalled.

    It travels by value, and what it needs of this package is unpickled once the package is found.
    """
    root, pickled = _PACKAGE_ROOT, pickle.dumps(function)

    def call(argument: bytes) -> Any:
        import pickle
        import sys

        if root not in sys.path:
            sys.path.insert(0, root)
        return pickle.loads(pickled)(pickle.loads(argument))

    return call


def _trainable(common: dict[str, Any]) -> Callable[[Mapping[str, Any]], None]:
    from recbole_lisa.tuning.trial import run_trial_on_ray

    run = _portable(run_trial_on_ray)

    def trial(config: Mapping[str, Any]) -> None:
        import pickle

        run(pickle.dumps((common, config["number"], config["settings"])))

    return trial


class _Unsaved:
    """Tune pickles what it is given, for a restore of its own that is never made here."""

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __deepcopy__(self, memo: Any) -> Any:
        return self


def _searcher(search: Search) -> Any:
    from ray.tune.search import Searcher

    class Feed(_Unsaved, Searcher):
        """Hands out the trials that we number."""

        def __init__(self, search: Search) -> None:
            super().__init__(metric="score", mode="max")
            self._search = search

        def suggest(self, trial_id: str) -> Any:
            trial = self._search.next_trial()
            if trial is None:
                return Searcher.FINISHED
            return {"number": trial.number, "settings": json.dumps(trial.settings)}

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            """The search learns from the record, see Watch."""

        def save(self, checkpoint_path: str) -> None:
            Path(checkpoint_path).touch()

        def restore(self, checkpoint_path: str) -> None:
            raise NotImplementedError("a search is resumed from its record")

    return Feed(search)


def _scheduler(halving: Mapping[str, Any] | None, record: Record) -> Any:
    """ASHA that knows what an interrupted search reported; or nothing that stops trials."""
    from ray.tune.schedulers import FIFOScheduler

    if halving is None:
        return FIFOScheduler()
    asha = _numbered_asha()(
        time_attr="epoch",
        metric="score",
        mode="max",
        max_t=halving["epochs"] + 1,  # a trial ends by itself
        grace_period=halving["grace_period"],
        reduction_factor=halving["reduction_factor"],
    )
    for known in record.trials.values():
        stand_in = SimpleNamespace(config={"number": known.number})
        asha.on_trial_add(None, stand_in)
        for told in known.reports:
            asha.on_trial_result(None, stand_in, told)
    asha.stopped.clear()
    return asha


def _numbered_asha() -> Any:
    """Ray's ASHA under our trial numbers: Ray's own names of trials change with every start."""
    from ray.tune.schedulers import AsyncHyperBandScheduler

    def numbered(trial: Any) -> Any:
        return SimpleNamespace(trial_id=str(trial.config["number"]))

    class Asha(_Unsaved, AsyncHyperBandScheduler):
        """Knows which trials it stopped, as Ray ends trials for other reasons too."""

        def __init__(self, **arguments: Any) -> None:
            super().__init__(**arguments)
            self.stopped: set[int] = set()

        def on_trial_add(self, controller: Any, trial: Any) -> None:
            super().on_trial_add(controller, numbered(trial))

        def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> str:
            decision: str = super().on_trial_result(controller, numbered(trial), result)
            if trial.config["number"] == 0:  # the others are compared with a default that was fully trained
                return str(self.CONTINUE)
            if decision == self.STOP:
                self.stopped.add(trial.config["number"])
            return decision

        def on_trial_complete(self, controller: Any, trial: Any, result: dict[str, Any]) -> None:
            super().on_trial_complete(controller, numbered(trial), result)

        def on_trial_remove(self, controller: Any, trial: Any) -> None:
            super().on_trial_remove(controller, numbered(trial))

    return Asha


def _watch(search: Search, scheduler: Any) -> Any:
    from ray.tune import Callback

    class Watch(_Unsaved, Callback):
        """Writes what Ray tells into the record."""

        def __init__(self, search: Search, scheduler: Any) -> None:
            self._search, self._record, self._scheduler = search, search.record, scheduler

        def on_step_end(self, iteration: int, trials: Any, **info: Any) -> None:
            self._search.show()

        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            self._record.set_status(trial.config["number"], RUNNING)

        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            if "told" in result:
                self._record.take(trial.config["number"], json.loads(result["told"]))

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            number = trial.config["number"]
            stopped = number in getattr(self._scheduler, "stopped", ())
            if stopped and self._record.trials[number].status == RUNNING:
                self._record.set_status(number, STOPPED)
            self._search.ended(number)

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            number = trial.config["number"]
            self._record.set_status(number, FAILED, f"its process ended {MAX_FAILURES + 1} times: {_last_words(trial)}")
            self._search.ended(number)

    return Watch(search, scheduler)


def _last_words(trial: Any) -> str:
    """What Ray knows of the end of a trial's process, in one line."""
    error = trial.get_error() if hasattr(trial, "get_error") else None
    if error is not None:
        return " ".join(str(error).split())[-300:]
    return f"see {getattr(trial, 'error_file', None) or 'the log of Ray'}"
