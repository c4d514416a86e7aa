"""The rows of the paper's tables, and their runs: each a process in its own folder; a finished one is not run again."""

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.report import write_text
from recbole_lisa.errors import UsageError

ROOT = Path(__file__).parents[2]
NEEDED = {"seed", "test", "curve", "epochs_run", "config", "versions", "device", "checkpoint"}
Results = dict[str, list[dict[str, Any]]]  # row -> results of its finished runs, in the order of the seeds

METRICS = {"hit@5": "HR@5", "ndcg@5": "NDCG@5", "hit@10": "HR@10", "ndcg@10": "NDCG@10"}
"""Name in a result -> name in the paper."""


class Row(NamedTuple):
    """A model and the settings that differ from its yaml file."""

    model: str
    settings: dict[str, Any]

    def arguments(self) -> list[str]:
        """The row as command-line arguments."""
        return [f"--model={self.model}", *(f"--{key}={value}" for key, value in self.settings.items())]


ROWS: dict[str, Row] = {
    "Transformer": Row("Transformer", {}),
    "Linformer": Row("Linformer", {"n_projected": 128}),
    "LSH-1": Row("Reformer", {"n_hashes": 1}),
    "LSH-4": Row("Reformer", {"n_hashes": 4}),
    "Sinkhorn-32": Row("SinkhornTransformer", {"bucket_size": 32}),
    "Sinkhorn-64": Row("SinkhornTransformer", {"bucket_size": 64}),
    "Routing-32": Row("RoutingTransformer", {"window_size": 32}),
    "Routing-64": Row("RoutingTransformer", {"window_size": 64}),
    "Clustered-100": Row("ClusteredTransformer", {"n_clusters": 100}),
    "Clustered-200": Row("ClusteredTransformer", {"n_clusters": 200}),
    "LISA-Base": Row("LISABase", {}),
    "LISA-Soft": Row("LISASoft", {}),
    "LISA-Mini": Row("LISAMini", {}),
    "Linear": Row("LinearTransformer", {}),
}
"""Row name -> what to run; `Linear` is not in the paper."""


def paper_figures(dataset: str) -> dict[str, dict[str, float]]:
    """Row name -> metric -> the paper's figure; empty for a data set that the paper does not have."""
    with Path(__file__).with_name("paper.csv").open(encoding="utf-8", newline="") as stream:
        lines = [line for line in csv.DictReader(stream) if line["dataset"] == dataset]
    return {line["row"]: {name: float(line[name]) for name in METRICS} for line in lines}


class Run(NamedTuple):
    """One row with one seed, in the folder that it is started from; `verb` is run or migrate."""

    row: str
    seed: int
    arguments: list[str]
    folder: Path
    verb: str = "run"

    def read(self, name: str) -> Any:
        """A JSON file of the folder: result.json of the end, or options.json of the start; None if damaged."""
        try:
            return json.loads((self.folder / name).read_bytes())
        except (OSError, ValueError):
            return None

    def result(self) -> dict[str, Any] | None:
        """The result of exactly these arguments; None if it is missing or damaged."""
        result = self.read("result.json") if self.read("options.json") == self.arguments else None
        return result if isinstance(result, dict) and result.keys() >= NEEDED else None

    def check_folder(self) -> None:
        """Refuse a folder whose run with other arguments would be lost; raises UsageError."""
        saved = self.read("options.json")
        if saved is not None and saved != self.arguments:
            before = " ".join(x for x in saved if x not in self.arguments) or "none"
            now = " ".join(x for x in self.arguments if x not in saved) or "none"
            raise UsageError(
                f"'{self.folder}' holds a run with other settings ({before} there, {now} here): name another folder by "
                "--runs, or remove this one"
            )


def start(run: Run, threads: int) -> "subprocess.Popen[bytes]":
    """Start a run, or continue an interrupted run of the same arguments; its output goes to log.txt."""
    is_started = run.read("options.json") == run.arguments and any(run.folder.glob("saved/*.pth"))
    (run.folder / "result.json").unlink(missing_ok=True)
    write_text(run.folder / "options.json", json.dumps(run.arguments))
    more = ["--result_file=result.json", "--overwrite", "--show_progress=False", *(["--resume=auto"] * is_started)]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with (run.folder / "log.txt").open("a", encoding="utf-8") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "recbole_lisa", run.verb, *run.arguments, *more],
            cwd=run.folder,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": path},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def run_missing(runs: Sequence[Run], *, parallel: int, threads: int) -> list[Run]:
    """Run all that have no result, `parallel` at a time, and return the failed; an interruption stops all."""
    waiting, running, failed = [run for run in runs if run.result() is None], list[Any](), list[Run]()
    try:
        while waiting or running:
            while waiting and len(running) < parallel:
                run = waiting.pop(0)
                running.append((run, start(run, threads)))
            time.sleep(0.2)
            for run, process in [pair for pair in running if pair[1].poll() is not None]:
                running.remove((run, process))
                status = "finished"
                if process.returncode:
                    failed.append(run)
                    status = f"failed with status {process.returncode}, see {run.folder / 'log.txt'}"
                print(f"{run.row}, seed {run.seed}: {status}; {len(waiting) + len(running)} more", flush=True)
    finally:
        for _, process in running:
            process.terminate()
            process.wait()
    return failed


def results_of(runs: Sequence[Run]) -> Results:
    """The results of the finished runs; the path of a checkpoint is absolute."""
    results: Results = {run.row: [] for run in runs}
    for run in runs:
        if (result := run.result()) is not None:
            results[run.row].append({**result, "checkpoint": str(run.folder / result["checkpoint"])})
    return results
