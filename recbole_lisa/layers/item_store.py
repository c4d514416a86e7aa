"""All items at inference, as vectors or as codes, and their scores with hidden states."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from recbole_lisa.attention.codebook import Codebook
from recbole_lisa.layers.sequence_encoder import ItemView
from recbole_lisa.ops.codeword_scores import lookup_tables, scores_of_one, sum_of_rows
from recbole_lisa.ops.numba_threads import numba_serves
from recbole_lisa.ops.quantize import Quantized
from recbole_lisa.ops.score_bounds import code_blocks

BLOCK_ITEMS = 2**14
"""Items whose vectors exist at once when norms are computed."""


class _Targets(nn.Module):
    """Scores of a catalogue: products with hidden states h, or with a temperature T cosines, h x / (|h| |x| T)."""

    temperature: float | None
    inverse_norms: Tensor | None
    rows: Callable[[Tensor], Tensor]

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
        return DenseTargets(self.vectors[ids], temperature=self.temperature)

    def query(self, hidden: Tensor) -> Tensor:
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

    Codes (V, B) have the type of `ops.packing.code_dtype`: one byte each, more if W > 256.
    """

    def __init__(self, codes: Tensor, codewords: Tensor, *, temperature: float | None = None) -> None:
        super().__init__()
        self.codes, self.codewords = nn.Buffer(codes), nn.Buffer(codewords)
        self.blocks: Tensor | None
        self.register_buffer("blocks", None, persistent=False)
        self._set_temperature(temperature, codes)

    def build_index(self) -> None:
        """Set blocks, B bytes an item, for `ops.score_bounds.shortlist`: for products, W <= 256, on the CPU."""
        if self.temperature is None and self.codes.dtype == torch.uint8 and numba_serves(self.codewords):
            self.blocks = code_blocks(self.codes)

    def __len__(self) -> int:
        """V."""
        return len(self.codes)

    def take(self, ids: Tensor) -> "CodedTargets":
        """The items with ids (C,) as a smaller catalogue."""
        return CodedTargets(self.codes.index_select(0, ids), self.codewords, temperature=self.temperature)

    def query(self, hidden: Tensor) -> Tensor:
        """The query for `scores`: look-up tables (B, W, N) of hidden states (N, D)."""
        return lookup_tables(self._scaled_query(hidden), self.codewords)

    def scores(self, query: Tensor, start: int, stop: int) -> Tensor:
        """Scores of items start..stop-1, (N, stop - start)."""
        if query.shape[2] == 1:
            scores = scores_of_one(self.codes[start:stop], query.squeeze(2)).unsqueeze(0)
        else:
            scores = sum_of_rows(self.codes[start:stop], query).t()
        return self._scaled_scores(scores, start, stop)

    def rows(self, ids: Tensor) -> Tensor:
        """Vectors of items, (U, D)."""
        return sum_of_rows(self.codes[ids], self.codewords)


Targets = DenseTargets | CodedTargets


class DenseItems(nn.Module):
    """Items that are stored as vectors (V, D), the scaled embeddings; temperature as for DenseTargets.

    LISA-Soft quantises them when they are read: the codebook is the quantiser of its layer 0.
    """

    def __init__(self, vectors: Tensor, codebook: Codebook | None = None, *, temperature: float | None = None) -> None:
        super().__init__()
        self.targets = DenseTargets(vectors, temperature=temperature)
        self.codebook = codebook

    def view(self, ids: Tensor) -> ItemView:
        """Items (U,) as the encoder sees them."""
        x = self.targets.rows(ids)
        if self.codebook is None:
            return ItemView(stream=x, target=x, quantized=None)
        quantized = self.codebook(x)
        return ItemView(stream=quantized.reconstruction, target=x, quantized=quantized)


class CodedItems(nn.Module):
    """Items that are stored as codes: LISA-Base and LISA-Mini.

    Args:
        codes: (V, B).
        codewords: (B, W, D) of layer 0's codebook.
        targets: codes and codewords of the targets; None if they are those of the history (LISA-Base).
        temperature: of cosine scores, where targets is None; None for products.
    """

    def __init__(
        self, codes: Tensor, codewords: Tensor, targets: CodedTargets | None = None, *, temperature: float | None = None
    ) -> None:
        super().__init__()
        self.codes, self.codewords = nn.Buffer(codes), nn.Buffer(codewords)
        self.has_own_targets = targets is not None
        self.targets = targets or CodedTargets(codes, codewords, temperature=temperature)

    def view(self, ids: Tensor) -> ItemView:
        """Items (U,) as the encoder sees them; their keys are their codes."""
        codes = self.codes[ids]
        y = sum_of_rows(codes, self.codewords)
        target = self.targets.rows(ids) if self.has_own_targets else y
        return ItemView(y, target, Quantized(codes.long(), y[:, :0], y[:, :0]))

    def tables(self) -> Sequence[tuple[Tensor, Tensor]]:
        """Codes (V, B) and codewords (B, W, D): of the history, and of the targets if they differ."""
        sets = (self, self.targets) if self.has_own_targets else (self,)
        return [(store.codes, store.codewords) for store in sets]


ItemStore = DenseItems | CodedItems
