"""Files are complete or not there, and names never meet."""

import os
from pathlib import Path

import pytest

from recbole_lisa.errors import UsageError
from recbole_lisa.files import atomic_writer, check_output, new_folder, probe_writing, unique_run_name


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


@pytest.mark.parametrize("content", [None, b"", b"older"])
def test_an_output_that_exists_needs_overwrite(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / ("deep/plan" if content is None else "plan")
    if content is not None:
        path.write_bytes(content)
    if content:
        with pytest.raises(UsageError, match=r"'.*plan' exists: add --overwrite to replace it, or name another file"):
            check_output(path, overwrite=False)
    else:
        check_output(path, overwrite=False)
    check_output(path, overwrite=True)
    assert (path.read_bytes() if path.exists() else None) == content
    assert [place.name for place in tmp_path.iterdir()] == ([] if content is None else ["plan"])


def test_an_output_folder_with_files_needs_overwrite(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "plan").touch()
    for name in ("new", "deep/new", "empty"):
        check_output(tmp_path / name, overwrite=False, folder=True)
    with pytest.raises(UsageError, match=r"full' has files in it: add --overwrite .*, or name another folder"):
        check_output(tmp_path / "full", overwrite=False, folder=True)
    check_output(tmp_path / "full", overwrite=True, folder=True)
    assert sorted(place.name for place in tmp_path.rglob("*")) == ["empty", "full", "plan"]


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

    def refuse(*arguments: object, **settings: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UsageError, match=r"plan' cannot be written \(Permission denied\): name another file"):
        check_output(tmp_path / "plan", overwrite=True)
