"""`recbole-lisa serve` as a process: where it listens, how it ends, what it says of mistakes, what Redis keeps."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from pytest import CaptureFixture, MonkeyPatch

from recbole_lisa.cli.main import main
from recbole_lisa.cli.serve_command import REDIS_VARIABLE, _parser, hosts_of, warm_up
from recbole_lisa.errors import install_extra
from recbole_lisa.saved import bundle_of
from recbole_lisa.serving import Recommender
from recbole_lisa.serving.export import write_export
from tests.helpers import refusal
from tests.model.build import build_model
from tests.serving.build import raw, small_bundle
from tests.serving.http.build import PATIENCE, Running, find_redis, redis_server, wait_until


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "export"
    write_export(small_bundle("LISABase")[1], folder)
    return folder


@contextlib.contextmanager
def serving(export: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], Running]]:
    """The command in a process of its own, and the service at the port that it prints."""
    pytest.importorskip("uvicorn")
    command = [sys.executable, "-m", "recbole_lisa", "serve", f"--export={export}", "--port=0", *more]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "LISABase of small, 29 items: http://127.0.0.1:" in line, line
        yield process, Running(int(line.rstrip("/\n").rpartition(":")[2]), None)
    finally:
        process.kill()
        process.communicate()


def test_sigterm_lets_a_request_that_has_begun_end(export: Path) -> None:
    with serving(export) as (process, service):
        body = json.dumps({"histories": [raw([1, 2])], "k": 3}).encode()
        head = "POST /recommend HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
        with socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE) as connection:
            connection.sendall(head.encode())
            assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")  # the request has begun
            process.send_signal(signal.SIGTERM)
            connection.sendall(body)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 200 ")
        [expected] = Recommender.load(export).recommend([raw([1, 2])], 3)
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["recommendations"][0]["items"] == expected.items
        assert process.wait(PATIENCE) == 0
        assert process.stderr is not None and process.stderr.read() == ""
        with pytest.raises(ConnectionRefusedError):
            service.get("/health")


@pytest.mark.slow
def test_what_was_acknowledged_is_in_redis_after_kill_9(export: Path, tmp_path: Path) -> None:
    program = find_redis()
    names, recommender = [f"user{n}" for n in range(8)], Recommender.load(export)
    acknowledged: dict[str, list[str]] = {name: [] for name in names}
    with redis_server(program, tmp_path) as (url, redis):
        for killed_redis in (False, True):
            with ThreadPoolExecutor(len(names)) as clients, serving(export, f"--redis={url}") as (process, service):
                work = [clients.submit(update_until_it_dies, service, name, acknowledged[name]) for name in names]
                enough = 40 if killed_redis else 10
                wait_for_each(acknowledged, enough, work)
                process.kill()  # in the middle of updates
                assert [one.result() for one in work] == [None] * len(names)
            assert min(map(len, acknowledged.values())) >= enough
            if killed_redis:
                redis.kill()
                redis.wait()
            with contextlib.ExitStack() as stack:
                if killed_redis:
                    (tmp_path / "redis.sock").unlink()
                    stack.enter_context(redis_server(program, tmp_path))
                _, service = stack.enter_context(serving(export, f"--redis={url}"))
                for name in names:
                    data = service.get(f"/sessions/{name}/bytes").body
                    session = recommender.start()
                    for item in acknowledged[name]:
                        session.update(item)
                    if len(recommender.from_bytes(data)) == len(session) + 1:  # stored, but not yet acknowledged
                        acknowledged[name].append(next_item(len(session)))
                        session.update(acknowledged[name][-1])
                    assert data == session.to_bytes()


def wait_for_each(acknowledged: dict[str, list[str]], enough: int, work: list[Future[None]]) -> None:
    """Wait until every client has so many updates, or one has failed."""
    wait_until(lambda: min(map(len, acknowledged.values())) >= enough or any(one.done() for one in work))


def next_item(n: int) -> str:
    return raw([1 + n * 7 % 29])[0]


def update_until_it_dies(service: Running, name: str, acknowledged: list[str]) -> None:
    """Add one item after the other and write down what was acknowledged."""
    with contextlib.suppress(ConnectionError, http.client.HTTPException):
        if not acknowledged:
            assert service.post("/sessions", {"id": name}).status == 201
        while True:
            item = next_item(len(acknowledged))
            answer = service.post(f"/sessions/{name}/items", {"items": [item]})
            assert (answer.status, answer.json["length"]) == (200, len(acknowledged) + 1), answer.body
            acknowledged.append(item)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--export=gone"], "'gone' is not an export (manifest.json: No such file or directory): give a folder"),
        (["--port=65536"], "argument --port: must be a port from 0 (any that is free) to 65535, got 65536"),
        (["--threads=100000"], "argument --threads: must be a whole number from 1 to 1024, got 100000"),
        (["--max_k=0"], "argument --max_k: must be a whole number from 1 to 2147483647, got 0"),
        (["--batch_wait_ms=-1"], "argument --batch_wait_ms: must be milliseconds from 0 (no wait) to 1000, got -1"),
        (["--batch_wait_ms=nan"], "argument --batch_wait_ms: must be milliseconds from 0 (no wait) to 1000, got nan"),
        (["--host=nowhere.invalid"], "cannot listen on nowhere.invalid, port 8000: "),
        (["--host=192.0.2.1"], "cannot listen on 192.0.2.1, port 8000: Cannot assign requested address"),
        (["--port=TAKEN"], "Address already in use; choose another --port or --host"),
        (["--redis=redis://x", "--max_sessions=5"], "--max_sessions is of sessions in memory, and Redis keeps them"),
        (["--redis=http://x"], "--redis: Redis URL must specify one of the following schemes"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_mistake_is_one_line(export: Path, arguments: list[str], message: str, capsys: CaptureFixture[str]) -> None:
    pytest.importorskip("uvicorn")
    if "redis" in message.lower():
        pytest.importorskip("redis")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        arguments = [one.replace("TAKEN", str(taken.getsockname()[1])) for one in arguments]
        of_export = [] if arguments[0].startswith("--export") else [f"--export={export}"]
        assert message in refusal(capsys, main(["serve", *of_export, *arguments]))


def test_missing_packages_are_named(export: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]) -> None:
    monkeypatch.setattr("recbole_lisa.cli.serve_command.find_spec", lambda name: None)
    assert main(["serve", f"--export={export}"]) == 2
    expected = f"serve needs fastapi and uvicorn and prometheus_client: {install_extra('serve')}"
    assert expected in capsys.readouterr().err


def test_every_model_is_warmed_up() -> None:
    for name, settings in (("LISABase", {"histogram_decay": "time"}), ("LISASoft", {}), ("Transformer", {})):
        recommender, warm = Recommender(small_bundle(name, **settings)[1]), []
        recommend = recommender.recommend
        recommender.recommend = lambda *args, **more: warm.extend(recommend(*args, **more))  # type: ignore[method-assign]  # noqa: B023  # it is called in this round
        warm_up(recommender)
        assert [len(answer.items) for answer in warm] == [1]


def test_a_catalogue_of_one_item_is_served() -> None:
    model = build_model("LISABase", n_items=2).double().eval()
    warm_up(recommender := Recommender(bundle_of(model, ["only"], "small")))
    assert recommender.recommend([["only"]], filter_seen=False)[0].items == ["only"]


def test_only_loopback_names_are_served_unless_others_are_allowed() -> None:
    def hosts(*arguments: str) -> frozenset[str] | None:
        return hosts_of(_parser().parse_args(["--export=x", *arguments]))

    loopback = {"localhost", "127.0.0.1", "::1"}
    assert hosts() == loopback
    assert hosts("--allowed_host=A.example", "--allowed_host=b") == loopback | {"a.example", "b"}
    assert hosts("--host=0.0.0.0") is None
    assert hosts("--host=0.0.0.0", "--allowed_host=a") == loopback | {"0.0.0.0", "a"}


def test_the_redis_url_may_come_from_the_environment(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv(REDIS_VARIABLE, "redis://:secret@localhost")
    assert _parser().parse_args(["--export=x"]).redis == "redis://:secret@localhost"
    assert "secret" not in _parser().format_help()
