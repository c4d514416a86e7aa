"""Whatever an atomic file holds, a run ends in the right result or in one line with exit status 2."""

import contextlib
import functools
import io
import math
import shutil
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recbole_lisa.cli.main import main
from recbole_lisa.config.config import LISAConfig
from recbole_lisa.data.dataset import create_dataset
from recbole_lisa.errors import UsageError

hypothesis = pytest.importorskip("hypothesis", reason="comes with the extra `test`")
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

COLUMNS = {"user": "user_id:token", "item": "item_id:token", "time": "timestamp:float", "more": "more:token"}
ODD_TEXTS = ["NA", "null", "[PAD]", "", " ", '"', '""', 'a"b', "'", "\\", "#", "nan", "0", "00", "-1", "1e3", "😀"]
ODD_TIMES = ["", "nan", "NA", "inf", "-inf", "1e400", "abc", "2020-01-01", "0x10", "1e-320", "9" * 30, "1,5", " 7 "]

letters = st.characters(blacklist_categories=["Cs"])
texts = st.one_of(
    st.sampled_from(["a", "b", "c", "d"]),
    st.sampled_from(ODD_TEXTS),
    st.text(letters, max_size=6),
    st.text(st.sampled_from("\t,;|:\n\r\0\"' a\ufeff\x1a\x85\u2028"), max_size=4),
    st.just("x" * 5000),
)
numbers = st.one_of(st.integers(-(2**40), 2**60), st.integers(0, 9), st.floats(allow_nan=False, allow_infinity=False))
times = st.one_of(numbers.map(repr), numbers.map(repr), st.sampled_from(ODD_TIMES))


@dataclass(frozen=True)
class OddFile:
    """An atomic file: user, item, time and another cell of each row, and how they are written."""

    rows: list[tuple[str, str, str, str]]
    columns: list[str]
    separator: str
    line_end: str
    encoding: str
    ends: bool  # whether the last line has an end

    def content(self) -> bytes:
        cells = [[COLUMNS[name] for name in self.columns]]
        cells += [[dict(zip(COLUMNS, row, strict=True))[name] for name in self.columns] for row in self.rows]
        content = "".join(self.separator.join(row) + self.line_end for row in cells)
        return (content if self.ends else content.removesuffix(self.line_end)).encode(self.encoding)

    @property
    def is_plain(self) -> bool:
        """Whether each cell is separate from its neighbours, so that the meaning of the file is clear."""
        marks = ["\n", "\r", "\0", self.separator, *(["\x1f"] if len(self.separator.encode()) > 1 else [])]
        cells = [cell for row in self.rows for cell in row]
        return not any(mark in cell for cell in cells for mark in marks)


files = st.builds(
    OddFile,
    rows=st.lists(st.tuples(texts, texts, times, texts), max_size=25),
    columns=st.one_of(st.just(list(COLUMNS)), st.permutations(list(COLUMNS)), st.just(["user", "item", "time"])),
    separator=st.sampled_from(["\t", "\t", "\t", ",", ";", "|", " ", "::", "||", "\x1f", "ü"]),
    line_end=st.sampled_from(["\n", "\n", "\r\n"]),
    encoding=st.sampled_from(["utf-8", "utf-8", "utf-8-sig"]),
    ends=st.booleans(),
)
"""Files with odd cells, separators, line ends and sizes."""

plain_texts = st.sampled_from([*"abcd", "NA", "[PAD]", "007", "7", "😀", " b", "x" * 300])
working_files = st.builds(
    OddFile,
    rows=st.lists(st.tuples(plain_texts, plain_texts, st.integers(-5, 2**40).map(str), plain_texts), max_size=60),
    columns=st.permutations(list(COLUMNS)),
    separator=st.sampled_from(["\t", ",", "|", "::", "||"]),
    line_end=st.sampled_from(["\n", "\r\n"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig"]),
    ends=st.booleans(),
)
"""Files that mean what they say; most of them can be trained on."""

TINY = {
    **{"use_gpu": False, "epochs": 1, "hidden_size": 8, "inner_size": 8, "MAX_ITEM_LIST_LENGTH": 5, "topk": [1]},
    **{"valid_metric": "NDCG@1", "metrics": ["NDCG"], "show_progress": False, "state": "ERROR"},
}


def meant_histories(file: OddFile) -> dict[str, list[str]]:
    """What the rows say: each user's items by time, equal times in file order; rows without an id are left out."""
    histories: dict[str, list[str]] = {}
    for user, item, _, _ in sorted(file.rows, key=lambda row: float(row[2])):
        if user and item:
            histories.setdefault(user, []).append(item)
    return histories


def read_histories(config: LISAConfig) -> dict[str, list[str]]:
    data = create_dataset(config)
    store = data.build()[0].histories
    items = np.split(data.id2token("item_id", store.items), store.offsets[1:-1])
    return dict(zip(data.id2token("user_id", store.users), map(list, items), strict=True))


def has_numbers_as_times(file: OddFile) -> bool:
    try:
        return all(math.isfinite(float(row[2])) for row in file.rows)
    except ValueError:
        return False


def check(file: OddFile, folder: Path) -> None:
    """Run the command on a file, in a folder that is empty again afterwards."""
    (folder / "dataset" / "odd").mkdir(parents=True)
    (folder / "dataset" / "odd" / "odd.inter").write_bytes(file.content())
    options = {**TINY, "field_separator": file.separator}
    arguments = ["-m", "Transformer", "-d", "odd", *(f"--{key}={value}" for key, value in options.items())]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            status = main(arguments)
        assert status in (0, 2)
        if status == 2:
            assert said.getvalue().splitlines()[-1].startswith("error: ")
        if file.is_plain and has_numbers_as_times(file):
            histories = meant_histories(file)
            # Two items to draw negatives from, and a history with an item to train, validate and test.
            can_be_run = len(set(chain(*histories.values()))) >= 2 and max(map(len, histories.values())) >= 4
            assert (status == 0) == can_be_run, said.getvalue()
            if status == 0:
                assert read_histories(LISAConfig("Transformer", "odd", config_dict=options)) == histories
    finally:
        for path in folder.iterdir():
            shutil.rmtree(path)


@functools.cache
def config_of_odd() -> LISAConfig:
    """Settings for `odd/odd.inter` below the working folder, read once."""
    return LISAConfig("Transformer", "odd", config_dict={**TINY, "data_path": "."})


def examples(count: int) -> Any:
    ignored = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=count, deadline=None, suppress_health_check=ignored, derandomize=True, database=None)


@examples(40)
@given(file=st.one_of(files, working_files))
def test_odd_files_end_right_or_in_one_line(isolated_run_dir: Path, file: OddFile) -> None:
    check(file, isolated_run_dir)


@pytest.mark.slow
@examples(600)
@given(file=st.one_of(files, files, working_files))
def test_hundreds_of_odd_files_end_right_or_in_one_line(isolated_run_dir: Path, file: OddFile) -> None:
    check(file, isolated_run_dir)


@pytest.mark.slow
@examples(1000)
@given(content=st.one_of(st.binary(max_size=200), st.text(letters, max_size=200).map(str.encode)), head=st.booleans())
def test_arbitrary_bytes_are_refused_in_one_line(isolated_run_dir: Path, content: bytes, head: bool) -> None:
    (isolated_run_dir / "odd").mkdir(exist_ok=True)
    start = b"user_id:token\titem_id:token\ttimestamp:float\n" if head else b""
    (isolated_run_dir / "odd" / "odd.inter").write_bytes(start + content)
    with contextlib.suppress(UsageError):
        create_dataset(config_of_odd()).build()
