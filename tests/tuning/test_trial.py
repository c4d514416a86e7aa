"""One trial, without Ray: what it reports, and that it goes on where it was interrupted."""

from pathlib import Path
from typing import Any

import pytest

from recbole_lisa.tuning.plan import Request
from recbole_lisa.tuning.record import FINISHED, Trial
from recbole_lisa.tuning.results import check_best
from recbole_lisa.tuning.run import Plan, keep_data
from recbole_lisa.tuning.space import Domain
from recbole_lisa.tuning.trial import run_trial, surroundings, trial_folder
from tests.tiny import write_tiny_dataset

SMALL = {
    "epochs": 4, "hidden_size": 8, "inner_size": 8, "n_codebooks": 2, "train_batch_size": 8, "topk": [5, 10],
    "MAX_ITEM_LIST_LENGTH": 8, "learning_rate": 0.05,
}  # fmt: skip


class Interrupted(BaseException):
    """What a trial that Ray stops sees."""


@pytest.fixture
def common(isolated_run_dir: Path) -> dict[str, Any]:
    write_tiny_dataset(isolated_run_dir / "data")
    request = Request("LISASoft", "tiny", None, [], {**SMALL, "data_path": str(isolated_run_dir / "data")})
    folder = isolated_run_dir / "search"
    return {
        "request": request.plain(), "folder": str(folder), "threads": 1,
        "surroundings": surroundings(folder, "tiny", use_gpu=False),
    }  # fmt: skip


def reports(common: dict[str, Any], number: int, stop_after: int | None = None) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []

    def report(entry: dict[str, Any]) -> None:
        told.append(entry)
        if entry["epoch"] == stop_after:
            raise Interrupted

    if stop_after is None:
        run_trial(common, number, {"n_codewords": 4}, report)
        return told
    with pytest.raises(Interrupted):
        run_trial(common, number, {"n_codewords": 4}, report)
    return told


def figures(told: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(entry.get(key) for key in ("epoch", "current", "score", "best_epoch", "end")) for entry in told]


def test_a_trial_reports_every_validation_and_its_end(common: dict[str, Any]) -> None:
    before = Path.cwd()
    told = reports(common, 3)
    assert [entry["epoch"] for entry in told] == [1, 2, 3, 4, 4]
    assert [entry["score"] for entry in told[:4]] == [max(e["current"] for e in told[: n + 1]) for n in range(4)]
    assert all(entry["valid"]["ndcg@10"] == entry["score"] for entry in told)
    assert told[-1]["end"] == FINISHED and not any("end" in entry for entry in told[:-1])
    assert all(entry["seconds"] > 0 for entry in told)
    assert Path.cwd() == before
    folder = trial_folder(Path(common["folder"]), 3)
    assert Path(told[-1]["best_file"]).parent == folder / "saved"
    assert {path.name for path in folder.iterdir()} == {"saved", "log", "log_tensorboard"}


def test_an_interrupted_trial_goes_on_from_its_checkpoint(common: dict[str, Any]) -> None:
    whole = reports(common, 0)
    first = reports(common, 1, stop_after=2)
    rest = reports(common, 1)
    assert [entry["epoch"] for entry in first] == [1, 2]
    assert [entry["epoch"] for entry in rest] == [3, 4, 4]
    assert figures(first + rest) == figures(whole)


def test_a_trial_that_was_done_only_tells_its_end(common: dict[str, Any]) -> None:
    whole = reports(common, 0)
    (again,) = reports(common, 0)
    # Nothing was validated again: the best score stands for the current one too.
    assert figures([again]) == figures([{**whole[-1], "current": whole[-1]["score"]}])


def test_a_mistake_ends_the_trial_with_its_reason(common: dict[str, Any]) -> None:
    common["request"]["settings"]["topk"] = [5, 10, 100]  # of 30 items
    (entry,) = reports(common, 0)
    assert entry["end"] == "failed"
    assert entry["problem"].startswith("topk asks for the 100 best of only 30 items")


def test_the_data_is_read_once_and_the_best_is_tested_from_its_checkpoint(
    common: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    request, around = Request(**common["request"]), common["surroundings"]
    space = {"n_codewords": Domain("choice", (4, 8))}
    plan = Plan(request, space, {"n_codewords": 16}, "random", 2, None, 4, 2020, "NDCG@10")
    keep_data(plan, around)

    def fail(*_: Any) -> None:
        raise AssertionError("the text is read again")

    monkeypatch.setattr("recbole_lisa.data.loading.atomic.read_columns", fail)
    told = reports(common, 0)
    trial = Trial(0, {"n_codewords": 4}, FINISHED, told)
    metrics, note = check_best(trial, {"dataset_save_path": around["dataset_save_path"]})
    assert note is None
    assert metrics is not None and 0 < metrics["ndcg@10"] < 1


def test_the_surroundings_leave_the_choice_of_the_gpu_to_ray(tmp_path: Path) -> None:
    assert "use_gpu" not in surroundings(tmp_path, "tiny", use_gpu=True)
    assert surroundings(tmp_path, "tiny", use_gpu=False)["use_gpu"] is False
