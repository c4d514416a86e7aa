"""Tokens as one run of bytes, which a file may hold: a few bytes per token, where a Python text takes sixty."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from recbole_lisa.errors import UsageError

ENCODING = ("utf-8", "surrogatepass")
_HASH_KEYS = ("0123456789abcdef", "fedcba9876543210")


class Tokens:
    """The tokens of a column by number, read like RecBole's array of texts; number 0 is padding.

    text (bytes,) uint8 holds the tokens from 1 on in UTF-8, a NUL after each; ends (V - 1,) int64 where each NUL ends.
    """

    def __init__(self, text: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> None:
        self.text, self.ends = text, ends

    def __len__(self) -> int:
        """V, padding included."""
        return len(self.ends) + 1

    def __getitem__(self, index: Any) -> Any:
        """A text for a number, an array of texts for an array of numbers or a slice."""
        if isinstance(index, slice):
            index = range(len(self))[index]
        if np.ndim(index):
            return np.array([self[number] for number in index], dtype=object)
        number = range(len(self))[index]
        begin, end = (int(self.ends[place]) if place >= 0 else 0 for place in (number - 2, number - 1))
        return self.text[begin : end - 1].tobytes().decode(*ENCODING) if number else "[PAD]"


def joined_tokens(tokens: Any, separator: str) -> bytes:
    """The tokens of a column from 1 on, in UTF-8, with a separator of one byte between two."""
    if isinstance(tokens, Tokens):
        return tokens.text.tobytes()[:-1].replace(b"\0", separator.encode())
    return separator.join(map(str, tokens[1:])).encode(*ENCODING)


class TokenNumbers(dict[str, dict[str, int]]):
    """RecBole's `field2token_id`. The dictionary of a column, with an object per token, is made at its first use."""

    def __init__(self, tokens: dict[str, Tokens]) -> None:
        super().__init__()
        self._tokens = tokens

    def __missing__(self, field: str) -> dict[str, int]:
        """The dictionary of a column."""
        self[field] = {token: number for number, token in enumerate(self._tokens[field][:])}
        return self[field]


class Numbering:
    """Numbers texts from 0 in order of appearance, by two 64-bit hashes of each; n is the number of texts."""

    def __init__(self) -> None:
        self.n = 0
        self._texts: list[bytes] = []
        self._checks = np.empty(0, dtype=np.uint64)  # second hash of each text, by number
        self._hashes = np.array([2**64 - 1], dtype=np.uint64)  # ascending; the last one is of no text
        self._numbers = np.array([-1], dtype=np.int32)  # of each hash

    def numbers(self, texts: npt.NDArray[np.object_]) -> npt.NDArray[np.int32]:
        """The numbers (texts,) of distinct texts without NUL.

        Two texts with one hash are a UsageError: of ten million texts with a chance of one in 400,000.
        """
        hashes, checks = (pd.util.hash_array(texts, hash_key=key, categorize=False) for key in _HASH_KEYS)
        order, at = np.argsort(hashes), np.empty(len(hashes), dtype=np.int64)
        at[order] = np.searchsorted(self._hashes, hashes[order])  # in order: six times as fast
        new = self._hashes[at] != hashes
        numbers = np.where(new, self.n + np.cumsum(new, dtype=np.int32) - 1, self._numbers[at])
        self._checks = np.append(self._checks, checks[new])
        if (self._checks[numbers] != checks).any():
            raise UsageError("two users or two items have one 64-bit hash: set memory_map to False")
        order = order[new[order]]
        self._hashes = np.insert(self._hashes, at[order], hashes[order])
        self._numbers = np.insert(self._numbers, at[order], numbers[order])
        self._texts.append("\0".join([*texts[new], ""]).encode(*ENCODING))
        self.n = len(self._checks)
        return numbers

    def tokens(self) -> Tokens:
        """The texts by number, padding before them."""
        text = np.frombuffer(b"".join(self._texts), dtype=np.uint8)
        return Tokens(text, np.flatnonzero(text == 0) + 1)
