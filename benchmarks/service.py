"""The HTTP service under mixed load: wrong answers, requests per second, times of every kind, memory of the server."""

import argparse
import contextlib
import math
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from benchmarks.errors import CheckError
from benchmarks.load import Client
from benchmarks.measure import Record
from benchmarks.options import add_machine, add_number, set_up_device
from benchmarks.report import Panel, Report, Table, milliseconds
from benchmarks.serving import Sizes, add_model, build
from recbole_lisa.serving.export import write_export

SETTLED = 0.2  # fraction of the time after which memory must not grow: caches are full, all sessions exist
ALLOWED_GROWTH_MB = 16.0
Memory = list[tuple[float, float]]  # (seconds, MB resident) once a second


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `service`."""
    add_number(parser, "minutes", 10.0, "minutes of load")
    add_number(parser, "clients", 8, "concurrent clients")
    parser.add_argument("--redis", metavar="URL", help="keep sessions in Redis, not in memory")
    add_model(parser, items=10**5)
    add_machine(parser, repeats=None, cuda=False)


def run(options: argparse.Namespace) -> None:
    """Run `python -m benchmarks service`; --threads are those of the service, 1 by default."""
    report = Report(options, set_up_device(options))
    sizes = Sizes(options.items, options.width, options.codebooks, options.codewords)
    arguments = [f"--threads={options.threads or 1}", *([f"--redis={options.redis}"] if options.redis else [])]
    with tempfile.TemporaryDirectory() as folder:
        write_export(build(sizes).bundle, Path(folder) / "export")
        with running_service(Path(folder) / "export", arguments) as (process, address):
            clients = [Client(address, options.items, seed) for seed in range(options.clients)]
            memory = put_under_load(clients, psutil.Process(process.pid), options.minutes * 60)
    records, errors = summary(clients), [error for client in clients for error in client.errors]
    growth = growth_of(memory)
    document = {"requests": records, "errors": errors[:100], "memory": memory, "growth_mb": growth}
    points = [(seconds / 60, megabytes) for seconds, megabytes in memory]
    panel = Panel("memory of the service", "minutes", "MB resident", {"recbole-lisa serve": points}, log=False)
    values = [value for _, value in memory]
    megabytes = [f"{value:.0f}" for value in (values[0], max(values), values[-1])]
    columns = ["wrong answers", "MB at the start", "MB at most", "MB at the end", "growth in the last three fifths"]
    service = Table("The service", columns, [[str(len(errors)), *megabytes, f"{growth:+.1f}"]])
    report.finish(document, [time_table(records, options.minutes * 60), service], {"memory": [panel]})
    if errors:
        raise CheckError(f"{len(errors)} answers were wrong; the first: {errors[0]}")
    if growth > ALLOWED_GROWTH_MB:
        raise CheckError(f"the memory of the service grew by {growth:.0f} MB, {ALLOWED_GROWTH_MB:.0f} are allowed")


@contextlib.contextmanager
def running_service(export: Path, arguments: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `recbole-lisa serve`, which must end with status 0 after SIGTERM; yields the process, and host and port."""
    command = [sys.executable, "-m", "recbole_lisa", "serve", f"--export={export}", "--port=0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        address = re.search(r"http://([^\s/]+)", process.stdout.readline())
        if address is None:
            raise CheckError("the service did not start")
        yield process, address[1]
        process.terminate()
        if process.wait(60) != 0:
            raise CheckError(f"the service ended with status {process.returncode}")
    finally:
        process.kill()
        process.communicate()


def put_under_load(clients: Sequence[Client], service: psutil.Process, seconds: float) -> Memory:
    """Run the clients, each in a thread, and measure the memory of the service meanwhile."""
    end, memory = threading.Event(), []
    threads = [threading.Thread(target=client.run, args=(end,), daemon=True) for client in clients]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    while (passed := time.monotonic() - start) < seconds and service.is_running():
        memory.append((passed, service.memory_info().rss / 2**20))
        time.sleep(min(1.0, seconds))
    end.set()
    for thread in threads:
        thread.join()
    return memory


def growth_of(memory: Memory) -> float:
    """Median MB of the last fifth of the time, less that of the fifth after SETTLED."""
    fifth, megabytes = max(1, len(memory) // 5), [value for _, value in memory]
    first = round(len(memory) * SETTLED)
    return statistics.median(megabytes[-fifth:]) - statistics.median(megabytes[first : first + fifth])


def summary(clients: Sequence[Client]) -> list[Record]:
    """Number and seconds of each kind of request, all clients together."""
    records = []
    for kind in sorted({kind for client in clients for kind in client.seconds}):
        seconds = sorted(value for client in clients for value in client.seconds.get(kind, []))
        times = {"median": statistics.median(seconds), "percentile_99": seconds[math.ceil(0.99 * len(seconds)) - 1]}
        records.append({"kind": kind, "requests": len(seconds), **times, "slowest": seconds[-1]})
    return records


def time_table(records: Sequence[Record], seconds: float) -> Table:
    """Each kind of request."""
    times = ("median", "percentile_99", "slowest")
    rows = [[r["kind"], f"{r['requests']:,}", *(milliseconds(r[name]) for name in times)] for r in records]
    total = sum(record["requests"] for record in records)
    title = f"{total:,} requests in {seconds:,.0f} s, {total / seconds:,.1f} a second: ms as the clients measure them"
    return Table(title, ["kind", "requests", "median", "99th percentile", "slowest"], rows)
