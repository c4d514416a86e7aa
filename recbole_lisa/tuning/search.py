"""One search while it runs: which trial comes next, and what is learnt from those that have ended."""

from recbole_lisa.tuning.live import LiveTable
from recbole_lisa.tuning.optuna_search import OptunaSearch
from recbole_lisa.tuning.record import ENDED, Record, Trial


class Search:
    """Hands out the trials of a record that have not ended, then those that are suggested.

    Args:
        record: Of the search; planned trials are in it.
        n_trials: How many trials it shall have.
        suggestions: Where further trials come from; None when all are planned.
        table: Shows the record.
    """

    def __init__(
        self, record: Record, n_trials: int, *, suggestions: OptunaSearch | None = None, table: LiveTable | None = None
    ) -> None:
        self.record = record
        self._n_trials, self._suggestions, self._table = n_trials, suggestions, table
        self._queue = [trial.number for trial in record.unfinished()]
        if suggestions is not None:
            suggestions.learn_all(trial for trial in record.trials.values() if trial.status in ENDED)

    def remaining(self) -> int:
        """How many trials `next_trial` will still give."""
        return len(self._queue) + max(0, self._n_trials - len(self.record.trials))

    def next_trial(self) -> Trial | None:
        """The next trial to run, or None when all are handed out."""
        if self._queue:
            return self.record.trials[self._queue.pop(0)]
        if self._suggestions is None or len(self.record.trials) >= self._n_trials:
            return None
        number = len(self.record.trials)
        self.record.add_trials([self._suggestions.suggest(number)])
        return self.record.trials[number]

    def ended(self, number: int) -> None:
        """Learn from a trial that has ended, unless it was interrupted."""
        trial = self.record.trials[number]
        if self._suggestions is not None and trial.status in ENDED:
            self._suggestions.learn(trial)

    def show(self) -> None:
        """Show the record, when it is time to."""
        if self._table is not None:
            self._table.show(self.record)
