"""The command `recbole-lisa tune`."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from recbole_lisa.cli.arguments import UsageParser, parse_settings
from recbole_lisa.config.config import BUNDLED_DATASET, LISAConfig
from recbole_lisa.datasets.obtain import ensure_data
from recbole_lisa.errors import UsageError
from recbole_lisa.files import probe_writing
from recbole_lisa.tuning.plan import Request, check_space, check_validation, defaults
from recbole_lisa.tuning.run import Plan, Resources, run_plan
from recbole_lisa.tuning.space import Domain, grid, read_space, space_file

DEFAULT_EPOCHS = 30
DEFAULT_SAMPLES = 10
_GRACE_SHARE = 6
_EPILOG = """\
Trial 0 is the default configuration and runs to its end. Trials are compared by valid_metric on the validation items,
after each validation; ASHA stops those that lag behind. The test items are looked at once, for the best trial. Settings
are written --key=value and hold for all trials; a key that is set is not searched. epochs is 30 unless it is set.

A space is a yaml file: n_codewords: [8, 16], learning_rate: {log_uniform: [3e-4, 3e-3]}; also uniform, integers and
log_integers. --space=NAME takes properties/tuning/NAME.yaml, by default that of the model.

  recbole-lisa tune -m LISASoft -d ml-100k --num_samples=8
  recbole-lisa tune -m LISASoft -d ml-100k --num_samples=8 --resume       after an interruption, or for more trials
  recbole-lisa tune -m LISASoft -d ml-1m --gpus_per_trial=0.25 --address=auto --storage=/shared/tuned
"""
_PATHS = ("data_path", "dataset_save_path")
_OWN = {
    **dict.fromkeys(("gpu_id", "nproc"), "which GPU a trial takes is for Ray to choose: use --gpus_per_trial"),
    **dict.fromkeys(
        ("checkpoint_dir", "result_file", "codebook_plot"), "a trial has a folder of its own: use --storage"
    ),
}


def main(words: Sequence[str]) -> int:
    """Search hyperparameters.

    Args:
        words: The words after `tune`.

    Returns:
        0, or 1 when a trial failed or the search was interrupted.

    Raises:
        UsageError: A word, a setting, the space or the surroundings are wrong; no trial has begun.
    """
    options, settings = _parse(words)
    request, config = _request(options, settings)
    check_validation(config)
    path = space_file(options.space, config["model"])
    space = {key: domain for key, domain in read_space(path).items() if key not in request.settings}
    space = check_space(config, space, f"space '{path}'")
    if not space:
        raise UsageError(f"every key of the space '{path}' is set on the command line: nothing is left to search")
    plan = Plan(
        request=request,
        space=space,
        default=defaults(config, space),
        search=options.search,
        num_samples=_samples(options, space),
        halving=_halving(options, config["epochs"]),
        epochs=config["epochs"],
        seed=config["seed"],
        valid_metric=config["valid_metric"],
    )
    _check_resources(options, config)
    folder = _folder(options, config)
    resources = Resources(options.cpus_per_trial, options.gpus_per_trial, options.address)
    return run_plan(plan, folder, resources, resume=options.resume)


def _parse(words: Sequence[str]) -> tuple[argparse.Namespace, dict[str, str]]:
    parser = UsageParser("recbole-lisa tune", "Search hyperparameters with Ray Tune.", _EPILOG)
    add = parser.add_argument
    add("-m", "--model", required=True, help="as in run")
    add("-d", "--dataset", required=True, help="as in run")
    add("--protocol", help="as in run; it must hold out validation items (default: full_ranking)")
    add("--config_files", nargs="+", default=[], metavar="FILE", help="as in run")
    add("--space", metavar="FILE", help="what is searched (default: properties/tuning/<model>.yaml)")
    add("--search", choices=("random", "grid", "optuna"), default="random", help="default: random")
    add("--num_samples", type=int, help=f"trials, the default one included (default: {DEFAULT_SAMPLES}; grid: all)")
    add("--scheduler", choices=("asha", "none"), default="asha", help="what stops trials early (default: asha)")
    add("--grace_period", type=int, help="epochs that every trial has (default: a sixth of epochs)")
    add("--reduction_factor", type=int, default=3, help="one of so many trials goes on (default: 3)")
    add("--cpus_per_trial", type=float, default=1.0, help="cores, and threads, of a trial (default: 1)")
    add("--gpus_per_trial", type=float, help="GPUs of a trial, or a share of one (default: 1 where there is one)")
    add("--address", help="auto or HOST:PORT of a Ray cluster (default: start one on this machine)")
    add("--storage", default="tuned", help="folder of all searches; on a cluster one of all nodes (default: tuned)")
    add("--name", help="folder of this search (default: <model>-<dataset>-<protocol>)")
    add("--resume", action="store_true", help="go on with a search that was interrupted, or add trials to it")
    options, rest = parser.parse_known_args(words)
    settings = parse_settings(rest)
    for key in _OWN.keys() & settings.keys():
        raise UsageError(f"'--{key}' is no setting of a search: {_OWN[key]}")
    return options, settings


def _request(options: argparse.Namespace, settings: dict[str, str]) -> tuple[Request, LISAConfig]:
    """The request with absolute paths, and the default configuration."""
    files = [str(Path(file).resolve()) for file in options.config_files]

    def build(more: dict[str, Any]) -> tuple[Request, LISAConfig]:
        request = Request(options.model, options.dataset, options.protocol, files, {**settings, **more})
        return request, request.config({})

    _, config = build({})
    for key in _OWN.keys() & config.external_config_dict.keys():
        raise UsageError(f"'{key}' in --config_files is no setting of a search: {_OWN[key]}")
    for line in ensure_data(config):
        print(line)
    more: dict[str, Any] = {}
    for key in _PATHS:  # trials start in folders of their own
        if config.external_config_dict.get(key):
            more[key] = str(Path(config.external_config_dict[key]).resolve())
    if "data_path" not in more and config["dataset"] != BUNDLED_DATASET:
        more["data_path"] = str(Path(config["data_path"]).resolve().parent)
    if "epochs" not in config.external_config_dict:
        more["epochs"] = DEFAULT_EPOCHS
    return build(more)


def _samples(options: argparse.Namespace, space: dict[str, Domain]) -> int | None:
    if options.search == "grid":
        if options.num_samples is not None:
            raise UsageError(f"--search=grid runs every combination: leave --num_samples={options.num_samples} out")
        next(grid(space))  # a range among the choices is told before data is read
        return None
    if options.num_samples is not None and options.num_samples < 1:
        raise UsageError(f"--num_samples is {options.num_samples}, it must be at least 1")
    return options.num_samples or DEFAULT_SAMPLES


def _halving(options: argparse.Namespace, epochs: int) -> dict[str, Any] | None:
    if options.scheduler == "none":
        if options.grace_period is not None:
            raise UsageError(f"--grace_period={options.grace_period} is of asha: leave it or --scheduler=none out")
        return None
    grace = max(1, epochs // _GRACE_SHARE) if options.grace_period is None else options.grace_period
    if not 1 <= grace <= epochs:
        raise UsageError(f"--grace_period is {grace}, it must be from 1 to epochs, {epochs}")
    if options.reduction_factor < 2:
        raise UsageError(f"--reduction_factor is {options.reduction_factor}, it must be at least 2")
    return {"epochs": epochs, "grace_period": grace, "reduction_factor": options.reduction_factor}


def _check_resources(options: argparse.Namespace, config: LISAConfig) -> None:
    if not options.cpus_per_trial > 0:
        raise UsageError(f"--cpus_per_trial is {options.cpus_per_trial:g}, it must be above 0")
    gpus = options.gpus_per_trial
    if gpus is not None and not gpus >= 0:
        raise UsageError(f"--gpus_per_trial is {gpus:g}, it must be at least 0")
    if gpus and not config["use_gpu"]:
        raise UsageError(f"--gpus_per_trial is {gpus:g}, but use_gpu is False: leave one of them out")


def _folder(options: argparse.Namespace, config: LISAConfig) -> Path:
    """The folder of the search, absolute."""
    default = f"{config['model']}-{config['dataset']}-{config['protocol']}"
    name = default if options.name is None else options.name
    if not options.storage.strip():
        raise UsageError("--storage is empty, it must name a folder, such as tuned")
    if not name.strip() or Path(name).name != name or name == os.pardir:
        raise UsageError(f"--name is '{name}', it must be the name of one folder; --storage says where it lies")
    folder = (Path(options.storage) / name).resolve()
    try:
        probe_writing(folder / "search.json")
    except OSError as error:
        raise UsageError(f"--storage '{options.storage}': nothing can be written there ({error.strerror})") from error
    if find_spec("matplotlib") is None:
        print("results.png needs matplotlib: pip install 'recbole-lisa[tune]'", file=sys.stderr)
    return folder
