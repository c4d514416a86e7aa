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

Settings = dict[str, Any]
Check = Callable[[Settings], str | None]

_RANGES = ("uniform", "log_uniform", "integers", "log_integers")
_DRAW_STREAM = 3
_DRAWS_PER_TRIAL = 200
_RUN_KEYS = ("checkpoint_dir", "result_file", "resume", "codebook_plot", "overwrite", "data_path", "state")
_NOT_SEARCHED = {
    **dict.fromkeys(("model", "dataset", "protocol"), "write it on the command line"),
    **dict.fromkeys(
        ("eval_args", "metrics", "topk", "valid_metric", "eval_step", "stopping_step"),
        "trials with different metrics cannot be compared",
    ),
    "epochs": "it is the limit of every trial: write --epochs=N",
    **dict.fromkeys((*_RUN_KEYS, "use_gpu", "gpu_id", "nproc"), "it does not change what a model learns"),
}


@dataclass(frozen=True)
class Domain:
    """The values of one key.

    Attributes:
        kind: `choice`, or a range: uniform | log_uniform | integers | log_integers.
        values: The choices, or the lowest and the highest value of the range.
    """

    kind: str
    values: tuple[Any, ...]

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
        half = 0.5 if self.is_integer else 0  # each end of log_integers is as likely as its neighbour
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
    """The file of the space: the path `name`, the file of this name in `properties/tuning`, or that of the model."""
    if name is not None and Path(name).is_file():
        return Path(name).resolve()
    folder, stem = properties_path() / "tuning", model if name is None else name
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if stem not in known:
        names = f"{', '.join(known)}.{did_you_mean(stem, known)}"
        raise UsageError(
            f"--space is '{stem}': no file and no space has this name; write a yaml file or one of {names}"
        )
    return folder / f"{stem}.yaml"


def read_space(path: Path) -> dict[str, Domain]:
    """Read a space and check its form; `check_space` compares its keys and values with the model."""
    space = {key: _domain(key, written, path) for key, written in read_yaml(path).items()}
    if not space:
        raise UsageError(f"the space '{path}' is empty: write lines such as n_codewords: [8, 16, 32]")
    return space


def check_space(config: LISAConfig, space: Mapping[str, Domain], origin: str) -> dict[str, Domain]:
    """Check every key and value of a space, from the file `origin`, against the settings of the model.

    Returns:
        The space; its values have the types of the keys, lists and dicts are JSON text.
    """
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
    """A value as Ray and Optuna take it: lists and dicts become JSON text, which a configuration reads as yaml."""
    return json.dumps(value) if isinstance(value, list | dict) else value


def defaults(config: LISAConfig, space: Mapping[str, Domain]) -> Settings:
    """The values of the default configuration for the keys of the space."""
    plain = config.plain()
    return {key: plain_value(plain[key]) for key in space}


def planned(
    candidates: Iterable[Settings], default: Settings, num_samples: int | None, problem: Check
) -> list[Settings]:
    """The different settings of all trials of a random or a grid search, `default` first.

    None takes all candidates; a larger `num_samples` extends the list, a small space gives fewer. Combinations for
    which `problem` returns a reason are left out; a UsageError when the model refuses all.
    """
    chosen, reason = [default], ""
    refused: list[Settings] = []
    for candidate in itertools.islice(candidates, num_samples and num_samples * _DRAWS_PER_TRIAL):
        if len(chosen) == num_samples:
            break
        if candidate in chosen or candidate in refused:
            continue
        refusal = problem(candidate)
        (chosen if refusal is None else refused).append(candidate)
        reason = refusal or reason
    if len(chosen) == 1 and refused and num_samples != 1:
        raise UsageError(f"the model refuses every combination of the space, the last one because {reason}")
    return chosen


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


def _domain(key: str, written: Any, path: Path) -> Domain:
    where = f"{key} in the space '{path}'"
    if key in _NOT_SEARCHED:
        raise UsageError(f"{where} cannot be searched: {_NOT_SEARCHED[key]}")
    if isinstance(written, list):
        if not written:
            raise UsageError(f"{where} has no value to choose: write {key}: [value, ...]")
        repeated = [value for index, value in enumerate(written) if value in written[:index]]
        if repeated:
            raise UsageError(f"{where} has {repeated[0]!r} twice: write each value once")
        return Domain("choice", tuple(written))
    ways = ", ".join(f"{{{kind}: [low, high]}}" for kind in _RANGES)
    if not isinstance(written, dict) or len(written) != 1:
        raise UsageError(f"{where} is {written!r}: write a list of values, or one of {ways}")
    ((kind, ends),) = written.items()
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
