"""Raw item ids and their numbers: any text, a few bytes per id beyond the text itself."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

_ENCODING, _ERRORS = "utf-8", "surrogatepass"
_MISSING = ("None", "nan", "NaT", "<NA>")  # of Python, numpy and pandas: no ids, unless they are texts
MAX_TRIES = 100_000  # places that a search looks at
CHECKED_IDS = 2**20  # up to so many, the hashes of arrays are computed again: 0.8 s for a million


class IdMap:
    """V distinct texts, numbered 0..V-1.

    The texts are one run of bytes, and a sorted 64-bit hash of each finds its number. There is no Python object per id.
    Arrays that do not fit each other are a ValueError.
    """

    def __init__(
        self,
        text: npt.NDArray[np.uint8],  # (bytes,), the ids in UTF-8 one after the other
        ends: npt.NDArray[np.int64],  # (V,), where each id ends
        hashes: npt.NDArray[np.uint64],  # (V,), sorted
        order: npt.NDArray[np.int32],  # (V,), the number of the id of each hash
    ) -> None:
        types = [(str(array.dtype), array.ndim) for array in (text, ends, hashes, order)]
        if types != [("uint8", 1), ("int64", 1), ("uint64", 1), ("int32", 1)]:
            raise ValueError(f"the id map does not fit: the types and dimensions of its arrays are {types}")
        n = len(ends)
        if not n == len(hashes) == len(order) or (ends[-1] if n else 0) != len(text):
            raise ValueError(f"the id map does not fit: {n} ends, {len(hashes)} hashes, {len(text)} bytes of text")
        if n and ((np.diff(ends) < 0).any() or ends[0] < 0 or order.min() < 0 or order.max() >= n):
            raise ValueError("the id map does not fit: its ends or numbers are out of range")
        # Bytes and memory views give Python's own values several times as fast as arrays do.
        self._text, self._ends, self._order = text.tobytes(), ends.data, order.data
        self._hashes = hashes

    @classmethod
    def from_ids(cls, ids: Iterable[str]) -> "IdMap":
        """Number ids in the order given; a ValueError where one appears twice."""
        encoded = [one.encode(_ENCODING, _ERRORS) for one in ids]
        return cls._numbered(b"".join(encoded), np.cumsum([*map(len, encoded)], dtype=np.int64))

    @classmethod
    def from_lines(cls, text: bytes) -> "IdMap":
        """As `from_ids`, of ids in UTF-8, one a line."""
        letters = np.frombuffer(text + b"\n", np.uint8)
        ends = np.flatnonzero(letters == ord("\n"))
        return cls._numbered(text.replace(b"\n", b""), ends - np.arange(len(ends)))

    @classmethod
    def _numbered(cls, text: bytes, ends: npt.NDArray[np.int64]) -> "IdMap":
        parts = (text[begin:end] for begin, end in pairwise(chain((0,), ends.data)))
        hashes = np.fromiter(map(_hash, parts), np.uint64, len(ends))
        order = np.argsort(hashes, kind="stable").astype(np.int32)
        hashes = hashes[order]
        ids = cls(np.frombuffer(text, np.uint8), ends, hashes, order)
        equal = np.flatnonzero(hashes[1:] == hashes[:-1])
        texts = Counter(ids.raw(number) for number in order[np.union1d(equal, equal + 1)].tolist())
        for raw, count in texts.most_common(1):
            if count > 1:
                raise ValueError(f"the id {raw!r} appears twice")
        return ids

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> "IdMap":
        """The inverse of arrays; a ValueError where an id is no text."""
        ids = cls(arrays["text"], arrays["ends"], arrays["hashes"], arrays["order"])
        ids._text.decode(_ENCODING, _ERRORS)
        starts = arrays["ends"][:-1]
        if (arrays["text"][starts[starts < len(ids._text)]] & 0xC0 == 0x80).any():
            raise ValueError("the id map does not fit: an id begins within a letter")
        if len(ids) <= CHECKED_IDS:
            again = cls._numbered(ids._text, arrays["ends"])
            if not all(np.array_equal(again.arrays()[name], arrays[name]) for name in ("hashes", "order")):
                raise ValueError("the id map does not fit: its hashes are those of other ids")
        return ids

    def with_new(self, ids: Iterable[str]) -> "IdMap":
        """A map with more ids, numbered from V on in the order given; a ValueError where one appears twice."""
        old, new = self.arrays(), IdMap.from_ids(ids).arrays()
        offsets = {"text": 0, "ends": len(self._text), "hashes": 0, "order": len(self)}
        joined = {name: np.concatenate([old[name], new[name] + offsets[name]]) for name in old}
        by_hash = np.argsort(joined["hashes"], kind="stable")
        return IdMap.from_arrays(joined | {name: joined[name][by_hash] for name in ("hashes", "order")})

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays of an export."""
        text = np.frombuffer(self._text, dtype=np.uint8)
        return {"text": text, "ends": np.asarray(self._ends), "hashes": self._hashes, "order": np.asarray(self._order)}

    def __reduce__(self) -> Any:
        """Memory views cannot be pickled or copied, arrays can."""
        return IdMap.from_arrays, (self.arrays(),)

    def __len__(self) -> int:
        """V."""
        return len(self._ends)

    def number(self, raw: object) -> int:
        """The number of a raw id, -1 where there is none; an id that is no text counts as its text, 7 as "7"."""
        return int(self.numbers([raw])[0])

    def numbers(self, raw: Sequence[object]) -> npt.NDArray[np.int64]:
        """The numbers (L,) of raw ids, as `number`."""
        texts = [str(one).encode(_ENCODING, _ERRORS) for one in raw]
        keys = np.array([_hash(one) for one in texts], dtype=np.uint64)
        first = np.searchsorted(self._hashes, keys).tolist()
        found = [self._find(*pair) for pair in zip(texts, keys.tolist(), first, strict=True)]
        numbers = np.array(found, dtype=np.int64)
        numbers[[not isinstance(one, str) and str(one) in _MISSING for one in raw]] = -1
        return numbers

    def unknown(self, raw: Sequence[object]) -> list[str]:
        """The raw ids that have no number."""
        return [str(one) for one, number in zip(raw, self.numbers(raw).tolist(), strict=True) if number < 0]

    def raw(self, number: int) -> str:
        """The raw id of a number."""
        return self._bytes(number).decode(_ENCODING, _ERRORS)

    def search(self, text: str, most: int) -> list[str]:
        """Up to `most` ids that contain a text, by number, but the id that equals the text first.

        Only MAX_TRIES places are looked at, so a text that often stands across two ids may have fewer results.
        """
        pattern = text.encode(_ENCODING, _ERRORS)
        numbers: list[int] = []
        exact = self.number(text)
        at, tries = self._text.find(pattern), 0
        while at >= 0 and len(numbers) < most and tries < MAX_TRIES:
            number = bisect_right(self._ends, at)
            if number >= len(self):
                break
            # If the first place in an id reaches beyond it, so do the later ones.
            if at + len(pattern) <= self._ends[number] and number != exact:
                numbers.append(number)
            at, tries = self._text.find(pattern, self._ends[number]), tries + 1
        return [self.raw(number) for number in ([exact] if exact >= 0 else []) + numbers][:most]

    def _find(self, text: bytes, key: int, at: int) -> int:
        """The number of a text whose hash would stand at place `at`."""
        while at < len(self._hashes) and self._hashes[at] == key:
            number = int(self._order[at])
            if self._bytes(number) == text:
                return number
            at += 1
        return -1

    def _bytes(self, number: int) -> bytes:
        return self._text[self._ends[number - 1] if number else 0 : self._ends[number]]


def _hash(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
