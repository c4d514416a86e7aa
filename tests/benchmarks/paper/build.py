"""Results of runs that never ran, and a reader of the pages' tables."""

from typing import Any

from benchmarks.paper.runs import METRICS


def made_up(seed: int, hit: float) -> dict[str, Any]:
    """A result with only what the pages read."""
    metrics = dict(zip(METRICS, (hit - 0.2, hit - 0.3, hit, hit - 0.25), strict=True))
    config = {
        "MAX_ITEM_LIST_LENGTH": 300,
        "loss_type": "BCE",
        "train_neg_sample_args": {"sample_num": 1, "distribution": "uniform"},
        "learning_rate": 0.001,
        "adam_betas": [0.9, 0.98],
        "train_batch_size": 128,
        "epochs": 200,
    }
    curve = [{"epoch": 10, **metrics}, {"epoch": 20, **metrics}]
    run = {"seed": seed, "test": metrics, "curve": curve, "config": config}
    return {**run, "device": "cpu", "versions": {"torch": "2.13.0"}}


def table(text: str) -> dict[str, list[str]]:
    """Row name -> its cells."""
    lines = [
        [cell.strip() for cell in line.strip("| \n").split(" | ")] for line in text.splitlines() if line[:2] == "| "
    ]
    return {cells[0]: cells[1:] for cells in lines}
