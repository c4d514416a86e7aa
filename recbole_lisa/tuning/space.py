"""What a search may choose from: a yaml file of one domain a key.

```yaml
n_codewords: [8, 16, 32]                # one of these
learning_rate: {log_uniform: [3e-4, 3e-3]}  # evenly in the logarithm
hidden_dropout_prob: {uniform: [0, 0.5]}
n_layers: {integers: [1, 3]}            # both ends included
inner_size: {log_integers: [64, 512]}
```
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recbole_lisa.config.properties import properties_path
from recbole_lisa.config.schema import read_yaml
from recbole_lisa.errors import UsageError, did_you_mean

Settings = dict[str, Any]

_RANGES = ("uniform", "log_uniform", "integers", "log_integers")
_DIGITS = 4
# Trials are compared by one measure, on one data set, after at most the same number of epochs.
_OF_ALL_TRIALS = {
    **dict.fromkeys(("model", "dataset", "protocol"), "name it on the command line"),
    **dict.fromkeys(
        ("eval_args", "metrics", "topk", "valid_metric", "eval_step", "stopping_step"),
        "trials that are measured in different ways cannot be compared",
    ),
    "epochs": "it is what every trial may take: write --epochs=N",
    **dict.fromkeys(
        (
            "checkpoint_dir",
            "result_file",
            "resume",
            "codebook_plot",
            "overwrite",
            "data_path",
            "use_gpu",
            "gpu_id",
            "nproc",
            "state",
        ),
        "it does not change what is learnt",
    ),
}


@dataclass(frozen=True)
class Domain:
    """The values of one key.

    Attributes:
        kind: `choice`, or a range: uniform | log_uniform | integers | log_integers.
        values: The choices, or the lowest and the highest value.
    """

    kind: str
    values: tuple[Any, ...]

    @property
    def is_log(self) -> bool:
        """Whether the range is even in the logarithm."""
        return self.kind.startswith("log_")

    @property
    def is_integer(self) -> bool:
        """Whether the range holds whole numbers only."""
        return self.kind.endswith("integers")

    def holds(self, value: Any) -> bool:
        """Whether a value could be drawn."""
        if self.kind == "choice":
            return value in self.values
        return bool(self.values[0] <= value <= self.values[1])

    def draw(self, rng: np.random.Generator) -> Any:
        """One value; a real number has four digits, so that it can be written on a command line."""
        if self.kind == "choice":
            return self.values[int(rng.integers(len(self.values)))]
        low, high = self.values
        if self.kind == "integers":
            return int(rng.integers(low, high + 1))
        if self.kind == "log_integers":  # from a half below, so that the ends are as likely as their neighbours
            drawn = math.floor(math.exp(rng.uniform(math.log(low - 0.5), math.log(high + 0.5))) + 0.5)
            return min(max(drawn, low), high)
        drawn = math.exp(rng.uniform(math.log(low), math.log(high))) if self.is_log else rng.uniform(low, high)
        return self.rounded(drawn)

    def rounded(self, value: float) -> float:
        """`value` with four digits, inside the range."""
        return min(max(float(f"{value:.{_DIGITS}g}"), float(self.values[0])), float(self.values[1]))


def space_file(named: str | None, model: str) -> Path:
    """The file that holds the space.

    Args:
        named: A path, or the name of a file in `properties/tuning`; None for that of the model.
        model: Name of the model.

    Raises:
        UsageError: There is no such file.
    """
    if named is not None and Path(named).is_file():
        return Path(named).resolve()
    folder = properties_path() / "tuning"
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    name = model if named is None else named
    if name not in known:
        raise UsageError(
            f"--space is '{name}': there is no such file, and no space of this name; give a yaml file or one of "
            f"{', '.join(known)}.{did_you_mean(name, known)}"
        )
    return folder / f"{name}.yaml"


def read_space(path: Path) -> dict[str, Domain]:
    """Read a space; whether its keys and values are settings of the model is for `plan.check_space` to say.

    Raises:
        UsageError: The file cannot be read, is empty, or a domain is malformed or of a key that is not searched.
    """
    space = {key: _domain(key, written, path) for key, written in read_yaml(path).items()}
    if not space:
        raise UsageError(f"the space '{path}' is empty: write lines such as n_codewords: [8, 16, 32]")
    return space


def grid(space: Mapping[str, Domain]) -> Iterator[Settings]:
    """Every combination of the choices, the last key changing fastest.

    Raises:
        UsageError: A key has a range and no choices.
    """
    for key, domain in space.items():
        if domain.kind != "choice":
            raise UsageError(
                f"--search=grid needs choices, and {key} has the range {domain.kind}: {list(domain.values)}; write "
                f"{key}: [...] in the space, or --search=random"
            )
    for values in itertools.product(*(domain.values for domain in space.values())):
        yield dict(zip(space, values, strict=True))


def _domain(key: str, written: Any, path: Path) -> Domain:
    where = f"{key} in the space '{path}'"
    if key in _OF_ALL_TRIALS:
        raise UsageError(f"{where} cannot be searched: {_OF_ALL_TRIALS[key]}")
    if isinstance(written, list):
        if not written:
            raise UsageError(f"{where} has no value to choose: write {key}: [value, ...]")
        repeated = [value for index, value in enumerate(written) if value in written[:index]]
        if repeated:
            raise UsageError(f"{where} has {repeated[0]!r} twice: write each value once")
        return Domain("choice", tuple(written))
    if not isinstance(written, dict) or len(written) != 1:
        raise UsageError(f"{where} is {written!r}: write a list of values, or one of {_ways()}")
    ((kind, ends),) = written.items()
    if kind not in _RANGES:
        raise UsageError(
            f"{where} has the unknown range '{kind}': known are {_ways()}.{did_you_mean(str(kind), _RANGES)}"
        )
    return _range(where, kind, ends)


def _range(where: str, kind: str, ends: Any) -> Domain:
    whole = kind.endswith("integers")
    types = int if whole else (int, float)
    if (
        not isinstance(ends, list)
        or len(ends) != 2
        or not all(isinstance(end, types) and not isinstance(end, bool) and math.isfinite(end) for end in ends)
    ):
        raise UsageError(f"{where} is {kind}: {ends!r}, it must be [low, high], two {'whole ' if whole else ''}numbers")
    if not ends[0] < ends[1]:
        raise UsageError(f"{where} is {kind}: {ends!r}, the first number must be below the second")
    if kind.startswith("log_") and ends[0] <= 0:
        raise UsageError(f"{where} is {kind}: {ends!r}, the numbers must be above 0")
    return Domain(kind, tuple(ends))


def _ways() -> str:
    return ", ".join(f"{{{kind}: [low, high]}}" for kind in _RANGES)
