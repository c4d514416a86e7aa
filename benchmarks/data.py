"""Preparing a data set at growing MAX_ITEM_LIST_LENGTH: windows over one store, and RecBole's row for each prefix."""

import argparse
import statistics
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.machine import Limits, memory_budget, set_up_device
from benchmarks.measure import Peak, in_fresh_process, peak_of_call
from benchmarks.plots import Figure, Panel
from benchmarks.probe import status_of
from benchmarks.report import Output, Table, heading, megabytes
from recbole_lisa.errors import UsageError

SIDES = {"windows": "WindowDataset", "recbole": "RecBole's SequentialDataset"}
ML_1M_MEAN, ML_1M_ITEMS = 165, 3416
GENERATED = "generated"
Record = dict[str, Any]


@dataclass(frozen=True)
class Source:
    """Which data set, and the folder above it (None: where the settings say)."""

    dataset: str
    data_path: str | None

    def settings(self, length: int) -> dict[str, Any]:
        """Settings of a run over it."""
        settings: dict[str, Any] = {"MAX_ITEM_LIST_LENGTH": length, "show_progress": False, "use_gpu": False}
        return settings if self.data_path is None else settings | {"data_path": self.data_path}


def generate(folder: Path, n_interactions: int) -> Source:
    """Write a set with ML-1M's mean length and number of items; how often items are met falls as 1 / rank."""
    rng = np.random.default_rng(0)
    n_users = max(1, n_interactions // ML_1M_MEAN)
    lengths = 5 + rng.geometric(1 / max(1, ML_1M_MEAN - 5), n_users)
    users = np.repeat(np.arange(n_users), lengths)
    shares = 1 / np.arange(1, ML_1M_ITEMS + 1)
    items = rng.choice(ML_1M_ITEMS, size=len(users), p=shares / shares.sum())
    file = folder / GENERATED / f"{GENERATED}.inter"
    file.parent.mkdir(parents=True)
    with file.open("w", encoding="utf-8") as stream:
        stream.write("user_id:token\titem_id:token\ttimestamp:float\n")
        stream.writelines(
            f"{user}\t{item}\t{time}\n" for time, (user, item) in enumerate(zip(users, items, strict=True))
        )
    return Source(GENERATED, str(folder))


def prepare_windows(source: Source, length: int) -> Callable[[], object]:
    """Ours: files to loaders of all phases; the configuration is made beforehand."""
    from recbole_lisa.config.config import LISAConfig
    from recbole_lisa.data.dataloader import create_loaders
    from recbole_lisa.data.dataset import create_dataset

    config = LISAConfig("LISASoft", source.dataset, protocol="paper", config_dict=source.settings(length))
    return lambda: create_loaders(config, create_dataset(config))


def prepare_recbole(source: Source, length: int) -> Callable[[], object]:
    """RecBole's: files to the three augmented data sets, with the filters and columns of our settings."""
    from recbole.data.dataset import SequentialDataset

    from recbole_lisa.config.config import LISAConfig

    config = LISAConfig("Transformer", source.dataset, protocol="paper", config_dict=source.settings(length))

    def prepare() -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pandas, about RecBole's code
            return SequentialDataset(config).build()

    return prepare


PREPARE = {"windows": prepare_windows, "recbole": prepare_recbole}


def prepare_once(side: str, source: Source, length: int, memory_mb: float | None) -> Peak:
    """Time and memory of preparing, in this process."""
    torch.set_num_threads(1)
    return peak_of_call(PREPARE[side](source, length), torch.device("cpu"), memory_mb)


def run(options: argparse.Namespace) -> None:
    """`python -m benchmarks data`: see its --help."""
    device = set_up_device(options.device, options.threads)
    if device.type != "cpu":
        raise UsageError("--device=cuda: data is prepared on the CPU, leave --device out")
    output = Output(options.output, "data", overwrite=options.overwrite)
    memory_mb = memory_budget(options.memory_mb, device)
    limits = Limits(options.row_seconds, memory_mb, options.repeats, 1)
    title = heading(options.command, device)
    print(title)
    with tempfile.TemporaryDirectory() as folder:
        source = Source(options.dataset, options.data_path)
        if options.generated:
            source = generate(Path(folder), options.generated)
        # A mistake in the name of the data set ends here, in one line.
        prepare_windows(source, min(options.lengths))()
        records: list[Record] = []
        for length in sorted(set(options.lengths)):
            records += measure(options.sides, source, length, limits, records)
    found = tables(records)
    for table in found:
        print("\n" + table.markdown(), end="")
    document = {"source": asdict(source), "limits": asdict(limits), "rows": records}
    output.tell(output.write(title, document, found, figures(records)))


def measure(
    sides: Sequence[str], source: Source, length: int, limits: Limits, earlier: Sequence[Record]
) -> list[Record]:
    """Prepare with each side, every time in a fresh process, the sides in turns.

    Args:
        sides: Keys of SIDES.
        source: The data set.
        length: MAX_ITEM_LIST_LENGTH.
        limits: Of one preparation.
        earlier: Records at shorter lengths; a side that did not fit there is not tried again.

    Returns:
        A record a side.
    """
    records: dict[str, Record] = {}
    for side in sides:
        before = [r["status"] for r in earlier if r["side"] == side and r["status"] != "ok"]
        records[side] = {"side": side, "length": length, "status": before[0] if before else "ok"}
    peaks: dict[str, list[Peak]] = {side: [] for side in sides}
    for _ in tqdm(range(limits.repeats), desc=f"length {length}", ncols=100, disable=None):
        for side, record in records.items():
            if record["status"] != "ok":
                continue
            try:
                words = (side, source, length, limits.memory_mb)
                peaks[side].append(in_fresh_process(prepare_once, *words, seconds=limits.seconds))
            except Exception as error:
                record["status"] = status_of(error, limits)
    for side, record in records.items():
        if record["status"] == "ok":
            seconds = [peak.seconds for peak in peaks[side]]
            record |= {"median": statistics.median(seconds), "low": min(seconds), "high": max(seconds)}
            record["extra_mb"] = statistics.median(peak.extra_mb for peak in peaks[side])
    return list(records.values())


def tables(records: Sequence[Record]) -> list[Table]:
    """Seconds and MB of each side."""
    lengths = list(dict.fromkeys(record["length"] for record in records))
    columns = ["", *(f"length {length:,}" for length in lengths)]

    def seconds(record: Record) -> str:
        return f"{record['median']:.2f} [{record['low']:.2f}, {record['high']:.2f}]"

    def table(title: str, cell: Callable[[Record], str]) -> Table:
        rows: dict[str, list[str]] = {}
        for record in records:
            text = cell(record) if record["status"] == "ok" else record["status"]
            rows.setdefault(SIDES[record["side"]], []).append(text)
        return Table(title, columns, [[name, *cells] for name, cells in rows.items()])

    return [
        table(
            "Preparing: s, median [fastest, slowest]", lambda r: f"{r['median']:.2f} [{r['low']:.2f}, {r['high']:.2f}]"
        ),
        table("Preparing: peak MB above the libraries", lambda r: megabytes(r["extra_mb"])),
    ]


def figures(records: Sequence[Record]) -> list[Figure]:
    """Seconds and MB against the length."""
    panels = []
    for key, label in (("median", "s"), ("extra_mb", "MB")):
        lines: dict[str, list[tuple[float, float]]] = {}
        for record in records:
            if record["status"] == "ok":
                lines.setdefault(SIDES[record["side"]], []).append((record["length"], max(record[key], 1e-3)))
        panels.append(Panel("preparing the data set", "MAX_ITEM_LIST_LENGTH", label, lines))
    return [Figure("length", panels)]
