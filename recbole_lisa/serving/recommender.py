"""Top-k recommendations for any history of raw ids."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from recbole_lisa.errors import UsageError, shown
from recbole_lisa.layers.query_time import Query
from recbole_lisa.serving.export import read_export
from recbole_lisa.serving.inputs import History, Numbers, as_list, check_policy, numbers_of, read_histories
from recbole_lisa.serving.scorer import Recommendation, Scorer
from recbole_lisa.serving.sessions import Session, SessionBatch


class Recommender(Scorer):
    """A trained model that recommends, without RecBole.

    Histories hold raw ids of any users, oldest first; an id that is no text counts as its text. `recommend` reads the
    newest items of a history, as many as the model's window has, as the model's own evaluation does. A session keeps
    the whole history.
    """

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "Recommender":
        """Read the folder of `recbole-lisa export`; a UsageError where it is missing, damaged or of another version."""
        bundle, manifest = read_export(folder)
        return cls(bundle, manifest["fingerprint"])

    @torch.no_grad()
    def recommend(
        self,
        histories: Sequence[Any],
        k: int = 10,
        *,
        times: Sequence[Any] | None = None,
        at: float | Sequence[float] | None = None,
        filter_seen: bool = True,
        candidates: Sequence[Any] | None = None,
        on_unknown: str = "raise",
        exact: bool = True,
    ) -> list[Recommendation]:
        """The k best items for each history.

        Args:
            histories: One list of ids per user.
            k: At least 1.
            times: Seconds of each interaction; needed with `histogram_decay: time` and `query_time`.
            at: With `query_time`, the time of the question in seconds since 1970 (UTC), one number or one for each
                history; None is now.
            filter_seen: Leave out all items of the history itself.
            candidates: Ids to choose from, one list for all or one list per history; None takes the whole catalogue.
            on_unknown: What happens to ids that the model does not know: raise, warn (and leave them out), or skip.
            exact: Every list is the one of scoring all items, also with an index; False is refused.

        Returns:
            One recommendation per history, in their order; empty where warn or skip leave no item in a history.

        Raises:
            UsageError: An argument is wrong, an id unknown under raise, or a history empty under raise.
        """
        if exact is not True:
            raise UsageError(f"exact must be True, got {shown(exact)}: there are no approximate lists; leave it out")
        check_policy(on_unknown, filter_seen)
        read = self._histories(histories, times, on_unknown)
        self.check_times(times is not None)
        empty = [n for n, history in enumerate(read) if not len(history.items)]
        if empty and on_unknown == "raise":
            raise UsageError(f"history {empty[0]} is empty: there is nothing to recommend from; leave it out")
        filled = [n for n, history in enumerate(read) if len(history.items)]
        chosen = [read[n] for n in filled]
        groups = self._candidates(candidates, len(read), on_unknown)
        seen = [history.items for history in chosen] if filter_seen else None
        query = self.query(at, [-np.inf if one.times is None or not one.times.size else one.times[-1] for one in read])
        answers = [Recommendation([], [])] * len(read)
        if chosen:
            hidden = self.network.at(self.encode(chosen), query and Query(*(x[filled] for x in query)))
            best = self.best(hidden, k, seen, groups and [groups[n] for n in filled])
            for n, answer in zip(filled, best, strict=True):
                answers[n] = answer
        return answers

    @property
    def has_sessions(self) -> bool:
        """Whether the model can keep a history at constant size."""
        try:
            self.start()
        except UsageError:
            return False
        return True

    def start(
        self, history: Sequence[Any] = (), times: Sequence[float] | None = None, *, on_unknown: str = "raise"
    ) -> Session:
        """Begin a session after a history of any length; ids, times and policy as in `recommend`.

        Raises:
            UsageError: An id is unknown under raise, or the model has no state of constant size.
        """
        return self.start_many([history], None if times is None else [times], on_unknown=on_unknown)[0]

    def start_many(
        self, histories: Sequence[Any], times: Sequence[Any] | None = None, *, on_unknown: str = "raise"
    ) -> SessionBatch:
        """Begin one session per history, all in one batch; arguments and errors as in `start`."""
        return SessionBatch.start(self, self._histories(histories, times, on_unknown))

    def from_bytes(self, data: bytes) -> Session:
        """Continue a session from `Session.to_bytes`, to the bit; see `SessionBatch.from_bytes`."""
        return SessionBatch.from_bytes(self, [data])[0]

    def _histories(self, histories: Sequence[Any], times: Sequence[Any] | None, on_unknown: str) -> list[History]:
        read = read_histories(self.ids, histories, times, on_unknown)
        newest = [history.times[-1] for history in read if history.times is not None and history.times.size]
        self.check_unit(np.array(newest))
        return read

    def _candidates(self, candidates: Sequence[Any] | None, n: int, on_unknown: str) -> list[Numbers] | None:
        if candidates is None:
            return None
        given = as_list(candidates, "candidates")
        if not any(isinstance(one, list | tuple | set | frozenset | np.ndarray) for one in given):
            return [np.unique(numbers_of(self.ids, given, on_unknown, "candidates")[0])] * n
        if len(given) != n:
            each = f"one for each of the {n} histories"
            raise UsageError(f"candidates must be one list of ids, or {each}: got {len(given)}")
        return [np.unique(numbers_of(self.ids, one, on_unknown, f"candidates {i}")[0]) for i, one in enumerate(given)]
