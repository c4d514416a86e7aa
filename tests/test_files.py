"""Files are complete or not there, and names never meet."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from recbole_lisa.cli.compare_command import read_per_user
from recbole_lisa.cli.report_command import read_result
from recbole_lisa.config.config import LISAConfig
from recbole_lisa.config.schema import read_yaml
from recbole_lisa.datasets.obtain import ensure_data
from recbole_lisa.datasets.source import open_raw
from recbole_lisa.errors import UsageError
from recbole_lisa.files import (
    atomic_writer,
    check_output,
    locked,
    new_folder,
    probe_writing,
    resolved,
    unique_run_name,
)
from recbole_lisa.quick_start import check_run
from recbole_lisa.serving.tables import read_ids
from recbole_lisa.training.checkpoint_file import load_checkpoint
from tests.helpers import run_python


def test_atomic_writer_writes_the_file_and_its_folders_with_the_usual_permissions(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.bin"
    (tmp_path / "usual").write_bytes(b"")
    with atomic_writer(path) as stream:
        stream.write(b"content")
        assert not path.exists()
    assert path.read_bytes() == b"content"
    assert list(path.parent.iterdir()) == [path]
    assert path.stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_atomic_writer_keeps_the_old_file_when_the_writing_is_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), atomic_writer(path) as stream:
        stream.write(b"half of the new")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught, atomic_writer(tmp_path / "file"):
        try:
            raise OSError(28, "No space left on device")
        except OSError as error:
            raise RuntimeError("as torch.save does") from error
    assert caught.value.filename == str(tmp_path / "file")
    with pytest.raises(OSError, match="other") as caught, atomic_writer(tmp_path / "file"):
        raise FileNotFoundError(2, "No such file", "other")
    assert caught.value.filename == "other"
    with pytest.raises(OSError, match="the stream is closed: '.*file'"), atomic_writer(tmp_path / "file"):
        raise OSError("the stream is closed")  # without a number


def test_a_file_that_another_process_has_written_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(name: str, text: bytes) -> str:
        with atomic_writer(tmp_path / name, overwrite=False) as stream:
            stream.write(text)
        assert not list(tmp_path.glob(".*"))
        return stream.path.name

    (tmp_path / "empty").touch()
    assert [write("empty", b"0"), write("a.b", b"1"), write("a.b", b"2")] == ["empty", "a.b", "a-2.b"]
    monkeypatch.setattr("os.link", Mock(side_effect=OSError(95, "Operation not supported")))
    assert [write("a.b", b"3"), write("new", b"4")] == ["a-3.b", "new"]
    assert [(tmp_path / name).read_bytes() for name in ("empty", "a.b", "a-2.b", "a-3.b")] == [b"0", b"1", b"2", b"3"]


def test_unique_run_name_differs_within_one_second_and_is_one_folder_name_that_recbole_does_not_cut() -> None:
    names = {unique_run_name("LISASoft", dataset) for dataset in ("ml-100k", "shop.v2", "a/b") for _ in range(3000)}
    assert len(names) == 9000
    assert all(name.startswith("LISASoft-") and not {".", "/"} & set(name) for name in names)


@pytest.mark.parametrize("name", ["file/below", "file/far/below", "n" * 300, "pipe"])
def test_probe_leaves_nothing_behind_and_fails_where_writing_would(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"old")
    os.mkfifo(tmp_path / "pipe")
    for good in ("file", "new", "deep/er/new"):
        probe_writing(tmp_path / good)
    with pytest.raises(OSError, match="Not a directory|File name too long|Is no regular file"):
        probe_writing(tmp_path / name)
    reasons = "Not a directory|File name too long|File exists|Is no regular file"
    with pytest.raises(OSError, match=reasons), atomic_writer(tmp_path / name):
        raise AssertionError("nothing is written")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "file", tmp_path / "pipe"]
    assert (tmp_path / "file").read_bytes() == b"old" and (tmp_path / "pipe").is_fifo()


def test_new_folders_vanish_when_the_work_fails_unless_something_lies_there(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    for deep in (tmp_path / "old" / "a" / "b", tmp_path / "c"):
        with pytest.raises(RuntimeError, match="stop"), new_folder(deep) as folder:
            assert folder.is_dir()
            raise RuntimeError("stop")
    assert [path.name for path in tmp_path.rglob("*")] == ["old"]
    with pytest.raises(RuntimeError, match="stop"), new_folder(tmp_path / "c"):
        (tmp_path / "c" / "kept").touch()
        raise RuntimeError("stop")
    assert (tmp_path / "c" / "kept").exists()


def test_an_output_that_exists_needs_overwrite(tmp_path: Path) -> None:
    (tmp_path / "void").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "plan").write_bytes(b"older")
    before = sorted(tmp_path.rglob("*"))
    for name, folder in (("void", False), ("deep/new", False), ("empty", True), ("new", True), ("deep/new", True)):
        check_output(tmp_path / name, overwrite=False, folder=folder)
    for name, folder, message in (
        ("full", True, r"full' has files in it: pass overwrite=True .*, or name another folder"),
        ("full/plan", False, r"'.*plan' exists: pass overwrite=True to replace it, or name another file"),
    ):
        with pytest.raises(UsageError, match=message):
            check_output(tmp_path / name, overwrite=False, folder=folder)
        check_output(tmp_path / name, overwrite=True, folder=folder)
        with pytest.raises(UsageError, match="overwrite must be True or False, got 'False'"):
            check_output(tmp_path / name, overwrite="False", folder=folder)  # type: ignore[arg-type]  # a user's mistake
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "full" / "plan").read_bytes() == b"older"


def _lines(path: Path) -> list[bytes]:
    with open_raw(path) as raw:
        return raw.stream.readlines()


@pytest.mark.parametrize("read", [read_yaml, read_result, read_per_user, read_ids, _lines])
def test_a_device_is_no_input(read: Callable[[Path], Any]) -> None:  # /dev/zero would have no end
    with pytest.raises(UsageError, match="'/dev/null'.*: is not a regular file"):
        read(Path("/dev/null"))


def test_a_pipe_is_no_table_and_has_settings_and_ids(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe': is not a regular file"):
        _lines(tmp_path / "pipe")
    for read, text in ((read_yaml, "epochs: 2"), (read_ids, "a\nb")):
        writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(text,))
        writer.start()
        assert read(tmp_path / "pipe") == ({"epochs": 2} if read is read_yaml else ["a", "b"])
        writer.join()


def test_a_name_that_the_locale_cannot_write_is_named() -> None:
    message = r"the checkpoint is 'a\\ud800', but the encoding utf-8 of .* lacks '\\ud800': set PYTHONUTF8=1"
    with pytest.raises(UsageError, match=message):
        load_checkpoint("a\ud800")
    report = "from recbole_lisa.training.checkpoint_file import load_checkpoint as f; f('\\u65e5.pth')"
    errors = run_python(report, status=1, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")[1]
    assert "encoding ascii of this locale's file names lacks '\\u65e5': set PYTHONUTF8=1" in errors


def test_an_output_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    for path, folder, message in (
        ("", False, "the path of the output is empty: name a file"),
        (" ", True, "the path of the output is empty: name a folder"),
        (tmp_path, False, "is a folder: name a file in it"),
        (tmp_path / "file", True, "is a file: name a folder"),
        (tmp_path / "pipe", False, r"cannot be written \(Is no regular file\)"),
        (tmp_path / "pipe", True, r"cannot be written \(Not a directory\)"),
        (tmp_path / "file" / "plan", False, r"cannot be written \(Not a directory\)"),
        (tmp_path / ("n" * 300), False, r"cannot be written \(File name too long\)"),
        (tmp_path / "file" / "plan", True, r"cannot be written \(Not a directory\)"),
        *([("/proc/plan", False, "'/proc/plan' cannot be written")] if Path("/proc/self").is_dir() else []),
    ):
        with pytest.raises(UsageError, match=message):
            check_output(path, overwrite=True, folder=folder)
    monkeypatch.setattr(Path, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(UsageError, match=r"plan' cannot be written \(Permission denied\): name another file"):
        check_output(tmp_path / "plan", overwrite=True)


def test_a_lock_is_refused_to_a_second_process_and_ends_with_the_first(tmp_path: Path) -> None:
    lock = tmp_path / "run.lock"
    code = f"from recbole_lisa.files import *\nwith locked(Path({str(lock)!r}), ''): print('held', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match="busy"), locked(lock, "busy"):
            pass
        other.kill()
    with locked(lock, "busy"):
        pass
    assert not lock.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links")
def test_links_in_a_circle_are_resolved_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert resolved(tmp_path / "loop") == resolved(tmp_path) / "loop"
    (tmp_path / "data" / "loop").mkdir(parents=True)
    (tmp_path / "data" / "loop" / "loop.inter").symlink_to("loop.inter")
    config = LISAConfig("LISASoft", "loop", config_dict={"data_path": str(tmp_path / "data")})
    check_run(config)
    with pytest.raises(UsageError, match=r"there is no file .*loop.inter"):
        ensure_data(config)
