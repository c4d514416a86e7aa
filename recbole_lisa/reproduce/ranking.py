"""Train the rows of the ranking table, each seed in a process of its own; what is there already is not run again."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from recbole_lisa.reproduce.paper import Row
from recbole_lisa.tuning import ray_adapter

PACKAGE = Path(__file__).parents[1]


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


def finished(job: Job) -> bool:
    """Whether the result of exactly these options is there."""
    record = job.folder / "options.json"
    return job.result_file.exists() and record.exists() and json.loads(record.read_text()) == job.options


def run_job(job: Job, threads: int) -> int:
    """Run one job to its end, or go on where an interrupted run of the same options stopped.

    Returns:
        The exit status of the run; its output is in log.txt of the folder.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    record = job.folder / "options.json"
    same = record.exists() and json.loads(record.read_text()) == job.options
    job.result_file.unlink(missing_ok=True)
    record.write_text(json.dumps(job.options), encoding="utf-8")
    resume = ["--resume=auto"] if same and list(job.folder.glob("saved/*.pth")) else []
    words = [*job.options, f"--result_file={job.result_file.name}", "--show_progress=False", *resume]
    path = [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with (job.folder / "log.txt").open("a", encoding="utf-8") as log:
        return subprocess.run(
            [sys.executable, "-m", "recbole_lisa", job.verb, *words],
            cwd=job.folder,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(path)},
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode


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
    with tqdm(total=len(missing), desc="runs", disable=None) as bar:
        for job, status in statuses:
            bar.update()
            if status:
                failed.append(job)
                tqdm.write(f"{job.row}, seed {job.seed}: failed with status {status}, see {job.folder / 'log.txt'}")
    return failed


def _here(missing: Sequence[Job], parallel: int, threads: int) -> Iterator[tuple[Job, int]]:
    with ThreadPoolExecutor(parallel) as pool:
        yield from zip(missing, pool.map(lambda job: run_job(job, threads), missing), strict=True)


def _through_ray(missing: Sequence[Job], threads: int, cluster: Cluster) -> Iterator[tuple[Job, int]]:
    with ray_adapter.ray_session(cluster.address):
        gpus = cluster.gpus if cluster.gpus is not None else float(ray_adapter.cluster_gpus() >= 1)
        ray_adapter.check_resources({"--threads": threads, "--gpus_per_run": gpus})
        yield from ray_adapter.run_jobs(partial(run_job, threads=threads), missing, cpus=threads, gpus=gpus)


def results(todo: Sequence[Job]) -> dict[str, list[dict[str, Any]]]:
    """Row -> the results of its finished runs, in the order of the seeds; the path of a checkpoint is absolute."""
    found: dict[str, list[dict[str, Any]]] = {job.row: [] for job in todo}
    for job in todo:
        if finished(job):
            run = json.loads(job.result_file.read_text(encoding="utf-8"))
            found[job.row].append({**run, "checkpoint": str(job.folder / run["checkpoint"])})
    return found
