"""The record of a search: what is written can be read again, whatever interrupted the writing."""

from pathlib import Path
from typing import Any

import pytest

from recbole_lisa.errors import UsageError
from recbole_lisa.tuning.record import FAILED, FINISHED, RUNNING, STOPPED, Record
from recbole_lisa.tuning.search import Search

REQUEST = {"model": "LISASoft", "space": {"n_codewords": [8, 16]}, "seed": 1}


def told(score: float, epoch: int = 1, **more: Any) -> dict[str, Any]:
    """A report with what all readers need."""
    valid = {"hit@10": score + 0.1, "ndcg@10": score}
    known = {"epoch": epoch, "current": score, "score": score, "best_epoch": epoch, "valid": valid}
    return {**known, "best_file": "none.pth", "seconds": 2.0, "node": "here", **more}


def filled(folder: Path) -> Record:
    """Four trials: finished, stopped, running, waiting."""
    record = Record.create(folder, REQUEST)
    record.add_trials([{"n_codewords": words} for words in (16, 8, 32, 64)])
    for number, score in enumerate((0.2, 0.3, 0.4)):
        record.set_status(number, RUNNING)
        record.take(number, told(score))
    record.take(0, told(0.3, epoch=2, end=FINISHED))
    record.set_status(1, STOPPED)
    return record


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = filled(tmp_path)
    again = Record.read(tmp_path, REQUEST)
    assert again.trials == record.trials
    assert [trial.status for trial in again.trials.values()] == ["finished", "stopped", "running", "waiting"]
    assert [trial.number for trial in again.unfinished()] == [2, 3]
    assert (again.trials[0].score, again.trials[0].seconds) == (0.3, 4.0)


def test_a_cut_off_line_is_dropped_and_the_file_goes_on(tmp_path: Path) -> None:
    record = filled(tmp_path)
    events = tmp_path / "events.jsonl"
    whole = events.read_bytes()
    events.write_bytes(whole + b'{"trial": 3, "sta')
    again = Record.read(tmp_path, REQUEST)
    assert again.trials == record.trials
    again.set_status(3, RUNNING)
    assert Record.read(tmp_path).trials[3].status == RUNNING


@pytest.mark.parametrize("text", ["{", "[1]", "1", "\x00"])
def test_a_damaged_request_is_told(tmp_path: Path, text: str) -> None:
    filled(tmp_path)
    (tmp_path / "search.json").write_text(text)
    with pytest.raises(UsageError, match=r"search\.json' is damaged .* begin a new search by another --name"):
        Record.read(tmp_path, REQUEST)


@pytest.mark.parametrize("line", ["{", "[1]", "{}", '{"trial": 7, "status": "running"}'])
def test_a_damaged_event_is_told_and_nothing_is_lost(tmp_path: Path, line: str) -> None:
    filled(tmp_path)
    events = tmp_path / "events.jsonl"
    first, *rest = events.read_text().splitlines()
    text = "\n".join([first, line, *rest]) + "\n"
    events.write_text(text)
    with pytest.raises(UsageError, match=r"line 2 of .*events\.jsonl' is damaged .* remove it"):
        Record.read(tmp_path, REQUEST)
    assert events.read_text() == text


def test_the_best_is_the_first_of_equals(tmp_path: Path) -> None:
    record = filled(tmp_path)
    best = record.best()
    assert best is not None and best.number == 2
    record.take(0, told(0.4, epoch=3))
    best = record.best()
    assert best is not None and best.number == 0


def test_a_trial_that_ends_without_a_score_has_a_problem_and_no_report(tmp_path: Path) -> None:
    record = filled(tmp_path)
    record.take(3, {"epoch": 0, "seconds": 1.0, "node": "here", "end": FAILED, "problem": "too few items"})
    trial = Record.read(tmp_path).trials[3]
    assert (trial.status, trial.problem, trial.score) == (FAILED, "too few items", None)


def test_a_search_is_neither_begun_twice_nor_resumed_with_other_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no search in"):
        Record.read(tmp_path, REQUEST)
    filled(tmp_path)
    with pytest.raises(UsageError, match="holds a search already: go on with it by --resume"):
        Record.create(tmp_path, REQUEST)
    with pytest.raises(UsageError, match="seed is 1 there and 2 here"):
        Record.read(tmp_path, {**REQUEST, "seed": 2})


@pytest.mark.parametrize("name", ["results.csv", "best.yaml", "events.jsonl"])
def test_a_search_is_not_begun_over_other_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match=f"holds {name}, which no search has written: choose another --name"):
        Record.create(tmp_path, REQUEST)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(name, "mine")]


def test_only_trials_that_have_not_ended_are_handed_out(tmp_path: Path) -> None:
    search = Search(filled(tmp_path), 4)
    assert search.remaining() == 2
    handed = [search.next_trial(), search.next_trial()]
    assert [trial and trial.number for trial in handed] == [2, 3]
    assert search.next_trial() is None
