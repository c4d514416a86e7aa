"""The search space: a yaml file with one domain per key, its checks, and the settings of the trials.

```yaml
n_codewords: [8, 16, 32]                # one of these
learning_rate: {log_uniform: [3e-4, 3e-3]}  # uniform in the logarithm
hidden_dropout_prob: {uniform: [0, 0.5]}
n_layers: {integers: [1, 3]}            # both ends included
inner_size: {log_integers: [64, 512]}
```
"""

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recbole_lisa.config.config import LISAConfig
from recbole_lisa.config.properties import properties_path
from recbole_lisa.config.schema import read_yaml
from recbole_lisa.errors import UsageError, did_you_mean

Settings = dict[str, Any]

_RANGES = ("uniform", "log_uniform", "integers", "log_integers")
_DIGITS = 4
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
    def is_log(self) -> bool:
        """Whether the range is uniform in the logarithm."""
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
        if self.kind == "log_integers":  # half a step more at both ends: each end is as likely as its neighbour
            drawn = math.floor(math.exp(rng.uniform(math.log(low - 0.5), math.log(high + 0.5))) + 0.5)
            return min(max(drawn, low), high)
        drawn = math.exp(rng.uniform(math.log(low), math.log(high))) if self.is_log else rng.uniform(low, high)
        return min(max(float(f"{drawn:.{_DIGITS}g}"), float(low)), float(high))

    def to_ray(self) -> Any:
        """The same domain as a `ray.tune` object."""
        from ray import tune

        if self.kind == "choice":
            return tune.choice(list(self.values))
        low, high = self.values
        if self.is_integer:
            return (tune.lograndint if self.is_log else tune.randint)(low, high + 1)
        return (tune.loguniform if self.is_log else tune.uniform)(float(low), float(high))


def space_file(name: str | None, model: str) -> Path:
    """Return the file of the space.

    Args:
        name: A path, or the name of a file in `properties/tuning`; None for the file of the model.
        model: Name of the model.

    Raises:
        UsageError: There is no such file.
    """
    if name is not None and Path(name).is_file():
        return Path(name).resolve()
    folder = properties_path() / "tuning"
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    stem = model if name is None else name
    if stem not in known:
        raise UsageError(
            f"--space is '{stem}': there is no such file, and no space of this name; write a yaml file or one of "
            f"{', '.join(known)}.{did_you_mean(stem, known)}"
        )
    return folder / f"{stem}.yaml"


def read_space(path: Path) -> dict[str, Domain]:
    """Read a space. `check_space` compares its keys and values with the model.

    Raises:
        UsageError: The file cannot be read or is empty, a domain is malformed, or a key cannot be searched.
    """
    space = {key: _domain(key, written, path) for key, written in read_yaml(path).items()}
    if not space:
        raise UsageError(f"the space '{path}' is empty: write lines such as n_codewords: [8, 16, 32]")
    return space


def check_space(config: LISAConfig, space: Mapping[str, Domain], origin: str) -> dict[str, Domain]:
    """Check every key and value of a space against the settings of the model.

    Args:
        config: The default configuration.
        space: The space as the file has it.
        origin: The file, for messages.

    Returns:
        The space; its values have the types of the keys, lists and dicts are JSON text.

    Raises:
        UsageError: A key is unknown, a value is wrong, or a key of integers has a range of floats.
    """
    checked = {}
    for key, domain in space.items():
        values = tuple(plain_value(config.checked({key: value}, origin)[key]) for value in domain.values)
        checked[key] = Domain(domain.kind, values)
        if domain.kind != "choice" and not domain.is_integer:
            try:
                config.checked({key: sum(values) / 2}, origin)
            except UsageError as error:
                kind = "log_integers" if domain.is_log else "integers"
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
    search: str,
    space: Mapping[str, Domain],
    default: Settings,
    *,
    num_samples: int | None,
    seed: int,
    problem: Callable[[Settings], str | None],
) -> list[Settings]:
    """The settings of all trials of a random or a grid search.

    Args:
        search: random | grid.
        space: The checked space.
        default: Settings of trial 0; it counts as a trial.
        num_samples: Number of trials; None for a grid.
        seed: Seed of the draws. A larger `num_samples` with the same seed extends the list.
        problem: Returns why the model refuses a combination, or None. Refused combinations are left out.

    Returns:
        Different settings; fewer than `num_samples` where the space has no more.

    Raises:
        UsageError: A grid search over a range, or the model refuses every combination.
    """
    candidates = grid(space) if search == "grid" else _draws(space, seed)
    limit = None if num_samples is None else num_samples * _DRAWS_PER_TRIAL
    chosen, refused, reason = [default], [], ""
    for candidate in itertools.islice(candidates, limit):
        if len(chosen) == num_samples:
            break
        if candidate in chosen or candidate in refused:
            continue
        found = problem(candidate)
        if found is None:
            chosen.append(candidate)
        else:
            refused.append(candidate)
            reason = found
    if len(chosen) == 1 and refused and num_samples != 1:
        raise UsageError(f"the model refuses every combination of the space, the last one because {reason}")
    return chosen


def grid(space: Mapping[str, Domain]) -> Iterator[Settings]:
    """Yield every combination of the choices; the last key changes fastest.

    Raises:
        UsageError: A key has a range instead of choices.
    """
    for key, domain in space.items():
        if domain.kind != "choice":
            raise UsageError(
                f"--search=grid needs choices, and {key} has the range {domain.kind}: {list(domain.values)}; write "
                f"{key}: [...] in the space, or --search=random"
            )
    for values in itertools.product(*(domain.values for domain in space.values())):
        yield dict(zip(space, values, strict=True))


def _draws(space: Mapping[str, Domain], seed: int) -> Iterator[Settings]:
    rng = np.random.default_rng([_DRAW_STREAM, seed])
    while True:
        yield {key: domain.draw(rng) for key, domain in space.items()}


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
    _check_range(f"{where} is {kind}: {ends!r}", kind, ends)
    return Domain(kind, tuple(ends))


def _check_range(where: str, kind: str, ends: Any) -> None:
    is_integer = kind.endswith("integers")
    types = int if is_integer else (int, float)
    if (
        not isinstance(ends, list)
        or len(ends) != 2
        or not all(isinstance(end, types) and not isinstance(end, bool) and math.isfinite(end) for end in ends)
    ):
        raise UsageError(f"{where}, it must be [low, high], two {'integers' if is_integer else 'numbers'}")
    if not ends[0] < ends[1]:
        raise UsageError(f"{where}, the first number must be below the second")
    if kind.startswith("log_") and ends[0] <= 0:
        raise UsageError(f"{where}, the numbers must be above 0")
