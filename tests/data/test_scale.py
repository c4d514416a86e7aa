"""Memory and time of the data path at the sizes it is made for, each measured in a fresh process."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.helpers import run_python

N_ROWS, N_USERS, N_ITEMS, N_RARE_USERS = 25_000_000, 162_541, 32_720, 1_000

MEMORY = r"""
import json, re, sys, time
from pathlib import Path

def memory_mb(name):
    # Of this program alone: the peak that getrusage gives includes the process that started it.
    return int(re.search(name + r":\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024

started = time.perf_counter()
"""

LOAD = r"""
from recbole.model.sequential_recommender import SASRec
from recbole_lisa.config.config import LISAConfig
from recbole_lisa.data.dataloader import create_loaders
from recbole_lisa.data.dataset import create_dataset

settings = json.loads(sys.argv[1])
config = LISAConfig(SASRec, settings.pop("dataset"), protocol="paper", config_dict=settings)
dataset = create_dataset(config)
loading_peak_mb, loaded_mb = memory_mb("VmHWM"), memory_mb("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
train, _, test = create_loaders(config, dataset)
first = next(iter(train))
seconds = time.perf_counter() - started
cells = sum(batch["item_id_list"].numel() for batch in train)
rows = sum(len(batch.candidates) for batch in test)
print(json.dumps({
    "users": dataset.user_num - 1, "items": dataset.item_num - 1, "rows": len(dataset.inter_feat),
    "longest": train.windows.length.max().item(), "evaluated": rows, "seconds": seconds,
    "peak_mb": max(loading_peak_mb, memory_mb("VmHWM")), "above_loading_mb": memory_mb("VmHWM") - loaded_mb,
}))
"""

CONVERT = r"""
from recbole_lisa.datasets.layouts import parse_conversion
from recbole_lisa.datasets.conversion import convert

report = convert(Path(sys.argv[1]), Path(sys.argv[2]), parse_conversion("ml-25m"))
seconds, peak = time.perf_counter() - started, memory_mb("VmHWM")
print(json.dumps({"rows": report.rows, "users": report.users, "seconds": seconds, "peak_mb": peak}))
"""


def measure(code: str, *arguments: str) -> dict[str, Any]:
    output, _ = run_python(MEMORY + code, *arguments, OMP_NUM_THREADS="2")
    measured: dict[str, Any] = json.loads(output.splitlines()[-1])
    print(measured)
    return measured


def write_synthetic(path: Path) -> None:
    """Interactions in random order: every user and item often enough to stay, and a few users too rare to."""
    rng = np.random.default_rng(0)
    activity, popularity = rng.lognormal(0, 1.2, N_USERS), 1 / np.arange(1, N_ITEMS + 1)
    users = np.repeat(np.arange(N_USERS), 10)
    users = np.append(users, rng.choice(N_USERS, N_ROWS - len(users), p=activity / activity.sum()))
    items = rng.choice(N_ITEMS, N_ROWS, p=popularity / popularity.sum())
    rng.shuffle(users)
    items[: N_ITEMS * 10] = np.repeat(np.arange(N_ITEMS), 10)
    users = np.append(users, np.repeat(np.arange(N_USERS, N_USERS + N_RARE_USERS), 2))
    items = np.append(items, rng.choice(N_ITEMS, 2 * N_RARE_USERS))
    order = rng.permutation(len(users))
    times = rng.integers(789_652_004, 1_574_327_703, len(users))
    frame = pd.DataFrame({"user_id:token": users[order], "item_id:token": items[order], "timestamp:float": times})
    path.parent.mkdir(parents=True)
    frame.to_csv(path, sep="\t", index=False)


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory from /proc"),
]


def test_25_million_interactions_prepare_in_8_gb_and_5_minutes(tmp_path: Path) -> None:
    write_synthetic(tmp_path / "synthetic" / "synthetic.inter")
    settings = {"dataset": "synthetic", "data_path": str(tmp_path), "loss_type": "BPR", "MAX_ITEM_LIST_LENGTH": 200}
    core = {"user_inter_num_interval": "[5,inf)", "item_inter_num_interval": "[5,inf)"}
    measured = measure(LOAD, json.dumps({**settings, **core}))
    assert (measured["users"], measured["items"], measured["rows"]) == (N_USERS, N_ITEMS, N_ROWS)
    assert measured["evaluated"] == N_USERS
    assert measured["longest"] == 200
    assert measured["peak_mb"] < 8 * 1024
    assert measured["seconds"] < 300


@pytest.mark.parametrize("supervision", ["all_positions", "last_position"])
def test_ml_1m_at_length_1000_takes_under_500_mb_above_loading(supervision: str) -> None:
    folder = os.environ.get("RECBOLE_LISA_DATA")
    if not folder or not Path(folder, "ml-1m", "ml-1m.inter").is_file():
        pytest.skip("needs ml-1m/ml-1m.inter in the folder that RECBOLE_LISA_DATA names")
    settings = {"dataset": "ml-1m", "data_path": folder, "loss_type": "BPR", "MAX_ITEM_LIST_LENGTH": 1000}
    measured = measure(LOAD, json.dumps({**settings, "supervision": supervision}))
    assert (measured["users"], measured["items"], measured["rows"]) == (6040, 3416, 999_611)
    assert measured["longest"] == 1000
    assert measured["above_loading_mb"] < 500


def test_25_million_rows_of_csv_convert_in_2_gb_and_4_minutes(tmp_path: Path) -> None:
    rng, raw = np.random.default_rng(0), tmp_path / "ratings.csv"
    users = np.sort(rng.integers(1, N_USERS + 1, N_ROWS))
    with raw.open("w") as stream:
        stream.write("userId,movieId,rating,timestamp\n")
        for part in np.array_split(users, 25):
            size = len(part)
            columns = {"u": part, "i": rng.integers(1, N_ITEMS + 1, size), "r": rng.integers(1, 11, size) / 2}
            frame = pd.DataFrame({**columns, "t": rng.integers(789_652_004, 1_574_327_703, size)})
            frame.to_csv(stream, header=False, index=False)
    measured = measure(CONVERT, str(raw), str(tmp_path / "set"))
    assert (measured["rows"], measured["users"]) == ([N_ROWS, N_ROWS], [N_USERS, N_USERS])
    assert measured["peak_mb"] < 2 * 1024
    assert measured["seconds"] < 240
