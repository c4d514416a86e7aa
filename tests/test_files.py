"""Files are complete or not there, and names never meet."""

import os
from pathlib import Path

import pytest

from recbole_lisa.errors import UsageError
from recbole_lisa.files import atomic_writer, check_replaceable, new_folder, probe_writing, unique_run_name


def test_atomic_writer_writes_the_file_and_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.bin"
    with atomic_writer(path) as stream:
        stream.write(b"content")
        assert not path.exists()
    assert path.read_bytes() == b"content"
    assert list(path.parent.iterdir()) == [path]


def test_atomic_writer_keeps_the_old_file_when_the_writing_is_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), atomic_writer(path) as stream:
        stream.write(b"half of the new")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_atomic_writer_gives_the_file_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "usual").write_bytes(b"")
    with atomic_writer(tmp_path / "atomic") as stream:
        stream.write(b"x")
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_unique_run_name_differs_within_one_second() -> None:
    names = {unique_run_name("LISASoft", "ml-100k") for _ in range(10_000)}
    assert len(names) == 10_000
    assert all(name.startswith("LISASoft-ml-100k-") for name in names)


@pytest.mark.parametrize("dataset", ["shop.v2", "a/b"])
def test_unique_run_name_is_one_folder_name_that_recbole_does_not_cut(dataset: str) -> None:
    name = unique_run_name("LISASoft", dataset)
    assert "." not in name
    assert "/" not in name


def test_probe_leaves_nothing_behind_and_keeps_a_file_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    for name in ("file", "new", "deep/er/new"):
        probe_writing(tmp_path / name)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.parametrize("name", ["file/below", "file/far/below", "n" * 300])
def test_probe_fails_where_writing_would(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="Not a directory|File name too long"):
        probe_writing(tmp_path / name)
    with pytest.raises(OSError, match="Not a directory|File name too long|File exists"), atomic_writer(tmp_path / name):
        pass
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


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


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="Is no regular file"):
        probe_writing(pipe)
    with pytest.raises(OSError, match="Is no regular file"), atomic_writer(pipe):
        raise AssertionError("nothing is written")
    assert pipe.is_fifo()


def starts_with_mine(path: Path) -> bool:
    return path.read_text(encoding="utf-8").startswith("mine")


def replaceable(path: Path) -> None:
    check_replaceable(path, starts_with_mine, name="plan", content="a plan of mine")


@pytest.mark.parametrize("content", [None, b"", b"mine, older"])
def test_nothing_an_empty_file_and_an_own_one_may_be_replaced(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "deep" / "plan" if content is None else tmp_path / "plan"
    if content is not None:
        path.write_bytes(content)
    replaceable(path)
    assert (path.read_bytes() if path.exists() else None) == content
    assert [place.name for place in tmp_path.iterdir()] == ([] if content is None else ["plan"])


@pytest.mark.parametrize("content", [b"yours", b"\xff\xfe"])
def test_what_somebody_else_wrote_is_not_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "plan"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"plan '.*plan' exists and is not a plan of mine, .*; name another file"):
        replaceable(path)
    assert path.read_bytes() == content


def test_a_folder_a_pipe_and_a_place_without_access_are_no_place_for_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (tmp_path, "is a folder; name a file in it"),
        (tmp_path / "pipe", r"cannot be written \(Is no regular file\)"),
        (tmp_path / "pipe" / "plan", r"cannot be written \(Not a directory\)"),
    ):
        with pytest.raises(UsageError, match=message):
            replaceable(path)
