import math
import tracemalloc

import numpy as np
import pandas as pd
import pytest

from recbole_lisa.serving import ids as id_map
from recbole_lisa.serving.ids import IdMap

STRANGE = ["", " ", "a", "A", "a ", "7", "07", "é", "e\u0301", "\t\n\0", "[PAD]", "NA", "🎬 film", "\ud800"]
STRANGE += ['"', ",", "x" * 5000]


def test_any_text_has_its_number_and_the_arrays_make_the_same_map() -> None:
    ids = IdMap.from_ids(STRANGE)
    for one in (ids, IdMap.from_arrays(ids.arrays())):
        assert len(one) == len(STRANGE)
        assert [one.number(raw) for raw in STRANGE] == list(range(len(STRANGE)))
        assert [one.raw(number) for number in range(len(STRANGE))] == STRANGE
    assert ids.number("b") == ids.number("aa") == -1
    assert ids.number(7) == STRANGE.index("7")
    assert len(IdMap.from_ids([])) == 0
    assert IdMap.from_ids([]).number("a") == -1


def test_a_missing_value_is_no_id_though_its_text_is_one() -> None:
    ids = IdMap.from_ids(["None", "nan", "NaT", "<NA>", "7"])
    missing = [None, math.nan, np.float32("nan"), np.datetime64("NaT"), pd.NaT, pd.NA]
    assert ids.numbers([*missing, "None", "nan", "NaT", "<NA>", 7]).tolist() == [-1] * 6 + list(range(5))
    assert ids.unknown([None, "nan"]) == ["None"]


def test_lines_are_numbered_in_a_few_bytes_an_id() -> None:
    raw = [f"product-{i}" for i in range(50_000)]
    text, expected = "\n".join(raw).encode(), IdMap.from_ids(raw)
    tracemalloc.start()
    ids = IdMap.from_lines(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * len(text) + 50 * len(raw)  # a Python text takes 60
    assert all(np.array_equal(*pair) for pair in zip(ids.arrays().values(), expected.arrays().values(), strict=True))
    with pytest.raises(ValueError, match="the id 'b' appears twice"):
        IdMap.from_lines(b"a\nb\nb")


def test_equal_hashes_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_map, "_hash", lambda text: len(text) % 2)
    ids = IdMap.from_ids(STRANGE)
    assert [ids.number(raw) for raw in STRANGE] == list(range(len(STRANGE)))
    assert ids.number("zz") == -1


def test_arrays_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match="the id 'b' appears twice"):
        IdMap.from_ids(["a", "b", "b"])
    arrays = IdMap.from_ids(["a", "bc"]).arrays()
    ends, order = arrays["ends"], arrays["order"]
    for change, message in (
        ({"text": np.array([0x61, 0x62, 0xFF], np.uint8)}, "'utf-8' codec can't decode byte 0xff"),
        ({"text": np.array([0xC3, 0xA4, 0x61], np.uint8)}, "an id begins within a letter"),
        ({"text": arrays["text"][:2]}, "2 ends, 2 hashes, 2 bytes of text"),
        ({"ends": ends[::-1]}, "does not fit"),
        ({"order": order + 1}, "does not fit: its ends or numbers are out of range"),
        ({"ends": ends.astype("f8")}, "does not fit"),
        ({"hashes": arrays["hashes"] // 2}, "its hashes are those of other ids"),
        ({"order": order[::-1].copy()}, "its hashes are those of other ids"),
        ({"text": np.frombuffer(b"aaa", np.uint8), "ends": np.array([1, 2])}, "does not fit"),
        ({"text": np.frombuffer(b"aa", np.uint8), "ends": np.array([1, 2])}, "the id 'a' appears twice"),
    ):
        with pytest.raises(ValueError, match=message):
            IdMap.from_arrays(arrays | change)


def test_a_map_takes_20_bytes_an_id_beyond_the_text() -> None:
    raw = [f"product-{i}" for i in range(1000)]
    arrays = IdMap.from_ids(raw).arrays()
    assert sum(array.nbytes for array in arrays.values()) == sum(map(len, raw)) + 1000 * (8 + 8 + 4)
    assert arrays["hashes"].dtype == np.uint64
