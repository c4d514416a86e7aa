"""Items of a recommender: trained embeddings, or codes that are set before training (setting item_codes).

Both classes have the same methods. x are items as embed reads them; model is the AttentiveRecommender that reads them.
"""

import math
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from recbole_lisa.attention.codebook import Codebook
from recbole_lisa.layers.item_store import CodedTargets, Dense, Targets
from recbole_lisa.layers.sequence_encoder import ItemView
from recbole_lisa.ops.packing import code_dtype
from recbole_lisa.ops.quantize import Quantized


class ItemTable(nn.Embedding):
    """Embeddings (V, D), row 0 is padding; embed multiplies them by scale. At inference the model keeps all items."""

    similarity: str | None = None  # of their quantisers, None for that of the settings

    def __init__(self, n_items: int, hidden_size: int, *, scale: float = 1.0) -> None:
        super().__init__(n_items, hidden_size, padding_idx=0)
        self.scale = scale

    def embed(self, items: Tensor) -> Tensor:
        """Scaled embeddings of items (...), (..., D)."""
        x: Tensor = self(items)
        return x if self.scale == 1 else x * self.scale

    def quantized(self, book: Codebook, x: Tensor, *, n_keys: int | None = 0) -> Quantized:
        """Items x (U, D) by a quantiser; of hard codes the first n_keys have an assignment, None is all."""
        return Quantized(*book(x, n_keys=n_keys))

    def codes(self, book: Codebook, x: Tensor) -> Tensor:
        """Codes (U, B) of items x by a quantiser."""
        return self.quantized(book, x).codes

    def dense_from(self, first: int) -> Dense | None:
        """Vectors beside the codes of the items from id `first` on: none."""
        return None

    def some(self, model: Any, ids: Tensor) -> tuple[ItemView, Tensor]:
        """Items for inference and the rows of ids (...) among them: all items."""
        return model.item_view(), ids

    def targets(self, model: Any) -> Targets:
        """All items, with padding, as targets at inference."""
        targets: Targets = model.item_targets()
        return targets

    def catalogue(self, model: Any) -> Any:
        """All items, with padding, as targets in training, see losses.full_cross_entropy."""
        return model.target_vectors()


class FixedCodes(nn.Module):
    """Codes (V, C) of items in all their codebooks, in place of item embeddings: not trained, 0 until they are set.

    With n_dense = K above 0, K items also have a trained vector that is added to their codewords: row slots[v] of dense
    (K, D) is that of item v, K stands for none. Methods are those of ItemTable.
    """

    similarity = "dot"  # of fewest weights, as nothing is quantised

    def __init__(self, n_items: int, n_columns: int, n_codewords: int, *, n_dense: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Buffer(torch.zeros(n_items, n_columns, dtype=code_dtype(n_codewords)))
        self.dense = nn.Parameter(torch.zeros(n_dense, hidden_size)) if n_dense else None
        self.slots: Tensor
        self.register_buffer("slots", torch.full((n_items,), n_dense, dtype=torch.int32) if n_dense else None)

    def embed(self, items: Tensor) -> Tensor:
        """Codes of items (...), (..., C); with dense vectors (..., C + 1), and the last number is the slot."""
        codes = self.weight[items]
        return codes if self.dense is None else torch.cat([codes.int(), self.slots[items].unsqueeze(-1)], dim=-1)

    def quantized(self, book: Codebook, x: Tensor, *, n_keys: int | None = 0) -> Quantized:
        """Codewords of x by their codes in the columns of the quantiser, and dense vectors; there is no assignment."""
        codes, rows = x[:, book.columns].long(), self._rows()
        words = [words.index_select(0, code) for words, code in zip(book.codewords, codes.t(), strict=True)]
        words += [] if rows is None else [rows.index_select(0, x[:, -1])]
        return Quantized(codes, book.codewords.new_empty(0), reduce(torch.add, words))

    def codes(self, book: Codebook, x: Tensor) -> Tensor:
        """As ItemTable: no codeword is read."""
        return x[:, book.columns]

    def dense_from(self, first: int) -> Dense | None:
        """As ItemTable: slots, and vectors by slot; or None."""
        rows = self._rows()
        return None if rows is None else (self.slots[first:], rows.detach())

    def some(self, model: Any, ids: Tensor) -> tuple[ItemView, Tensor]:
        """As ItemTable: the distinct ones of ids."""
        distinct, rows = torch.unique(ids, return_inverse=True)
        return model.view(model.embed(distinct)), rows

    def targets(self, model: Any) -> Targets:
        """As ItemTable: look-up tables, so that equal codes have equal scores."""
        book, dense = model.target_book, self.dense_from(0)
        codes = self.weight[:, book.columns]
        return CodedTargets(codes, book.codewords.detach(), temperature=model.temperature, dense=dense)

    def catalogue(self, model: Any) -> Any:
        """As ItemTable: pairs of codes (V, B) and codewords (B, W, D), the last of slots and dense vectors."""
        if model.temperature is not None:  # cosines need the vectors
            return model.target_vectors()
        book, rows = model.target_book, self._rows()
        coded = (self.weight[:, book.columns], book.codewords)
        return [coded] if rows is None else [coded, (self.slots.unsqueeze(1), rows.unsqueeze(0))]

    def _rows(self) -> Tensor | None:
        """Vectors by slot (K + 1, D), the last one is 0; or None."""
        return None if self.dense is None else torch.cat([self.dense, torch.zeros_like(self.dense[:1])])


def item_table(config: Any, n_items: int) -> ItemTable | FixedCodes:
    """The items by the settings of a model."""
    hidden_size = config["hidden_size"]
    if "item_codes" not in config or config["item_codes"] == "learned":
        return ItemTable(n_items, hidden_size, scale=math.sqrt(hidden_size) if config["scale_embedding"] else 1.0)
    n_codewords = [config[key] for key in ("n_codewords", "n_target_codewords") if key in config]
    sizes = n_items, config["n_codebooks"] * len(n_codewords), max(n_codewords)
    return FixedCodes(*sizes, n_dense=min(config["dense_items"], n_items - 1), hidden_size=hidden_size)
