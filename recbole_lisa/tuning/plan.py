"""Which trials a search runs: the request, the checks of the space, and the settings that are drawn from it.

Trial 0 is the default configuration, so that a search never ends below it without saying so.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from recbole_lisa.config.config import LISAConfig
from recbole_lisa.data.split import wanted_parts
from recbole_lisa.errors import UsageError
from recbole_lisa.tuning.space import Domain, Settings, grid

_DRAW_STREAM = 3
_DRAWS_PER_TRIAL = 200


@dataclass(frozen=True)
class Request:
    """What all trials have in common; plain values, as it is stored and sent to other machines.

    Attributes:
        model: Name of the registry.
        dataset: Name of the data set.
        protocol: Name of the protocol.
        config_files: Absolute paths of the user's yaml files.
        settings: The user's settings for all trials, stronger than the files.
    """

    model: str
    dataset: str
    protocol: str | None = None
    config_files: list[str] = field(default_factory=list)
    settings: Settings = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)

    def config(self, chosen: Mapping[str, Any], surroundings: Mapping[str, Any] | None = None) -> LISAConfig:
        """The configuration of one trial.

        Args:
            chosen: What the search chose; stronger than the user's files.
            surroundings: Settings that change nothing that is learnt.

        Raises:
            UsageError: See `LISAConfig`.
        """
        return LISAConfig(
            self.model,
            self.dataset,
            protocol=self.protocol,
            config_files=self.config_files,
            config_dict={**chosen, **(surroundings or {})},
            command_line=self.settings,
        )


def check_validation(config: LISAConfig) -> None:
    """Refuse to search without validation items: choosing by the test items would spoil them.

    Raises:
        UsageError: The split holds none out.
    """
    split = config["eval_args"]["split"]
    if not wanted_parts(split)["validation"]:
        raise UsageError(
            f"protocol '{config['protocol']}' has no validation items (split {split}), and a search must not choose by "
            "the test items: write --protocol=full_ranking, or keep the protocol with a validation item by "
            "--eval_args='{split: {LS: valid_and_test}}'"
        )


def check_space(config: LISAConfig, space: Mapping[str, Domain], origin: str) -> dict[str, Domain]:
    """Check every key and value of a space against the settings of the model.

    Args:
        config: The default configuration.
        space: As it is in the file.
        origin: The file, for messages.

    Returns:
        The space, its values of the types that the keys take.

    Raises:
        UsageError: A key is unknown, a value is wrong, or a key of whole numbers has a range of real ones.
    """
    checked = {}
    for key, domain in space.items():
        values = tuple(config.checked({key: value}, origin)[key] for value in domain.values)
        checked[key] = Domain(domain.kind, values)
        if domain.kind != "choice" and not domain.is_integer:
            try:
                config.checked({key: sum(values) / 2}, origin)
            except UsageError as error:
                whole = "log_integers" if domain.is_log else "integers"
                raise UsageError(f"{error}: write {key}: {{{whole}: {list(domain.values)}}}") from error
    return checked


def defaults(config: LISAConfig, space: Mapping[str, Domain]) -> Settings:
    """The default configuration, in the keys that are searched."""
    plain = config.plain()
    return {key: plain[key] for key in space}


def planned(
    search: str,
    space: Mapping[str, Domain],
    default: Settings,
    *,
    num_samples: int | None,
    seed: int,
    problem: Callable[[Settings], str | None],
) -> list[Settings]:
    """The settings of all trials, for the searches that know them beforehand.

    Args:
        search: random | grid.
        space: The checked space.
        default: Trial 0; it counts.
        num_samples: Number of trials; None for a grid.
        seed: Of the draws. More trials with the same seed begin with the same ones.
        problem: What is wrong with a combination, or None; combinations that the model refuses are left out.

    Returns:
        Different settings; fewer than asked for where the space has no more.

    Raises:
        UsageError: A grid over a range, or no combination is accepted.
    """
    candidates = grid(space) if search == "grid" else _draws(space, seed)
    tries = None if num_samples is None else num_samples * _DRAWS_PER_TRIAL
    chosen, told = [default], ""
    refused: list[Settings] = []
    for count, candidate in enumerate(candidates):
        if count == tries or len(chosen) == num_samples:
            break
        if candidate in chosen or candidate in refused:
            continue
        wrong = problem(candidate)
        if wrong is None:
            chosen.append(candidate)
        else:
            refused.append(candidate)
            told = wrong
    if len(chosen) == 1 and refused and num_samples != 1:
        raise UsageError(f"the model refuses every combination of the space, the last one since {told}")
    return chosen


def _draws(space: Mapping[str, Domain], seed: int) -> Iterator[Settings]:
    rng = np.random.default_rng([_DRAW_STREAM, seed])
    while True:
        yield {key: domain.draw(rng) for key, domain in space.items()}
