"""The search space: a yaml file with one domain per key, its checks, and the settings of the trials.

A domain is a list of values, {uniform: [low, high]}, {log_uniform: [low, high]} (uniform in the logarithm),
{integers: [low, high]} (both ends included) or {log_integers: [low, high]}.
"""

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recbole_lisa.config.config import LISAConfig
from recbole_lisa.config.properties import properties_path
from recbole_lisa.config.schema import read_yaml
from recbole_lisa.errors import UsageError, did_you_mean
from recbole_lisa.files import resolved

Settings = dict[str, Any]
Check = Callable[[Settings], str | None]

_RANGES = ("uniform", "log_uniform", "integers", "log_integers")
_DRAW_STREAM = 3
_DRAWS_PER_TRIAL = 200
_RESULT_KEYS = ("result_file", "codebook_plot", "per_user_file", "overwrite")
_RUN_KEYS = ("checkpoint_dir", *_RESULT_KEYS, "resume", "data_path", "state")
_NOT_SEARCHED = {
    **dict.fromkeys(("model", "dataset", "protocol"), "write it on the command line"),
    **dict.fromkeys(
        ("eval_args", "metrics", "topk", "valid_metric", "eval_step", "stopping_step", "eval_seen"),
        "trials with different metrics cannot be compared",
    ),
    "epochs": "it is the limit of every trial: write --epochs=N",
    **dict.fromkeys((*_RUN_KEYS, "use_gpu", "gpu_id"), "it does not change what a model learns"),
    "nproc": "a trial is one process, trials run in parallel",
}


@dataclass(frozen=True)
class Domain:
    """The values of one key."""

    kind: str  # choice, or a range: uniform | log_uniform | integers | log_integers
    values: tuple[Any, ...]  # the choices, or the lowest and the highest value of the range

    @property
    def _is_log(self) -> bool:
        return self.kind.startswith("log_")

    @property
    def is_integer(self) -> bool:
        """Whether the range holds integers only."""
        return self.kind.endswith("integers")

    def draw(self, rng: np.random.Generator) -> Any:
        """Draw one value; a float has four digits, so that tables and command lines stay short."""
        if self.kind == "choice":
            return self.values[int(rng.integers(len(self.values)))]
        low, high = self.values
        if self.kind == "integers":
            return int(rng.integers(low, high + 1))
        half = 0.5 if self.is_integer else 0  # so that both ends of log_integers have their full probability
        drawn = rng.uniform(low, high)
        if self._is_log:
            drawn = math.exp(rng.uniform(math.log(low - half), math.log(high + half)))
        return min(max(round(drawn) if self.is_integer else float(f"{drawn:.4g}"), low), high)

    def to_ray(self) -> Any:
        """The same domain as a `ray.tune` object."""
        from ray import tune

        if self.kind == "choice":
            return tune.choice(list(self.values))
        low, high = self.values
        if self.is_integer:
            return (tune.lograndint if self._is_log else tune.randint)(low, high + 1)
        return (tune.loguniform if self._is_log else tune.uniform)(float(low), float(high))


def space_file(name: str | None, model: str) -> Path:
    """The file of the space: the path `name`, or `properties/tuning/<name>.yaml`; by default that of the model."""
    if name is not None and Path(name).is_file():
        return resolved(name)
    folder, stem = properties_path() / "tuning", model if name is None else name
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if stem not in known:
        names = f"{', '.join(known)}.{did_you_mean(stem, known)}"
        raise UsageError(f"--space is '{stem}': no file and no space has this name; write a file or one of {names}")
    return folder / f"{stem}.yaml"


def read_space(path: Path) -> dict[str, Domain]:
    """Read a space and check its form; `check_space` checks that the model has its keys and allows its values."""
    space = {key: _domain(key, values, path) for key, values in read_yaml(path).items()}
    if not space:
        raise UsageError(f"the space '{path}' is empty: write lines such as n_codewords: [8, 16, 32]")
    return space


def check_space(config: LISAConfig, space: Mapping[str, Domain], origin: str) -> dict[str, Domain]:
    """The space in the types of its keys, lists and dicts as JSON text; a UsageError for a wrong key or value."""
    checked = {}
    for key, domain in space.items():
        values = tuple(plain_value(config.checked({key: value}, origin)[key]) for value in domain.values)
        checked[key] = Domain(domain.kind, values)
        if domain.kind != "choice" and not domain.is_integer:
            try:
                config.checked({key: sum(values) / 2}, origin)
            except UsageError as error:
                kind = "log_integers" if domain.kind.startswith("log_") else "integers"
                raise UsageError(f"{error}: write {key}: {{{kind}: {list(domain.values)}}}") from error
    return checked


def plain_value(value: Any) -> Any:
    """Convert a value for Ray and Optuna: lists and dicts become JSON text, which a configuration reads as yaml."""
    return json.dumps(value) if isinstance(value, list | dict) else value


def defaults(config: LISAConfig, space: Mapping[str, Domain]) -> Settings:
    """The values of the default configuration for the keys of the space."""
    settings = config.plain()
    return {key: plain_value(settings[key]) for key in space}


def planned(
    candidates: Iterable[Settings], default: Settings, num_samples: int | None, problem: Check
) -> list[Settings]:
    """The settings of all trials of a random or a grid search: `default` first, then candidates, none twice.

    `num_samples` is the number of trials, None for all candidates. A small space gives fewer trials. A larger
    `num_samples` extends the list. `problem` returns None or why the model refuses a candidate, which is left out.
    A UsageError if it refuses all.
    """
    accepted, reason = [default], ""
    refused: list[Settings] = []
    for candidate in itertools.islice(candidates, num_samples and num_samples * _DRAWS_PER_TRIAL):
        if len(accepted) == num_samples:
            break
        if candidate in accepted or candidate in refused:
            continue
        refusal = problem(candidate)
        (accepted if refusal is None else refused).append(candidate)
        reason = refusal or reason
    if len(accepted) == 1 and refused and num_samples != 1:
        raise UsageError(f"the model refuses every combination of the space, the last one because {reason}")
    return accepted


def draws(space: Mapping[str, Domain], seed: int) -> Iterator[Settings]:
    """Yield random settings without end."""
    rng = np.random.default_rng([_DRAW_STREAM, seed])
    while True:
        yield {key: domain.draw(rng) for key, domain in space.items()}


def grid(space: Mapping[str, Domain]) -> Iterator[Settings]:
    """Yield every combination of the choices; the last key changes fastest."""
    for key, domain in space.items():
        if domain.kind != "choice":
            where = f"{key} has the range {domain.kind}: {list(domain.values)}"
            raise UsageError(f"--search=grid needs choices, and {where}; write {key}: [...], or --search=random")
    for values in itertools.product(*(domain.values for domain in space.values())):
        yield dict(zip(space, values, strict=True))


def _domain(key: str, values: Any, path: Path) -> Domain:
    where = f"{key} in the space '{path}'"
    if key in _NOT_SEARCHED:
        raise UsageError(f"'{key}' cannot be searched (space '{path}'): {_NOT_SEARCHED[key]}")
    if isinstance(values, list):
        if not values:
            raise UsageError(f"{where} has no value to choose: write {key}: [value, ...]")
        if repeated := [value for index, value in enumerate(values) if value in values[:index]]:
            raise UsageError(f"{where} has {repeated[0]!r} twice: write each value once")
        return Domain("choice", tuple(values))
    ways = ", ".join(f"{{{kind}: [low, high]}}" for kind in _RANGES)
    if not isinstance(values, dict) or len(values) != 1:
        raise UsageError(f"{where} is {values!r}: write a list of values, or one of {ways}")
    ((kind, ends),) = values.items()
    if kind not in _RANGES:
        raise UsageError(f"{where} has the unknown range '{kind}': known are {ways}.{did_you_mean(str(kind), _RANGES)}")
    where, number = f"{where} is {kind}: {ends!r}", "integers" if kind.endswith("integers") else "numbers"
    types = (int,) if number == "integers" else (int, float)  # a bool is an int
    if not isinstance(ends, list) or [type(end) in types and math.isfinite(end) for end in ends] != [True, True]:
        raise UsageError(f"{where}, it must be [low, high], two {number}")
    if not ends[0] < ends[1]:
        raise UsageError(f"{where}, the first number must be below the second")
    if kind.startswith("log_") and ends[0] <= 0:
        raise UsageError(f"{where}, the numbers must be above 0")
    return Domain(kind, tuple(ends))
