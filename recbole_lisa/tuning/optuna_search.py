"""`--search=optuna`: each new trial is suggested by what the earlier ones reached (Optuna's TPE)."""

from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import Any

from recbole_lisa.errors import UsageError
from recbole_lisa.tuning.record import FINISHED, Trial
from recbole_lisa.tuning.space import Domain, Settings

_SUGGESTIONS = 200


class OptunaSearch:
    """Suggests settings, and learns from every trial that ends.

    Args:
        space: The checked space.
        seed: Of the sampler. With trials side by side the suggestions also depend on which ends first.
        problem: What is wrong with a combination, or None; refused ones are not handed out.

    Raises:
        UsageError: Optuna is not installed.
    """

    def __init__(self, space: Mapping[str, Domain], *, seed: int, problem: Callable[[Settings], str | None]) -> None:
        if find_spec("optuna") is None:
            raise UsageError("--search=optuna needs optuna: pip install 'recbole-lisa[tune]', or --search=random")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space, self._problem = space, problem
        self._distributions = {key: _distribution(domain) for key, domain in space.items()}
        self._study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
        self._asked: dict[int, Any] = {}

    def suggest(self, number: int) -> Settings:
        """Settings for a new trial.

        Args:
            number: Of the trial, to be named again by `learn`.

        Raises:
            UsageError: Nothing but combinations that the model refuses is suggested.
        """
        import optuna

        wrong: str | None = None
        for _ in range(_SUGGESTIONS):
            asked = self._study.ask(self._distributions)
            chosen = {key: self._value(key, asked.params[key]) for key in self._space}
            wrong = self._problem(chosen)
            if wrong is None:
                self._asked[number] = asked
                return chosen
            self._study.tell(asked, state=optuna.trial.TrialState.FAIL)
        raise UsageError(f"the model refuses what optuna suggests from the space, the last time since {wrong}")

    def learn(self, trial: Trial) -> None:
        """Take in a trial that has ended, one of an interrupted search too; without a report it failed.

        A default configuration outside the space teaches nothing about the space.
        """
        import optuna

        asked = self._asked.pop(trial.number, None)
        if asked is None:
            if not all(self._space[key].holds(trial.settings[key]) for key in self._space):
                return
            self._study.enqueue_trial({key: self._position(key, trial.settings[key]) for key in self._space})
            asked = self._study.ask(self._distributions)
        if trial.score is None:
            self._study.tell(asked, state=optuna.trial.TrialState.FAIL)
            return
        for report in trial.reports:
            asked.report(report["score"], report["epoch"])
        if trial.status == FINISHED:
            self._study.tell(asked, trial.score)
        else:
            self._study.tell(asked, state=optuna.trial.TrialState.PRUNED)

    def learn_all(self, trials: Iterable[Trial]) -> None:
        """Take in the ended trials of an interrupted search."""
        for trial in trials:
            self.learn(trial)

    def _value(self, key: str, drawn: Any) -> Any:
        domain = self._space[key]
        if domain.kind == "choice":
            return domain.values[drawn]
        return int(drawn) if domain.is_integer else domain.rounded(drawn)

    def _position(self, key: str, value: Any) -> Any:
        """What Optuna would have drawn for `value`."""
        domain = self._space[key]
        return domain.values.index(value) if domain.kind == "choice" else value


def _distribution(domain: Domain) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if domain.kind == "choice":  # by position: Optuna takes no lists or dicts
        return CategoricalDistribution(range(len(domain.values)))
    low, high = domain.values
    if domain.is_integer:
        return IntDistribution(low, high, log=domain.is_log)
    return FloatDistribution(float(low), float(high), log=domain.is_log)
