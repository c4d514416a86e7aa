"""Downloads from a server on this machine that breaks off, lies, refuses or says nothing."""

import contextlib
import functools
import hashlib
import io
import shutil
import socket
import threading
import time
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pytest import CaptureFixture, MonkeyPatch

from recbole_lisa.cli.main import main
from recbole_lisa.datasets import download as module
from recbole_lisa.datasets.download import DownloadError, download
from recbole_lisa.errors import UsageError
from recbole_lisa.quick_start import run
from tests.helpers import refusal
from tests.tiny import TinyModel

CONTENT = np.random.default_rng(1).bytes(3_000_000)
HEAD = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"


@dataclass
class Publisher:
    """What the server serves, and the number of requests so far."""

    content: bytes
    break_after: list[int] = field(default_factory=list)  # bytes of each coming answer; then answers are whole
    status: int = 200  # another status refuses every request
    silent: bool = False  # never answer
    requests: int = 0

    def __enter__(self) -> "Publisher":
        self.released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"publisher": self}))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/ml-1m.zip"
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    publisher: Publisher

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
        self.publisher.requests += 1
        if self.publisher.silent:
            self.publisher.released.wait(20)
        elif self.publisher.status != 200:
            self.send_error(self.publisher.status)
        else:
            # taken before the answer starts: after its head the client may send the next request at once
            length = self.publisher.break_after.pop(0) if self.publisher.break_after else None
            self.send_response(200)
            self.send_header("Content-Length", str(len(self.publisher.content)))
            self.end_headers()
            with contextlib.suppress(OSError):  # the client may close the connection
                self.wfile.write(self.publisher.content[:length])

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr("pooch.core.time.sleep", lambda _: None)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def dead_url() -> str:
    """An address where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/ml-1m.zip"


def md5(content: bytes) -> str:
    return f"md5:{hashlib.md5(content).hexdigest()}"


@functools.cache
def archive() -> bytes:
    """A small ml-1m.zip: 12 users walk around a circle of 12 items."""
    lines = [f"{user}::{(user + step) % 12}::5::{step}" for user in range(12) for step in range(9)]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as stream:
        stream.writestr("ml-1m/ratings.dat", "\n".join(lines) + "\n")
    return packed.getvalue()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_comes_whole_and_checked_or_not_at_all(tmp_path: Path) -> None:
    with Publisher(CONTENT) as publisher:
        checksums = (md5(CONTENT), f"sha256:{hashlib.sha256(CONTENT).hexdigest()}", None)
        for name, checksum in zip("abc", checksums, strict=True):
            download(publisher.url, tmp_path / "new" / name, checksum)
            assert (tmp_path / "new" / name).read_bytes() == CONTENT
        with pytest.raises(DownloadError) as caught:
            download(publisher.url, tmp_path / "other" / "d", "md5:" + "0" * 32)
    assert "does not match the known hash" in str(caught.value) and md5(CONTENT)[4:] in str(caught.value)
    assert (names(tmp_path), names(tmp_path / "new")) == (["new"], ["a", "b", "c"])


def test_a_transfer_that_breaks_off_is_started_again_three_times(tmp_path: Path) -> None:
    with Publisher(CONTENT, break_after=[len(CONTENT), 1_000_000, 0]) as publisher:
        download(publisher.url, tmp_path / "a.zip", None)
        assert (tmp_path / "a.zip").read_bytes() == CONTENT
        assert publisher.requests == 4
        publisher.break_after = [1000] * 9
        with pytest.raises(DownloadError, match="cannot download http.*Connection broken: IncompleteRead"):
            download(publisher.url, tmp_path / "new" / "a.zip", md5(CONTENT))
        assert publisher.requests == 4 + 5
    assert names(tmp_path) == ["a.zip"]


def test_no_answer_ends_in_seconds_and_leaves_nothing(tmp_path: Path, monkeypatch: MonkeyPatch, dead_url: str) -> None:
    monkeypatch.setattr(module, "_ANSWER_SECONDS", 0.3)
    started = time.perf_counter()
    with Publisher(CONTENT, silent=True) as silent:
        for url, message in (
            (dead_url, "cannot download http://127.*Connection refused"),
            ("http://no-such-host.invalid/a.zip", "cannot download http://no-such-host.invalid/a.zip: "),
            (silent.url, "no answer within 0.3 seconds"),
        ):
            with pytest.raises(DownloadError, match=message):
                download(url, tmp_path / "new" / "a.zip", md5(CONTENT))
    assert time.perf_counter() - started < 5
    assert names(tmp_path) == []


def test_a_refusal_is_an_error_with_its_status(tmp_path: Path) -> None:
    with Publisher(CONTENT) as publisher:
        for publisher.status in (403, 404, 503):
            with pytest.raises(DownloadError, match=f": {publisher.status} (Client|Server) Error: "):
                download(publisher.url, tmp_path / "new" / "a.zip", None)
        assert publisher.requests == 3
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("url", "target", "checksum", "message"),
    [
        *(
            (url, "a", None, f"archive_url is '{url}', it must begin with http:// or https://")
            for url in ("file:///etc/passwd", "ftp://a/b", "a/b.zip", "")
        ),
        ("http://", "a", None, "cannot download http://: Invalid URL 'http://': No host supplied"),
        ("https://a/b", "a", "crc:1", "archive_checksum is 'crc:1', it must be md5:<hex> or sha256:<hex>"),
        ("https://a/b", "a", "md5:xyz", "archive_checksum is 'md5:xyz'"),
        ("https://a/b", "file/a.zip", None, "cannot write '.*file/a.zip'"),
    ],
)
def test_a_useless_address_place_or_checksum_is_refused(
    tmp_path: Path, url: str, target: str, checksum: str | None, message: str
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=message):
        download(url, tmp_path / target, checksum)


TINY = {
    **{"use_gpu": False, "show_progress": False, "epochs": 1, "topk": [5], "valid_metric": "NDCG@5"},
    **{"user_inter_num_interval": "[2,inf)", "item_inter_num_interval": "[2,inf)"},
}


def go(publisher_url: str, checksum: str, **settings: Any) -> dict[str, Any]:
    own = {**TINY, "archive_url": publisher_url, "archive_checksum": checksum}
    return run(TinyModel, "ml-1m", config_dict={**own, **settings})


def test_a_run_fetches_what_it_lacks_once_and_goes_on(isolated_run_dir: Path, dead_url: str) -> None:
    content = archive()
    with Publisher(content) as publisher:
        with pytest.raises(UsageError, match="needs the file dataset/ml-1m/ml-1m.inter"):
            go(publisher.url, md5(content), download=False)
        assert publisher.requests == 0
        first = go(publisher.url, md5(content))
        requests = publisher.requests
        second = go(publisher.url, md5(content))
        assert publisher.requests == requests
    assert first["loss"] == second["loss"]
    assert names(Path("dataset")) == ["ml-1m", "ml-1m.zip"]
    assert Path("dataset/ml-1m/ml-1m.inter").read_text().startswith(HEAD + "0\t0\t5\t0\n")
    log = Path(first["log"]).read_text()
    assert f"downloaded {publisher.url} to dataset/ml-1m.zip, its checksum is right" in log
    assert "read ml-1m.zip (ratings.dat): 108 rows, 12 users, 12 items" in log
    assert "downloaded" not in Path(second["log"]).read_text()
    # The archive is still there: it is used when it is the publisher's.
    shutil.rmtree("dataset/ml-1m")
    with pytest.raises(UsageError, match=r"dataset/ml-1m\.zip is not what its publisher gives, its md5 is .*delete it"):
        go(dead_url, "md5:" + "0" * 32)
    assert "found dataset/ml-1m.zip" in Path(go(dead_url, md5(content))["log"]).read_text()


def test_no_network_is_one_line(isolated_run_dir: Path, capsys: CaptureFixture[str], dead_url: str) -> None:
    started = time.perf_counter()
    errors = refusal(capsys, main(["-m", "LISASoft", "-d", "ml-1m", f"--archive_url={dead_url}"]))
    assert time.perf_counter() - started < 10
    assert errors.startswith(f"error: cannot download {dead_url}: Connection refused. Or get ml-1m.zip from https://")
    assert errors.endswith("and run: recbole-lisa convert ml-1m ml-1m.zip --output dataset/ml-1m\n")
    assert names(isolated_run_dir) == []


def test_the_command_downloads_and_prints(isolated_run_dir: Path, capsys: CaptureFixture[str]) -> None:
    content = archive()
    with Publisher(content) as publisher:
        arguments = ["download", "ml-1m", "--data_path=d", "--archive_url", publisher.url]
        assert main([*arguments, "--archive_checksum", md5(content)]) == 0
        assert capsys.readouterr().out.splitlines() == [
            f"downloaded {publisher.url} to d/ml-1m.zip, its checksum is right",
            "read ml-1m.zip (ratings.dat): 108 rows, 12 users, 12 items",
            "wrote d/ml-1m/ml-1m.inter: 108 rows, 12 users, 12 items",
        ]
        assert main(arguments) == 2
        message = "error: 'd/ml-1m/ml-1m.inter' exists: add --overwrite to replace it, or name another file\n"
        assert capsys.readouterr().err == message
        requests = publisher.requests
        assert main([*arguments, "--archive_checksum", md5(content), "--overwrite"]) == 0
    assert publisher.requests == requests
