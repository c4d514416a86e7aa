"""Train the rows of the ranking table, each seed in a process of its own; what is there already is not run again."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from benchmarks.paper.paper import Row
from recbole_lisa.errors import UsageError
from recbole_lisa.files import atomic_writer, probe_writing
from recbole_lisa.tuning.session import check_resources, default_gpus, ray_session

ROOT = Path(__file__).parents[2]
_NEEDED = {"seed", "test", "curve", "config", "versions", "device", "checkpoint"}


class Job(NamedTuple):
    """One row with one seed, in the folder that its run is started from; `verb` is run or migrate."""

    row: str
    seed: int
    options: list[str]
    folder: Path
    verb: str = "run"

    @property
    def result_file(self) -> Path:
        """The run's result, there once it has finished."""
        return self.folder / "result.json"

    @property
    def record(self) -> Path:
        """The options, there once the run has begun."""
        return self.folder / "options.json"


class Cluster(NamedTuple):
    """Where Ray runs jobs: local, auto or HOST:PORT; GPUs of a run, None for 1 where there is one."""

    address: str
    gpus: float | None


def jobs(
    dataset: str, rows: Mapping[str, Row], seeds: Sequence[int], runs: Path, settings: Sequence[str]
) -> Iterator[Job]:
    """The runs of a table, seed by seed so that every row has a first figure early.

    Args:
        dataset: data set name.
        rows: row name -> what to run.
        seeds: one run each.
        runs: folder of all runs.
        settings: further words of the command line, the same for all.
    """
    for seed in seeds:
        for name, row in rows.items():
            options = [*row.options(), f"--dataset={dataset}", "--protocol=paper", *settings, f"--seed={seed}"]
            yield Job(name, seed, options, runs / dataset / f"{name}-{seed}")


def check_folders(todo: Sequence[Job]) -> None:
    """Refuse folders that cannot be written, and those that hold a run with other options, which would be lost.

    Raises:
        UsageError: There is such a folder.
    """
    for job in todo:
        try:
            probe_writing(job.record)
        except OSError as error:
            raise UsageError(
                f"--runs: nothing can be written into '{job.folder}' ({error.strerror}); name another folder"
            ) from error
        there = _recorded(job)
        if there is not None and there != sorted(job.options):
            before = " ".join(word for word in there if word not in job.options)
            now = " ".join(word for word in job.options if word not in there)
            raise UsageError(
                f"'{job.folder}' holds a run with other settings ({before or 'none'} there, {now or 'none'} here): "
                "name another folder by --runs, or remove this one"
            )


def result_of(job: Job) -> dict[str, Any] | None:
    """The result of exactly these options; None when it is not there, or the file is damaged."""
    if _recorded(job) != sorted(job.options):
        return None
    found = _read(job.result_file)
    return found if isinstance(found, dict) and found.keys() >= _NEEDED else None


def finished(job: Job) -> bool:
    """Whether the result of exactly these options is there."""
    return result_of(job) is not None


def _recorded(job: Job) -> list[str] | None:
    """The options of the run that the folder holds, sorted; None where there is none, or nobody can tell."""
    there = _read(job.record)
    return sorted(map(str, there)) if isinstance(there, list) else None


def _read(path: Path) -> Any:
    """What a JSON file holds; None without a file, or when it is damaged."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def run_job(job: Job, threads: int, alive: int = subprocess.PIPE) -> int:
    """Run one job to its end, or go on where an interrupted run of the same options stopped.

    Args:
        job: What to run.
        threads: Of torch.
        alive: A pipe that is closed when the run shall end; by default it ends with this process.

    Returns:
        The exit status of the run; its output is in log.txt of the folder.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    begun = _recorded(job) == sorted(job.options) and any(job.folder.glob("saved/*.pth"))
    resume = ["--resume=auto"] if begun else []
    job.result_file.unlink(missing_ok=True)
    with atomic_writer(job.record) as stream:
        stream.write(json.dumps(job.options).encode())
    words = [*job.options, f"--result_file={job.result_file.name}", "--overwrite", "--show_progress=False", *resume]
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with (job.folder / "log.txt").open("a", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.paper.job", job.verb, *words],
            cwd=job.folder,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(path)},
            stdin=alive,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        with process:
            return process.wait()


def run_all(todo: Sequence[Job], *, parallel: int, threads: int, cluster: Cluster | None = None) -> list[Job]:
    """Run the jobs that are not finished.

    Args:
        todo: what to run.
        parallel: runs at a time, without a cluster.
        threads: threads of each run.
        cluster: run through Ray, as many at a time as have `threads` cores and their GPUs.

    Returns:
        The jobs that failed.

    Raises:
        UsageError: Ray is not there, or has no room for a run.
    """
    failed = []
    missing = [job for job in todo if not finished(job)]
    if not missing:
        return []
    statuses = _here(missing, parallel, threads) if cluster is None else _through_ray(missing, threads, cluster)
    with contextlib.closing(statuses), tqdm(total=len(missing), desc="runs", disable=None) as bar:
        for job, status in statuses:
            bar.update()
            if status:
                failed.append(job)
                tqdm.write(f"{job.row}, seed {job.seed}: failed with status {status}, see {job.folder / 'log.txt'}")
    return failed


def _here(missing: Sequence[Job], parallel: int, threads: int) -> Generator[tuple[Job, int], None, None]:
    reading, writing = os.pipe()
    pool = ThreadPoolExecutor(parallel)
    try:
        yield from zip(missing, pool.map(lambda job: run_job(job, threads, reading), missing), strict=True)
    finally:  # after an interruption: what waits is cancelled, and what runs ends with the pipe
        os.close(writing)
        pool.shutdown(cancel_futures=True)
        os.close(reading)


def _through_ray(missing: Sequence[Job], threads: int, cluster: Cluster) -> Generator[tuple[Job, int], None, None]:
    with ray_session(cluster.address):
        import ray

        gpus = default_gpus(cluster.gpus)
        check_resources({"--threads": threads, "--gpus_per_run": gpus})
        call = ray.remote(num_cpus=threads, num_gpus=gpus)(run_job)
        waiting = {call.remote(job, threads): job for job in missing}
        while waiting:
            (done, *_), _ = ray.wait(list(waiting))
            yield waiting.pop(done), ray.get(done)


def results(todo: Sequence[Job]) -> dict[str, list[dict[str, Any]]]:
    """Row -> the results of its finished runs, in the order of the seeds; the path of a checkpoint is absolute."""
    found: dict[str, list[dict[str, Any]]] = {job.row: [] for job in todo}
    for job in todo:
        run = result_of(job)
        if run is not None:
            found[job.row].append({**run, "checkpoint": str(job.folder / run["checkpoint"])})
    return found
