"""All items at inference, as vectors or as codes, and their scores with hidden states."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recbole_lisa.attention.codebook import Codebook
from recbole_lisa.layers.sequence_encoder import ItemView
from recbole_lisa.ops.codeword_scores import lookup_tables, scores_of_one, sum_of_rows
from recbole_lisa.ops.numba_threads import numba_serves
from recbole_lisa.ops.quantize import Quantized
from recbole_lisa.ops.score_bounds import code_blocks, shortlist

Dense = tuple[Tensor, Tensor]
"""Vectors that items have beside their codes: row slots (V,) of vectors (K + 1, D), whose last one is 0."""
BLOCK_ITEMS = 2**14
"""Items whose vectors exist at once when norms are computed."""


class _Targets(nn.Module):
    """Scores of a catalogue: products with hidden states h, or with a temperature T cosines, h x / (|h| |x| T)."""

    temperature: float | None
    inverse_norms: Tensor | None
    rows: Callable[[Tensor], Tensor]

    def dense_items(self) -> Tensor:
        """The items (K,) with vectors beside their codes, ascending."""
        return torch.arange(0)

    def items_with_equal_codes(self) -> int:
        """How many items have the same codes, and so the same score, as another item; 0 if they are vectors."""
        return 0

    def shortlist(self, query: Any, k: int, left_out: Sequence[Any] | None) -> Tensor | None:
        """Ascending items that hold the k best of all; None without an index."""
        return None

    def _set_temperature(self, temperature: float | None, codes: Tensor) -> None:
        """Set T, and with it the norms of the V items, which have these codes or vectors."""
        self.temperature, inverse = temperature, None
        if temperature is not None:
            ids = torch.arange(len(codes), device=codes.device)
            norms = [self.rows(block).norm(dim=1) for block in torch.split(ids, BLOCK_ITEMS)]
            inverse = 1 / torch.cat(norms).clamp_min(1e-12)
        self.register_buffer("inverse_norms", inverse)

    def _scaled_query(self, hidden: Tensor) -> Tensor:
        return hidden if self.temperature is None else nn.functional.normalize(hidden, dim=-1) / self.temperature

    def _scaled_scores(self, scores: Tensor, start: int, stop: int) -> Tensor:
        return scores if self.inverse_norms is None else scores * self.inverse_norms[start:stop]


class DenseTargets(_Targets):
    """Items that are scored by their own vectors (V, D); temperature of cosine scores, None for products."""

    def __init__(self, vectors: Tensor, *, temperature: float | None = None) -> None:
        super().__init__()
        self.vectors = nn.Buffer(vectors)
        self._set_temperature(temperature, vectors)

    def __len__(self) -> int:
        """V."""
        return len(self.vectors)

    def take(self, ids: Tensor) -> "DenseTargets":
        """The items with ids (C,) as a smaller catalogue."""
        return DenseTargets(self.vectors.index_select(0, ids), temperature=self.temperature)

    def query(self, hidden: Tensor) -> Any:
        """The query for `scores`: hidden states (N, D)."""
        return self._scaled_query(hidden)

    def scores(self, query: Tensor, start: int, stop: int) -> Tensor:
        """Scores of items start..stop-1, (N, stop - start)."""
        return self._scaled_scores(query @ self.vectors[start:stop].t(), start, stop)

    def rows(self, ids: Tensor) -> Tensor:
        """Vectors of items, (U, D)."""
        return self.vectors[ids]


class CodedTargets(_Targets):
    """Items that are scored by look-up tables of their codewords (B, W, D); temperature as for DenseTargets.

    Codes (V, B) have the type of `ops.packing.code_dtype`: one byte each, more if W > 256. Vectors in dense add to the
    codewords of their items.
    """

    slots: Tensor
    vectors: Tensor | None
    blocks: Tensor | None

    def __init__(
        self, codes: Tensor, codewords: Tensor, *, temperature: float | None = None, dense: Dense | None = None
    ) -> None:
        super().__init__()
        self.codes, self.codewords = nn.Buffer(codes), nn.Buffer(codewords)
        for name, tensor in zip(("slots", "vectors"), dense or (None, None), strict=True):
            self.register_buffer(name, tensor)
        self.register_buffer("blocks", None, persistent=False)
        self._set_temperature(temperature, codes)

    @property
    def dense(self) -> Dense | None:
        """Slots and vectors, or None."""
        return None if self.vectors is None else (self.slots, self.vectors)

    def dense_items(self) -> Tensor:
        """As _Targets."""
        return super().dense_items() if self.vectors is None else (self.slots < len(self.vectors) - 1).nonzero()[:, 0]

    def items_with_equal_codes(self) -> int:
        """As _Targets; items with vectors beside their codes are no one's equal."""
        n_codebooks, n_codewords, _ = self.codewords.shape
        rows: Tensor = self.codes if self.vectors is None else self.codes[self.slots == len(self.vectors) - 1]
        if n_codewords**n_codebooks > 2**64:
            counts = torch.unique(rows, dim=0, return_counts=True)[1]
            return int(counts[counts > 1].sum())
        start = rows.new_zeros(1, dtype=torch.int64)  # a number for each row, which stays its own in int64
        numbers = reduce(lambda number, column: number * n_codewords + column, rows.t(), start).sort().values
        equal = numbers[1:] == numbers[:-1]  # a sort takes less memory than torch.unique, which may hash
        return int(torch.cat([equal, equal.new_zeros(1)]).logical_or_(torch.cat([equal.new_zeros(1), equal])).sum())

    def build_index(self) -> None:
        """Set blocks, B bytes an item, and listed for `shortlist`: for products, W <= 256, on the CPU."""
        if self.temperature is None and self.codes.dtype == torch.uint8 and numba_serves(self.codewords):
            self.blocks, self.listed = code_blocks(self.codes), self.dense_items()

    def shortlist(self, query: Any, k: int, left_out: Sequence[Any] | None) -> Tensor | None:
        """Ascending items that hold the k best of all; None without an index, see `ops.score_bounds.shortlist`.

        The bound is the k-th best of the items without a vector; those with one are all in the list.
        """
        if self.blocks is None:
            return None
        if self.vectors is None:
            return shortlist(self.blocks, len(self), query[0], k, left_out)
        left_out = [np.union1d(items, self.listed) for items in left_out or [np.empty(0)] * query[0].shape[2]]
        ids = shortlist(self.blocks, len(self), query[0], k, left_out)
        return ids if ids is None else torch.unique(torch.cat([ids, self.listed]))

    def __len__(self) -> int:
        """V."""
        return len(self.codes)

    def take(self, ids: Tensor) -> "CodedTargets":
        """The items with ids (C,) as a smaller catalogue, for the same queries."""
        dense = None if self.vectors is None else (self.slots[ids], self.vectors)
        return CodedTargets(self.codes.index_select(0, ids), self.codewords, temperature=self.temperature, dense=dense)

    def query(self, hidden: Tensor) -> Any:
        """Look-up tables (B, W, N) of hidden states (N, D) and products with vectors (K + 1, N), for `scores`."""
        hidden = self._scaled_query(hidden)
        return lookup_tables(hidden, self.codewords), None if self.vectors is None else self.vectors @ hidden.t()

    def scores(self, query: Any, start: int, stop: int) -> Tensor:
        """Scores of items start..stop-1, (N, stop - start)."""
        tables, products = query
        if tables.shape[2] == 1:
            scores = scores_of_one(self.codes[start:stop], tables.squeeze(2)).unsqueeze(0)
        else:
            scores = sum_of_rows(self.codes[start:stop], tables).t()
        if products is not None:
            scores = scores + products.index_select(0, self.slots[start:stop]).t()
        return self._scaled_scores(scores, start, stop)

    def rows(self, ids: Tensor) -> Tensor:
        """Vectors of items, (U, D)."""
        sums = sum_of_rows(self.codes[ids], self.codewords)
        return sums if self.vectors is None else sums + self.vectors.index_select(0, self.slots[ids])


Targets = DenseTargets | CodedTargets


class DenseItems(nn.Module):
    """Items that are stored as vectors (V, D), the scaled embeddings; temperature as for DenseTargets.

    LISA-Soft quantises them when they are read: the codebook is the quantiser of its layer 0. item_input is as for
    AttentiveRecommender.
    """

    def __init__(
        self,
        vectors: Tensor,
        codebook: Codebook | None = None,
        *,
        temperature: float | None = None,
        item_input: str = "codewords",
    ) -> None:
        super().__init__()
        self.targets = DenseTargets(vectors, temperature=temperature)
        self.codebook, self.item_input = codebook, item_input

    def replaced(self, vectors: Tensor, codebook: Codebook | None = None) -> "DenseItems":
        """Other vectors with the same settings."""
        return DenseItems(vectors, codebook, temperature=self.targets.temperature, item_input=self.item_input)

    def view(self, ids: Tensor) -> ItemView:
        """Items (U,) as the encoder sees them."""
        x = self.targets.rows(ids)
        if self.codebook is None:
            return ItemView(stream=x, target=x, quantized=None)
        quantized = self.codebook(x)
        stream = x if self.item_input == "embeddings" else quantized.reconstruction
        return ItemView(stream, target=x, quantized=quantized)


class CodedItems(nn.Module):
    """Items that are stored as codes: of the history, and of the targets where they differ (LISA-Mini)."""

    def __init__(self, history: CodedTargets, targets: CodedTargets | None = None) -> None:
        super().__init__()
        self.history, self.targets = history, targets or history

    def view(self, ids: Tensor) -> ItemView:
        """Items (U,) as the encoder sees them; their keys are their codes."""
        y = self.history.rows(ids)
        target = y if self.targets is self.history else self.targets.rows(ids)
        return ItemView(y, target, Quantized(self.history.codes[ids].long(), y[:, :0], y[:, :0]))

    def sets(self) -> list[CodedTargets]:
        """Those of the history, and of the targets if they differ."""
        return list(dict.fromkeys((self.history, self.targets)))


ItemStore = DenseItems | CodedItems
