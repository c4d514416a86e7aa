"""Raw item ids and their numbers: any text, a few bytes an id beyond the text itself."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

_ENCODING, _ERRORS = "utf-8", "surrogatepass"


class IdMap:
    """V distinct texts, numbered 0..V-1.

    Kept are the texts as one run of bytes, where each ends, and a sorted 64-bit hash of each to find it by: no Python
    object for every id, and loading does no work for every id either.

    Args:
        text: (bytes,) uint8, the ids in utf-8 one after the other.
        ends: (V,) int64, where each ends.
        hashes: (V,) uint64, sorted.
        order: (V,) int32, the number of the id of each hash.

    Raises:
        ValueError: the arrays do not fit each other.
    """

    def __init__(
        self,
        text: npt.NDArray[np.uint8],
        ends: npt.NDArray[np.int64],
        hashes: npt.NDArray[np.uint64],
        order: npt.NDArray[np.int32],
    ) -> None:
        if not len(ends) == len(hashes) == len(order) or (ends[-1] if len(ends) else 0) != len(text):
            raise ValueError(
                f"the id map does not fit: {len(ends)} ends, {len(hashes)} hashes, {len(order)} numbers, "
                f"{len(text)} bytes of text"
            )
        self._text, self._ends, self._hashes, self._order = text, ends, hashes, order

    @classmethod
    def from_ids(cls, ids: Iterable[str]) -> "IdMap":
        """Number ids in the order given.

        Raises:
            ValueError: an id appears twice.
        """
        encoded = [one.encode(_ENCODING, _ERRORS) for one in ids]
        if len(set(encoded)) != len(encoded):
            seen: set[bytes] = set()
            twice = next(one for one in encoded if one in seen or seen.add(one))  # type: ignore[func-returns-value]  # add gives None
            raise ValueError(f"the id {twice.decode(_ENCODING, _ERRORS)!r} appears twice")
        hashes = np.array([_hash(one) for one in encoded], dtype=np.uint64)
        order = np.argsort(hashes, kind="stable")
        return cls(
            np.frombuffer(b"".join(encoded), dtype=np.uint8),
            np.cumsum([len(one) for one in encoded], dtype=np.int64),
            hashes[order],
            order.astype(np.int32),
        )

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> "IdMap":
        """The inverse of arrays."""
        return cls(arrays["text"], arrays["ends"], arrays["hashes"], arrays["order"])

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What an export keeps."""
        return {"text": self._text, "ends": self._ends, "hashes": self._hashes, "order": self._order}

    def __len__(self) -> int:
        """V."""
        return len(self._ends)

    def number(self, raw: object) -> int:
        """The number of a raw id, -1 where there is none; what is no text counts as its text, 7 as "7"."""
        wanted = str(raw).encode(_ENCODING, _ERRORS)
        key = _hash(wanted)
        at = int(np.searchsorted(self._hashes, np.uint64(key)))
        while at < len(self) and int(self._hashes[at]) == key:
            number = int(self._order[at])
            if self._bytes(number) == wanted:
                return number
            at += 1
        return -1

    def raw(self, number: int) -> str:
        """The raw id of a number."""
        return self._bytes(number).decode(_ENCODING, _ERRORS)

    def _bytes(self, number: int) -> bytes:
        start = int(self._ends[number - 1]) if number else 0
        return self._text[start : int(self._ends[number])].tobytes()


def _hash(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
