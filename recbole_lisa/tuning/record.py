"""What a search knows of its trials: a file that only grows, so that a killed search loses nothing it has told.

Every line is one event: the settings of a trial, a change of its status, or a report after a validation. Reading
them again gives the state; a last line that was cut off is dropped.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recbole_lisa.errors import UsageError
from recbole_lisa.files import atomic_writer
from recbole_lisa.tuning.space import Settings

WAITING, RUNNING, FINISHED, STOPPED, FAILED = "waiting", "running", "finished", "stopped", "failed"
_FILES = ("events.jsonl", "trials", "results.csv", "results.json", "results.png", "best.yaml")
ENDED = (FINISHED, STOPPED, FAILED)


@dataclass
class Trial:
    """One trial.

    Attributes:
        number: From 0, the default configuration.
        settings: What the search chose.
        status: waiting | running | finished | stopped (early, by the scheduler) | failed.
        reports: One a validation: `epoch` (from 1), `current` (the validation metric of this epoch), `score` (the
            best so far), `best_epoch`, `valid` (all metrics of the best epoch), `best_file` (its checkpoint), `seconds`
            (wall time since the report before), `node` (of Ray).
        problem: Why it failed.
    """

    number: int
    settings: Settings
    status: str = WAITING
    reports: list[dict[str, Any]] = field(default_factory=list)
    problem: str | None = None

    @property
    def score(self) -> float | None:
        """Best validation metric so far."""
        return self.reports[-1]["score"] if self.reports else None

    @property
    def seconds(self) -> float:
        """Wall time that led to reports, data and start of the process included."""
        return sum(report["seconds"] for report in self.reports)


class Record:
    """The trials of one search, and the file of its events.

    Args:
        folder: Of the search.
        request: Whatever decides the search; plain values.
    """

    def __init__(self, folder: Path, request: dict[str, Any]) -> None:
        self.folder, self.request = folder, request
        self.trials: dict[int, Trial] = {}

    @property
    def _events(self) -> Path:
        return self.folder / "events.jsonl"

    @staticmethod
    def check_new(folder: Path) -> None:
        """Refuse to begin a search where its files would meet others.

        Raises:
            UsageError: The folder holds a search already, or files of the names that a search writes.
        """
        if (folder / "search.json").exists():
            raise UsageError(
                f"'{folder}' holds a search already: go on with it by --resume, or choose another --name or --storage"
            )
        taken = [name for name in _FILES if (folder / name).exists()]
        if taken:
            raise UsageError(
                f"'{folder}' holds {', '.join(taken)}, which no search has written: choose another --name or --storage"
            )

    @classmethod
    def create(cls, folder: Path, request: dict[str, Any]) -> "Record":
        """Begin a search.

        Raises:
            UsageError: See `check_new`.
        """
        cls.check_new(folder)
        with atomic_writer(folder / "search.json") as stream:
            stream.write((json.dumps(request, indent=2) + "\n").encode())
        return cls(folder, request)

    @classmethod
    def read(cls, folder: Path, request: dict[str, Any] | None = None) -> "Record":
        """Read a search again.

        Args:
            folder: Of the search.
            request: What is asked for now; None takes what is there.

        Raises:
            UsageError: There is none, its files are damaged, or it was asked for with other words.
        """
        if not (folder / "search.json").is_file():
            raise UsageError(f"there is no search in '{folder}' to resume: leave --resume out, or give its --storage")
        try:
            found = dict(json.loads((folder / "search.json").read_bytes()))
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"'{folder / 'search.json'}' is damaged ({error}): begin a new search by another --name or --storage"
            ) from error
        wanted = found if request is None else json.loads(json.dumps(request))
        changed = sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))
        if changed:
            told = "; ".join(f"{key} is {found.get(key)!r} there and {wanted.get(key)!r} here" for key in changed)
            raise UsageError(f"cannot resume the search in '{folder}': {told}")
        record = cls(folder, found)
        record._replay()
        return record

    def _replay(self) -> None:
        if not self._events.exists():
            return
        text = self._events.read_bytes()
        complete = text.rfind(b"\n") + 1
        if complete < len(text):
            with self._events.open("rb+") as stream:
                stream.truncate(complete)
        for number, line in enumerate(text[:complete].splitlines(), 1):
            try:
                self._apply(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise UsageError(
                    f"line {number} of '{self._events}' is damaged ({error}): remove it, or begin a new search by "
                    "another --name or --storage"
                ) from error

    def _apply(self, event: dict[str, Any]) -> None:
        if "settings" in event:
            self.trials[event["trial"]] = Trial(event["trial"], event["settings"])
        trial = self.trials[event["trial"]]
        if "report" in event:
            trial.reports.append(event["report"])
        if "status" in event:
            trial.status, trial.problem = event["status"], event.get("problem")

    def _add(self, event: dict[str, Any]) -> None:
        with self._events.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(event) + "\n")
        self._apply(event)

    def add_trials(self, settings: Iterable[Settings]) -> None:
        """Number new trials."""
        for chosen in settings:
            self._add({"trial": len(self.trials), "settings": chosen})

    def take(self, number: int, told: dict[str, Any]) -> None:
        """Keep what a trial reported: a validation, and with `end` how it ended."""
        end, problem = told.pop("end", None), told.pop("problem", None)
        if "score" in told:
            self._add({"trial": number, "report": told})
        if end is not None:
            self.set_status(number, end, problem)

    def set_status(self, number: int, status: str, problem: str | None = None) -> None:
        """Keep a change of status."""
        self._add({"trial": number, "status": status, **({} if problem is None else {"problem": problem})})

    def unfinished(self) -> list[Trial]:
        """The trials that have not come to an end, in order."""
        return [trial for trial in self.trials.values() if trial.status not in ENDED]

    def best(self) -> Trial | None:
        """The trial with the best validation metric; the first of equals, so that a default is not left for nothing."""
        scored = [trial for trial in self.trials.values() if trial.score is not None]
        return max(scored, key=lambda trial: (trial.score, -trial.number), default=None)
