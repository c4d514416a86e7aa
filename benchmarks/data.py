"""Preparing a data set at growing MAX_ITEM_LIST_LENGTH: WindowDataset, and RecBole's row for each prefix."""

import argparse
import statistics
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.measure import Peak, Record, free_memory_mb, in_fresh_process, limit_memory, peak_of_call, status_of
from benchmarks.options import add_list, add_machine, add_number, set_up_device
from benchmarks.report import Panel, Report, by_length, lines, megabytes
from recbole_lisa.config.config import LISAConfig
from recbole_lisa.data.dataloader import create_loaders
from recbole_lisa.data.dataset import create_dataset

Prepare = Callable[[], object]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `data`."""
    add_list(parser, "lengths", [50, 200, 1000], "MAX_ITEM_LIST_LENGTH")
    parser.add_argument("--dataset", default="ml-100k", help="default ml-100k, which comes with RecBole")
    parser.add_argument("--data_path", help="folder that holds <dataset>/<dataset>.inter")
    add_number(parser, "row_seconds", 120.0, "skip a side at a length where it takes longer")
    add_machine(parser, repeats=3, cuda=False)


def run(options: argparse.Namespace) -> None:
    """Run `python -m benchmarks data`."""
    report = Report(options, set_up_device(options))
    settings = {} if options.data_path is None else {"data_path": options.data_path}
    windows_of(options.dataset, settings, min(options.lengths))()  # a wrong name stops here
    records: list[Record] = []
    for length in sorted(set(options.lengths)):
        arguments = (options.dataset, settings, length)
        records += measure(arguments, records, repeats=options.repeats, seconds=options.row_seconds)
    time = by_length(
        "Preparing: s, median [fastest, slowest]; L is MAX_ITEM_LIST_LENGTH",
        records,
        lambda r: f"{r['median']:.2f} [{r['low']:.2f}, {r['high']:.2f}]",
    )
    memory = by_length("Preparing: peak MB above the libraries", records, lambda r: megabytes(r["extra_mb"]))
    title, label = "preparing the data set", "MAX_ITEM_LIST_LENGTH"
    panels = [
        Panel(title, label, "s", lines(records, lambda r: r["median"])),
        Panel(title, label, "MB", lines(records, lambda r: r["extra_mb"] + 1e-3)),
    ]
    report.finish({"rows": records}, [time, memory], {"length": panels})


def _config(model: str, dataset: str, settings: dict[str, Any], length: int) -> LISAConfig:
    settings = {"MAX_ITEM_LIST_LENGTH": length, "show_progress": False, "use_gpu": False, **settings}
    return LISAConfig(model, dataset, protocol="paper", config_dict=settings)


def windows_of(dataset: str, settings: dict[str, Any], length: int) -> Prepare:
    """Ours: from files to the loaders of all phases."""
    config = _config("LISASoft", dataset, settings, length)
    return lambda: create_loaders(config, create_dataset(config))


def recbole_of(dataset: str, settings: dict[str, Any], length: int) -> Prepare:
    """RecBole's: from files to the three augmented data sets, with the filters and columns of our settings."""
    from recbole.data.dataset import SequentialDataset

    config = _config("Transformer", dataset, settings, length)

    def prepare() -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pandas, about RecBole's code
            return SequentialDataset(config).build()

    return prepare


SIDES: dict[str, Callable[..., Prepare]] = {"WindowDataset": windows_of, "RecBole's SequentialDataset": recbole_of}


def prepare_once(side: str, *arguments: Any) -> Peak:
    """Time and memory of preparing, in a fresh process."""
    torch.set_num_threads(1)
    limit_memory(free_memory_mb())
    return peak_of_call(SIDES[side](*arguments))


def measure(
    arguments: tuple[str, dict[str, Any], int], earlier: Sequence[Record], *, repeats: int, seconds: float
) -> list[Record]:
    """Prepare with each side in turns, every time in a fresh process.

    Args:
        arguments: Data set, settings and MAX_ITEM_LIST_LENGTH.
        earlier: Records at shorter lengths. A side that failed there is not tried again.
        repeats: Samples of each side.
        seconds: Limit of one preparation.

    Returns:
        A record for each side.
    """
    failed = {record["row"]: record["status"] for record in earlier if record["status"] != "ok"}
    records = {side: {"row": side, "length": arguments[2], "status": failed.get(side, "ok")} for side in SIDES}
    peaks: dict[str, list[Peak]] = {side: [] for side in SIDES}
    for _ in range(repeats):
        for side, record in records.items():
            if record["status"] == "ok":
                try:
                    peaks[side].append(in_fresh_process(prepare_once, side, *arguments, seconds=seconds))
                except Exception as error:
                    record["status"] = status_of(error, seconds)
    for side, record in records.items():
        if record["status"] == "ok":
            times = [peak.seconds for peak in peaks[side]]
            record |= {"median": statistics.median(times), "low": min(times), "high": max(times)}
            record["extra_mb"] = statistics.median(peak.extra_mb for peak in peaks[side])
    return list(records.values())
