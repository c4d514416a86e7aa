"""The HTTP service under mixed load: wrong answers, requests per second, times of every kind, memory of the server.

`--case=batches` sends requests for one list only, to a service with micro-batches and to one without.
"""

import argparse
import contextlib
import itertools
import json
import math
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measure import CheckError, Record
from benchmarks.options import add_list, add_machine, add_number, set_up_device
from benchmarks.report import Panel, Report, Table, milliseconds
from benchmarks.serving import Sizes, add_model, build
from recbole_lisa.serving.export import write_export

SETTLED = 0.2  # fraction of the time after which memory must not grow: caches are full, all sessions exist
ALLOWED_GROWTH_MB = 16.0
Memory = list[tuple[float, float]]  # (seconds, MB resident) once a second
HOSTILE = (  # bodies that the service must refuse
    *(b"", b"{", b"\xff\xfe", b"[" * 20_000, b" " * (2**20 + 1)),
    *(b'{"histories": [[NaN]]}', b'{"histories": [[true]]}', b'{"histories": [["no such item"]]}'),
    *(b'{"histories": [["0"]], "k": 1e400}', b'{"histories": ' + b"[" * 500 + b"]" * 500 + b"}"),
)
BATCHES = {"without micro-batches": ["--max_batch=1", "--batch_wait_ms=0"], "with micro-batches": []}
PREPARED = 300  # requests of a client under --case=batches, sent again and again
MAX_SESSIONS = 20  # of a client, before it deletes the oldest


class Connection:
    """A kept connection; a request costs a small part of what it costs `http.client`, which would be the limit here."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._socket: socket.socket | None = None

    def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send one request; status and content of its answer, which must have a Content-Length."""
        if self._socket is None:
            host, _, port = self._address.rpartition(":")
            self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout=600)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(request)
        answer = self._receive()
        while (end := answer.find(b"\r\n\r\n") + 4) < 4:
            answer += self._receive()
        head = answer[:end].lower()
        size = end + int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
        while len(answer) < size:
            answer += self._receive()
        if b"\r\nconnection: close\r\n" in head:
            self.close()
        return int(head.split(b" ", 2)[1]), answer[end:]

    def close(self) -> None:
        """End the connection; the next request opens another one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _receive(self) -> bytes:
        assert self._socket is not None
        if not (received := self._socket.recv(65536)):
            raise ConnectionError("the service ended the connection")
        return received


class Client:
    """One caller with one connection and its own sessions, whose lengths it counts; items are "0" to n_items - 1.

    `seconds` holds the times of each kind of request, `errors` one line for each wrong answer.
    """

    def __init__(self, address: str, n_items: int, seed: int) -> None:
        self.n_items, self.random = n_items, random.Random(seed)
        self.seconds: dict[str, list[float]] = {}
        self.errors: list[str] = []
        self.lengths: dict[str, int] = {}
        self._connection = Connection(address)
        self.kinds: dict[str, tuple[int, Callable[[], None]]] = {  # weight and request
            "recommend, 1 history": (25, lambda: self.recommend(1)),
            "recommend, 16 histories": (5, lambda: self.recommend(16)),
            "session: start": (8, self._start),
            "session: update": (30, self._update),
            "session: recommend": (15, self._recommend_session),
            "session: describe": (6, self._describe),
            "hostile body": (5, self._hostile),
        }

    def run(self, end: threading.Event) -> None:
        """Send one request after the other until `end` is set."""
        names, weights = list(self.kinds), [weight for weight, _ in self.kinds.values()]
        while not end.is_set():
            name = self.random.choices(names, weights)[0]
            start = time.perf_counter()
            try:
                self.kinds[name][1]()
            except Exception as error:  # the load goes on; the report counts the errors
                self.errors.append(f"{name}: {type(error).__name__}: {error}")
                self._connection.close()
                self.lengths.clear()  # a request without an answer may have changed a session
                time.sleep(0.1)
            else:
                self.seconds.setdefault(name, []).append(time.perf_counter() - start)
        self._connection.close()

    def recommend(self, n: int) -> None:
        """Recommend for n histories."""
        self._recommend(*self._prepared(n))

    def prepare(self) -> Callable[[], None]:
        """A call that sends the next of PREPARED requests for one history each: no time to make them counts."""
        prepared = itertools.cycle([self._prepared(1) for _ in range(PREPARED)])
        return lambda: self._recommend(*next(prepared))

    def _prepared(self, n: int) -> tuple[list[list[str]], bytes]:
        histories = [self._items(self.random.randint(1, 60)) for _ in range(n)]
        return histories, _request_of("POST", "/recommend", json.dumps({"histories": histories, "k": 10}).encode())

    def _recommend(self, histories: list[list[str]], request: bytes) -> None:
        answer = json.loads(self._answer(request, 200))
        for one, history in zip(answer["recommendations"], histories, strict=True):
            _check(len(set(one["items"]).difference(history)) == 10, "10 items that are not in the history", one)
            _check(one["scores"] == sorted(one["scores"], reverse=True), "descending scores", one)

    def _start(self) -> None:
        history = self._items(self.random.randint(0, 30))
        session = self._ask("POST", "/sessions", {"history": history}, 201)
        self.lengths[session["id"]] = len(history)
        self._check_length(session["id"], session)
        if len(self.lengths) > MAX_SESSIONS:
            oldest = next(iter(self.lengths))
            del self.lengths[oldest]
            self._ask("DELETE", f"/sessions/{oldest}", None, 200)
            self._ask("GET", f"/sessions/{oldest}", None, 404)

    def _update(self) -> None:
        session, items = self._session(), self._items(self.random.choice([1, 1, 1, 5]))
        body = {"items": items, "expected_length": self.lengths[session]}
        answer = self._ask("POST", f"/sessions/{session}/items", body, 200)
        self.lengths[session] += len(items)
        self._check_length(session, answer)
        if self.random.random() < 0.05:
            self._ask("POST", f"/sessions/{session}/items", body, 409)  # a repeated request is refused

    def _recommend_session(self) -> None:
        session = self._session()
        if not self.lengths[session]:
            self._ask("POST", f"/sessions/{session}/recommend", {}, 422)  # a session without items is refused
            return
        answer = self._ask("POST", f"/sessions/{session}/recommend", {"k": 7}, 200)
        _check(len(set(answer["items"])) == 7, "7 items", answer)
        self._check_length(session, answer)

    def _describe(self) -> None:
        session = self._session()
        self._check_length(session, self._ask("GET", f"/sessions/{session}", None, 200))

    def _hostile(self) -> None:
        self._answer(_request_of("POST", "/recommend", self.random.choice(HOSTILE)), 400, 413, 422)

    def _session(self) -> str:
        if not self.lengths:
            self._start()
        return self.random.choice(list(self.lengths))

    def _items(self, n: int) -> list[str]:
        """Random ids, some far more frequent than others."""
        return [str(int(self.n_items * self.random.random() ** 3)) for _ in range(n)]

    def _check_length(self, session: str, answer: Any) -> None:
        _check(answer["length"] == self.lengths[session], f"length {self.lengths[session]}", answer)

    def _ask(self, method: str, path: str, body: Any, status: int) -> Any:
        """One request with JSON in both directions."""
        content = None if body is None else json.dumps(body).encode()
        return json.loads(self._answer(_request_of(method, path, content), status))

    def _answer(self, request: bytes, *statuses: int) -> bytes:
        """The content of an answer, whose status must be one of `statuses`."""
        status, content = self._connection.ask(request)
        _check(status in statuses, f"status {statuses} of {request[:40]!r}", (status, content[:200]))
        return content


def _request_of(method: str, path: str, body: bytes | None) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    if body is None:
        return f"{head}\r\n".encode()
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _check(condition: bool, expected: str, answer: object) -> None:
    if not condition:
        raise CheckError(f"expected {expected}, got {str(answer)[:300]}")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `service`."""
    parser.add_argument("--case", choices=("mixed", "batches"), default="mixed", help="requests (default mixed)")
    add_number(parser, "minutes", 10.0, "minutes of load on each service")
    add_list(parser, "clients", [8], "concurrent clients; --case=batches measures each number")
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
        if options.case == "batches":
            compare_batches(report, options, Path(folder) / "export", arguments)
            return
        with running_service(Path(folder) / "export", arguments) as (process, address):
            clients = [Client(address, options.items, seed) for seed in range(options.clients[0])]
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


def compare_batches(report: Report, options: argparse.Namespace, export: Path, arguments: Sequence[str]) -> None:
    """Measure a service for each of BATCHES and each number of clients, one after the other."""
    records = [
        measure_lists(options, name, n_clients, export, [*arguments, *more])
        for n_clients in options.clients
        for name, more in BATCHES.items()
    ]
    times = ("cpu_seconds", "client_cpu_seconds", "median", "percentile_99", "slowest")
    rows = []
    for r in records:
        counts = [r["service"], str(r["clients"]), f"{r['requests']:,}", f"{r['requests'] / r['seconds']:,.1f}"]
        rows.append([*counts, *(milliseconds(r[name]) for name in times), str(len(r["errors"]))])
    columns = ["service", "clients", "requests", "a second", "CPU of a request", "CPU of its client", "median"]
    columns += ["99th percentile", "slowest", "wrong answers"]
    title = "Lists for one history, clients that wait for each answer: ms"
    report.finish({"services": records}, [Table(title, columns, rows)], {})
    if wrong := [error for record in records for error in record["errors"]]:
        raise CheckError(f"{len(wrong)} answers were wrong; the first: {wrong[0]}")


def measure_lists(
    options: argparse.Namespace, name: str, n_clients: int, export: Path, arguments: Sequence[str]
) -> Record:
    """Requests for one list each; `cpu_seconds` of the server, `client_cpu_seconds` of the clients for one request."""
    with running_service(export, arguments) as (process, address):
        clients = [Client(address, options.items, seed) for seed in range(n_clients)]
        for client in clients:
            client.recommend(1)  # the first request of a connection is not timed
            client.kinds = {"recommend": (1, client.prepare())}
        service, start = psutil.Process(process.pid), time.monotonic()
        cpu_before, client_cpu_before = sum(service.cpu_times()[:2]), time.process_time()
        put_under_load(clients, service, options.minutes * 60)
        seconds, cpu = time.monotonic() - start, sum(service.cpu_times()[:2]) - cpu_before
        client_cpu = time.process_time() - client_cpu_before
    errors = [error for client in clients for error in client.errors]
    records = summary(clients)
    if not records:
        raise CheckError(f"{name}: no answer was right; the first: {errors[:1]}")
    requests = records[0]["requests"]
    cpu_seconds = {"cpu_seconds": cpu / requests, "client_cpu_seconds": client_cpu / requests}
    return records[0] | {"service": name, "clients": n_clients, "seconds": seconds} | cpu_seconds | {"errors": errors}


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
