"""The command `recbole-lisa tune`."""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from recbole_lisa.cli.arguments import UsageParser, positive
from recbole_lisa.config.config import BUNDLED_DATASET, LISAConfig
from recbole_lisa.errors import UsageError, install_extra
from recbole_lisa.files import advise_after_interruption, probe_writing, resolved
from recbole_lisa.tuning.space import Domain, check_space, defaults, grid, read_space, space_file
from recbole_lisa.tuning.study import SEARCH_FILE, Study, run_study
from recbole_lisa.tuning.trial import build_config, check_validation

DEFAULT_EPOCHS = 30
DEFAULT_SAMPLES = 10
_GRACE_FRACTION = 6
_EPILOG = """\
Trial 0 is the default configuration. ASHA never stops it. Trials are compared by valid_metric on the
validation items; ASHA stops the worst ones early. Only the best trial is tested on the test items. Settings are
written --key=value and hold for all trials; a key that is set is not searched. epochs is 30 unless it is set.

A space is a yaml file: n_codewords: [8, 16], learning_rate: {log_uniform: [3e-4, 3e-3]}; also uniform, integers and
log_integers. --space=NAME takes properties/tuning/NAME.yaml, by default the file of the model.

After an interruption, even kill -9, repeat the command with --resume: Ray restores the search from its last snapshot
and each trial from its checkpoint. Epochs after the snapshot are run again. TensorBoard: tensorboard --logdir tuned.

  recbole-lisa tune -m LISASoft -d ml-100k --num_samples=8
  recbole-lisa tune -m LISASoft -d ml-100k --num_samples=12 --resume      continue, or add trials
  recbole-lisa tune -m LISASoft -d ml-1m --gpus_per_trial=0.25 --address=auto --storage=/shared/tuned
"""
_PATHS = ("data_path", "dataset_save_path")
_REFUSED_SETTINGS = {
    "gpu_id": "Ray chooses the GPU of a trial: use --gpus_per_trial",
    "nproc": "a trial is one process, trials run in parallel; use --cpus_per_trial and --gpus_per_trial",
    **dict.fromkeys(("checkpoint_dir", "result_file", "codebook_plot"), "a trial has its own folder: use --storage"),
    "per_user_file": "a trial has its own folder: use --storage",
}


def main(arguments: Sequence[str]) -> int:
    """Search hyperparameters; `arguments` are those after `tune`. The exit status is 1 when a trial failed."""
    options, settings = _parse(arguments)
    fixed, config = _fixed(options, settings)
    check_validation(config)
    path = space_file(options.space, config["model"])
    domains = {key: domain for key, domain in read_space(path).items() if key not in fixed}
    space = check_space(config, domains, f"space '{path}'")
    if not space:
        raise UsageError(f"every key of the space '{path}' is set on the command line: nothing is left to search")
    study = Study(
        fixed=fixed,
        space=space,
        default=defaults(config, space),
        search=options.search,
        seed=config["seed"],
        valid_metric=config["valid_metric"],
        num_samples=_samples(options, space),
        halving=_halving(options, config["epochs"]),
        resources=_resources(options, config),
        folder=_folder(options, config),
    )
    with advise_after_interruption(partial(_advice, study.folder)):
        return run_study(study, address=options.address, resume=options.resume)


def _advice(folder: Path) -> str:
    if (folder / SEARCH_FILE).is_file():
        return "continue by the same arguments and --resume"
    return "no trial has begun, start again by the same arguments"


def _parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, dict[str, Any]]:
    parser = UsageParser("recbole-lisa tune", "Search hyperparameters with Ray Tune.", _EPILOG)
    add = parser.add_argument
    add("-m", "--model", required=True, help="as in run")
    add("-d", "--dataset", required=True, help="as in run")
    add("--protocol", help="as in run; it must have validation items (default: full_ranking)")
    add("--config_files", nargs="+", default=[], metavar="FILE", help="as in run")
    add("--space", metavar="FILE", help="the search space (default: properties/tuning/<model>.yaml)")
    add("--search", choices=("random", "grid", "optuna"), default="random", help="default: random")
    add("--num_samples", type=positive, help=f"trials, trial 0 included (default: {DEFAULT_SAMPLES}; grid: all)")
    add("--scheduler", choices=("asha", "none"), default="asha", help="it stops trials early (default: asha)")
    add("--grace_period", type=positive, help="epochs before a trial may be stopped (default: a sixth of epochs)")
    add("--reduction_factor", type=int, default=3, help="ASHA continues 1 of N trials (default: 3)", metavar="N")
    add("--cpus_per_trial", type=float, default=1.0, help="CPU cores of a trial, and its threads (default: 1)")
    add("--gpus_per_trial", type=float, help="GPUs of a trial, or a fraction of one (default: 1 where there is one)")
    add("--address", help="auto or HOST:PORT of a Ray cluster (default: start Ray on this machine)")
    add("--storage", default="tuned", help="folder of all searches, shared by all nodes (default: tuned)")
    add("--name", help="folder of this search (default: <model>-<dataset>-<protocol>)")
    add("--resume", action="store_true", help="continue an interrupted search, or add trials to a finished one")
    return parser.parse_with_settings(arguments)


def _fixed(options: argparse.Namespace, settings: dict[str, Any]) -> tuple[dict[str, Any], LISAConfig]:
    """The settings that all trials share, with absolute paths, and the default configuration."""
    names = {key: getattr(options, key) for key in ("model", "dataset", "protocol")}
    files = [str(resolved(file)) for file in options.config_files]
    config = LISAConfig(**names, config_files=files, command_line=settings, options=vars(options))
    fixed: dict[str, Any] = {**names, "config_files": files, **settings}
    user_settings = config.external_config_dict
    for key in _REFUSED_SETTINGS.keys() & user_settings.keys():
        raise UsageError(f"'{key}' is not a setting of a search: {_REFUSED_SETTINGS[key]}")
    for key in _PATHS:  # each trial has its own working folder
        if user_settings.get(key):
            fixed[key] = str(resolved(user_settings[key]))
    if "data_path" not in user_settings and config["dataset"] != BUNDLED_DATASET:
        fixed["data_path"] = str(resolved(config["data_path"]).parent)
    if "epochs" not in user_settings:
        fixed["epochs"] = DEFAULT_EPOCHS
    return fixed, build_config(fixed)


def _samples(options: argparse.Namespace, space: dict[str, Domain]) -> int | None:
    if options.search == "grid":
        if options.num_samples is not None:
            raise UsageError(f"--search=grid runs every combination: leave --num_samples={options.num_samples} out")
        next(grid(space))  # refuses a range before data is read
        return None
    return options.num_samples or DEFAULT_SAMPLES


def _halving(options: argparse.Namespace, epochs: int) -> dict[str, Any] | None:
    if options.scheduler == "none":
        if options.grace_period is not None:
            raise UsageError(f"--grace_period={options.grace_period} needs ASHA: leave it or --scheduler=none out")
        return None
    grace = options.grace_period or max(1, epochs // _GRACE_FRACTION)
    if grace > epochs:
        raise UsageError(f"--grace_period is {grace}, it must be from 1 to epochs, {epochs}")
    if options.reduction_factor < 2:
        raise UsageError(f"--reduction_factor is {options.reduction_factor}, it must be at least 2")
    return {"max_t": epochs + 1, "grace_period": grace, "reduction_factor": options.reduction_factor}


def _resources(options: argparse.Namespace, config: LISAConfig) -> tuple[float, float | None]:
    cpus, gpus = options.cpus_per_trial, options.gpus_per_trial
    if not cpus > 0:
        raise UsageError(f"--cpus_per_trial is {cpus:g}, it must be above 0")
    if gpus is not None and not gpus >= 0:
        raise UsageError(f"--gpus_per_trial is {gpus:g}, it must be at least 0")
    if gpus and not config["use_gpu"]:
        raise UsageError(f"--gpus_per_trial is {gpus:g}, but use_gpu is False: leave one of them out")
    return cpus, gpus if config["use_gpu"] else 0.0


def _folder(options: argparse.Namespace, config: LISAConfig) -> Path:
    """The folder of the search, absolute."""
    name = f"{config['model']}-{config['dataset']}-{config['protocol']}" if options.name is None else options.name
    if not options.storage.strip():
        raise UsageError("--storage is empty, it must name a folder, such as tuned")
    if not name.strip() or Path(name).name != name or name == os.pardir:
        raise UsageError(f"--name is '{name}', it must be the name of one folder; --storage names its parent folder")
    folder = resolved(Path(options.storage) / name)
    try:
        probe_writing(folder / SEARCH_FILE)
    except OSError as error:
        raise UsageError(f"--storage '{options.storage}': nothing can be written there ({error.strerror})") from error
    if find_spec("matplotlib") is None:
        print(f"results.png needs matplotlib: {install_extra('tune')}", file=sys.stderr)
    return folder
