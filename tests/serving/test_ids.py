import numpy as np
import pytest

from recbole_lisa.serving import ids as id_map
from recbole_lisa.serving.ids import IdMap

STRANGE = [
    "",
    " ",
    "a",
    "A",
    "a ",
    "7",
    "07",
    "é",
    "e\u0301",
    "\t\n\0",
    "[PAD]",
    "NA",
    "🎬 film",
    "\ud800",
    '"',
    ",",
    "x" * 5000,
]


def test_any_text_is_found_under_its_number() -> None:
    ids = IdMap.from_ids(STRANGE)
    assert len(ids) == len(STRANGE)
    for number, raw in enumerate(STRANGE):
        assert ids.number(raw) == number
        assert ids.raw(number) == raw
    assert ids.number("b") == ids.number("aa") == -1
    assert ids.number(7) == STRANGE.index("7")


def test_the_arrays_make_the_same_map() -> None:
    again = IdMap.from_arrays(IdMap.from_ids(STRANGE).arrays())
    assert [again.raw(n) for n in range(len(STRANGE))] == STRANGE
    assert all(array.dtype != object for array in again.arrays().values())


def test_equal_hashes_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_map, "_hash", lambda text: len(text) % 2)
    ids = IdMap.from_ids(STRANGE)
    assert [ids.number(raw) for raw in STRANGE] == list(range(len(STRANGE)))
    assert ids.number("zz") == -1


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="the id 'b' appears twice"):
        IdMap.from_ids(["a", "b", "b"])
    arrays = IdMap.from_ids(["a", "bc"]).arrays()
    with pytest.raises(ValueError, match="2 ends, 2 hashes, 2 bytes of text"):
        IdMap.from_arrays(arrays | {"text": arrays["text"][:2]})
    for change in (
        {"ends": arrays["ends"][::-1]},
        {"order": arrays["order"] + 1},
        {"ends": arrays["ends"].astype("f8")},
    ):
        with pytest.raises(ValueError, match="the id map does not fit"):
            IdMap.from_arrays(arrays | change)
    assert len(IdMap.from_ids([])) == 0
    assert IdMap.from_ids([]).number("a") == -1


def test_a_map_takes_few_bytes_beyond_the_text() -> None:
    raw = [f"product-{i}" for i in range(1000)]
    size = sum(array.nbytes for array in IdMap.from_ids(raw).arrays().values())
    assert size == sum(map(len, raw)) + 1000 * (8 + 8 + 4)
    assert IdMap.from_ids(raw).arrays()["hashes"].dtype == np.uint64
