"""Preparing a data set at growing MAX_ITEM_LIST_LENGTH: WindowDataset, and RecBole's row for each prefix."""

import argparse
import statistics
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import torch
from recbole.data.dataset import SequentialDataset

from benchmarks.measure import Peak, Record, free_memory_mb, in_fresh_process, limit_memory, peak_of_call, status_of
from benchmarks.options import add_list, add_machine, add_number, set_up_device
from benchmarks.report import Panel, Report, by_length, lines, megabytes
from recbole_lisa.config.config import LISAConfig
from recbole_lisa.data.dataloader import create_loaders
from recbole_lisa.data.dataset import create_dataset


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
    source = (options.dataset, options.data_path)
    windows(config_of("LISASoft", *source, min(options.lengths)))  # a wrong name stops here
    records: list[Record] = []
    for length in sorted(set(options.lengths)):
        records += measure(source, length, records, repeats=options.repeats, seconds=options.row_seconds)
    title = "Preparing: s, median [fastest, slowest]; L is MAX_ITEM_LIST_LENGTH"
    time = by_length(title, records, lambda r: f"{r['median']:.2f} [{r['low']:.2f}, {r['high']:.2f}]")
    memory = by_length("Preparing: peak MB above the libraries", records, lambda r: megabytes(r["extra_mb"]))
    panel = Panel("preparing the data set", "MAX_ITEM_LIST_LENGTH", "s", lines(records, lambda r: r["median"]))
    report.finish({"rows": records}, [time, memory], {"length": [panel]})


def config_of(model: str, dataset: str, data_path: str | None, length: int) -> LISAConfig:
    """The configuration of a run."""
    settings: dict[str, object] = {"MAX_ITEM_LIST_LENGTH": length, "show_progress": False, "use_gpu": False}
    settings |= {} if data_path is None else {"data_path": data_path}
    return LISAConfig(model, dataset, protocol="paper", config_dict=settings)


def windows(config: LISAConfig) -> object:
    """Ours: from files to the loaders of all phases."""
    return create_loaders(config, create_dataset(config))


def prefixes(config: LISAConfig) -> object:
    """RecBole's: from files to the three augmented data sets, with the filters and columns of our settings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pandas, about RecBole's code
        return SequentialDataset(config).build()


SIDES: dict[str, tuple[str, Callable[[LISAConfig], object]]] = {
    "WindowDataset": ("LISASoft", windows),
    "RecBole's SequentialDataset": ("Transformer", prefixes),
}


def prepare_once(side: str, dataset: str, data_path: str | None, length: int) -> Peak:
    """Time and memory of preparing, in a fresh process."""
    torch.set_num_threads(1)
    limit_memory(free_memory_mb())
    model, prepare = SIDES[side]
    return peak_of_call(partial(prepare, config_of(model, dataset, data_path, length)))


def measure(
    source: tuple[str, str | None], length: int, earlier: Sequence[Record], *, repeats: int, seconds: float
) -> list[Record]:
    """Prepare with each side in turns, every time in a fresh process; a record for each side.

    A side that failed in a record of a shorter length (`earlier`) is not tried again.
    """
    failed = {record["row"]: record["status"] for record in earlier if record["status"] != "ok"}
    records = {side: {"row": side, "length": length, "status": failed.get(side, "ok")} for side in SIDES}
    peaks: dict[str, list[Peak]] = {side: [] for side in SIDES}
    for _ in range(repeats):
        for side, record in records.items():
            if record["status"] == "ok":
                try:
                    peaks[side].append(in_fresh_process(prepare_once, side, *source, length, seconds=seconds))
                except Exception as error:
                    record["status"] = status_of(error, seconds)
    for side, record in records.items():
        if record["status"] == "ok":
            times = [peak.seconds for peak in peaks[side]]
            record |= {"median": statistics.median(times), "low": min(times), "high": max(times)}
            record["extra_mb"] = statistics.median(peak.extra_mb for peak in peaks[side])
    return list(records.values())
