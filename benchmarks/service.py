"""The HTTP service under mixed load: errors, times of every kind of request, and its memory over time."""

import argparse
import contextlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import torch

from benchmarks.errors import GateError
from benchmarks.load import Client, Outcome
from benchmarks.plots import Figure, Panel
from benchmarks.report import Output, Table, heading, milliseconds
from benchmarks.serving import Sizes, build
from recbole_lisa.serving.export import write_export

SAMPLE_SECONDS = 1.0
SETTLED = 0.2
"""Part of the time after which memory should not grow: caches are filled and the sessions of all clients exist."""
ALLOWED_GROWTH_MB = 16.0
"""Between the medians of the fifth after SETTLED and of the last one."""
STARTED = re.compile(r"http://\S+")
Memory = Sequence[tuple[float, float]]


@contextlib.contextmanager
def started(export: Path, words: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`recbole-lisa serve` in a process of its own: the process, and host and port. It must end well on SIGTERM.

    Raises:
        GateError: It does not start, or does not end with status 0.
    """
    command = [sys.executable, "-m", "recbole_lisa", "serve", f"--export={export}", "--port=0", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = STARTED.search(process.stdout.readline())
        if found is None:
            raise GateError("the service did not start")
        yield process, urlsplit(found.group()).netloc
        process.terminate()
        if process.wait(60) != 0:
            raise GateError(f"the service ended with status {process.returncode}")
    finally:
        process.kill()
        process.communicate()


def run(options: argparse.Namespace) -> None:
    """`python -m benchmarks service`: see its --help.

    Raises:
        GateError: A request was answered otherwise than it must be, or the memory grew.
    """
    output = Output(options.output, "service", overwrite=options.overwrite)
    title = heading(options.command, torch.device("cpu"))
    print(title)
    sizes = Sizes(options.items, options.width, options.codebooks, options.codewords, k=10, length=50)
    words = [f"--threads={options.threads or 1}", *([f"--redis={options.redis}"] if options.redis else [])]
    with tempfile.TemporaryDirectory() as folder:
        with torch.no_grad():
            write_export(build(sizes).bundle, Path(folder) / "export")
        with started(Path(folder) / "export", words) as (process, address):
            outcomes, memory = put_under_load(process.pid, address, options)
    records, errors = summary(outcomes), [error for outcome in outcomes for error in outcome.errors]
    growth = growth_of(memory)
    tables = [time_table(records, options.minutes * 60), memory_table(memory, growth, len(errors))]
    for table in tables:
        print("\n" + table.markdown(), end="")
    document = {
        "sizes": vars(sizes),
        "requests": records,
        "errors": errors[:100],
        "memory": memory,
        "growth_mb": growth,
    }
    points = [(seconds / 60, megabytes) for seconds, megabytes in memory]
    panel = Panel("memory of the service", "minutes", "MB resident", {"recbole-lisa serve": points}, "linear")
    output.tell(output.write(title, document, tables, [Figure("memory", [panel])]))
    if errors:
        raise GateError(f"{len(errors)} requests went wrong; the first: {errors[0]}")
    if growth > ALLOWED_GROWTH_MB:
        raise GateError(f"the memory of the service grew by {growth:.0f} MB, {ALLOWED_GROWTH_MB:.0f} are allowed")


def put_under_load(pid: int, address: str, options: argparse.Namespace) -> tuple[list[Outcome], Memory]:
    """Let the clients ask, and look at the memory of the service meanwhile.

    Returns:
        What every client saw; and (seconds, MB resident) once a second.
    """
    clients = [Client(address, options.items, seed) for seed in range(options.clients)]
    end = threading.Event()
    threads = [threading.Thread(target=client.run, args=(end,), daemon=True) for client in clients]
    service, begun, memory = psutil.Process(pid), time.monotonic(), []
    for thread in threads:
        thread.start()
    while (passed := time.monotonic() - begun) < options.minutes * 60 and service.is_running():
        memory.append((passed, service.memory_info().rss / 2**20))
        time.sleep(SAMPLE_SECONDS)
    end.set()
    for thread, client in zip(threads, clients, strict=True):
        thread.join()
        client.close()
    return [client.outcome for client in clients], memory


def growth_of(memory: Memory) -> float:
    """MB by which the median of the last fifth of the time is above that of the fifth after SETTLED."""
    fifth, megabytes = max(1, len(memory) // 5), [value for _, value in memory]
    first = round(len(memory) * SETTLED)
    return statistics.median(megabytes[-fifth:]) - statistics.median(megabytes[first : first + fifth])


def summary(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Number and times of each kind of request, all clients together."""
    kinds: dict[str, list[float]] = {}
    for outcome in outcomes:
        for name, seconds in outcome.seconds.items():
            kinds.setdefault(name, []).extend(seconds)
    return [
        {
            "kind": name,
            "requests": len(seconds),
            "median": statistics.median(seconds),
            "percentile_99": sorted(seconds)[int(0.99 * (len(seconds) - 1))],
            "slowest": max(seconds),
        }
        for name, seconds in sorted(kinds.items())
    ]


def time_table(records: Sequence[dict[str, Any]], seconds: float) -> Table:
    """Each kind of request."""
    rows = [
        [r["kind"], f"{r['requests']:,}", *(milliseconds(r[name]) for name in ("median", "percentile_99", "slowest"))]
        for r in records
    ]
    total = sum(record["requests"] for record in records)
    title = f"{total:,} requests in {seconds:,.0f} s: ms as the clients see them, all waiting included"
    return Table(title, ["kind", "requests", "median", "99th percentile", "slowest"], rows)


def memory_table(memory: Memory, growth: float, errors: int) -> Table:
    """Errors, and the memory of the service."""
    values = [value for _, value in memory]
    row = [str(errors), f"{values[0]:.0f}", f"{max(values):.0f}", f"{values[-1]:.0f}", f"{growth:+.1f}"]
    columns = ["wrong answers", "MB at the start", "MB at most", "MB at the end", "growth in the last three fifths, MB"]
    return Table("The service", columns, [row])
