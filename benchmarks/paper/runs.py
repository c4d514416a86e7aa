"""The runs of a table: each is a process in its own folder; a finished one is not run again."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recbole_lisa.errors import UsageError
from recbole_lisa.files import atomic_writer

ROOT = Path(__file__).parents[2]
POLL_SECONDS = 0.2
_NEEDED = {"seed", "test", "curve", "config", "versions", "device", "checkpoint"}
Results = dict[str, list[dict[str, Any]]]
"""Row -> results of its finished runs, in the order of the seeds."""


class Run(NamedTuple):
    """One row with one seed, in the folder that it is started from; `verb` is run or migrate."""

    row: str
    seed: int
    arguments: list[str]
    folder: Path
    verb: str = "run"

    @property
    def result_file(self) -> Path:
        """The result; it exists after the run has finished."""
        return self.folder / "result.json"

    @property
    def arguments_file(self) -> Path:
        """The arguments; the file exists after the run has started."""
        return self.folder / "options.json"

    def has_started(self) -> bool:
        """Whether the folder holds a run with exactly these arguments."""
        return _read(self.arguments_file) == self.arguments

    def result(self) -> dict[str, Any] | None:
        """The result of exactly these arguments; None if it is missing or damaged."""
        result = _read(self.result_file) if self.has_started() else None
        return result if isinstance(result, dict) and result.keys() >= _NEEDED else None


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def check_folders(runs: Sequence[Run]) -> None:
    """Refuse a folder that cannot be written, or whose run with other arguments would be lost.

    Raises:
        UsageError: There is such a folder.
    """
    for run in runs:
        nearest = next(folder for folder in (run.folder, *run.folder.parents) if folder.exists())
        if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
            raise UsageError(f"--runs: '{run.folder}' cannot be written; name another folder")
        saved = _read(run.arguments_file)
        if saved is not None and saved != run.arguments:
            before = " ".join(x for x in saved if x not in run.arguments) or "none"
            now = " ".join(x for x in run.arguments if x not in saved) or "none"
            raise UsageError(
                f"'{run.folder}' holds a run with other settings ({before} there, {now} here): name another folder by "
                "--runs, or remove this one"
            )


def start(run: Run, threads: int) -> "subprocess.Popen[bytes]":
    """Start a run, or continue an interrupted run of the same arguments; its output goes to log.txt."""
    resume = ["--resume=auto"] if run.has_started() and any(run.folder.glob("saved/*.pth")) else []
    run.folder.mkdir(parents=True, exist_ok=True)
    run.result_file.unlink(missing_ok=True)
    with atomic_writer(run.arguments_file) as stream:
        stream.write(json.dumps(run.arguments).encode())
    more = [f"--result_file={run.result_file.name}", "--overwrite", "--show_progress=False", *resume]
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
    """Run all that have no result, `parallel` at a time. An interruption stops the running ones.

    Args:
        runs: All runs of a table.
        parallel: Processes at a time.
        threads: Threads of each process.

    Returns:
        The runs that failed.
    """
    waiting = [run for run in runs if run.result() is None]
    n_missing, n_ended = len(waiting), 0
    running: dict[Path, tuple[Run, subprocess.Popen[bytes]]] = {}
    failed = []
    try:
        while waiting or running:
            while waiting and len(running) < parallel:
                run = waiting.pop(0)
                running[run.folder] = run, start(run, threads)
            time.sleep(POLL_SECONDS)
            for run, process in list(running.values()):
                if process.poll() is None:
                    continue
                del running[run.folder]
                n_ended += 1
                status = "finished"
                if process.returncode:
                    failed.append(run)
                    status = f"failed with status {process.returncode}, see {run.folder / 'log.txt'}"
                print(f"[{n_ended}/{n_missing}] {run.row}, seed {run.seed}: {status}", flush=True)
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.wait()
    return failed


def results_of(runs: Sequence[Run]) -> Results:
    """The results of the finished runs; the path of a checkpoint is absolute."""
    results: Results = {run.row: [] for run in runs}
    for run in runs:
        if (result := run.result()) is not None:
            results[run.row].append({**result, "checkpoint": str(run.folder / result["checkpoint"])})
    return results
