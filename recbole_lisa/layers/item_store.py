"""All items at inference, as vectors or as codes, and their scores with hidden states."""

from collections.abc import Sequence

from torch import Tensor, nn

from recbole_lisa.attention.codebook import Codebook
from recbole_lisa.layers.sequence_encoder import ItemView
from recbole_lisa.ops.codeword_scores import lookup_tables, scores_of_one, sum_of_rows
from recbole_lisa.ops.quantize import Quantized


class DenseTargets(nn.Module):
    """Items that are scored by their own vectors.

    Args:
        vectors: (V, D).
    """

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors = nn.Buffer(vectors)

    def __len__(self) -> int:
        """V."""
        return len(self.vectors)

    def take(self, ids: Tensor) -> "DenseTargets":
        """The items with ids (C,) as a smaller catalogue."""
        return DenseTargets(self.vectors[ids])

    def query(self, hidden: Tensor) -> Tensor:
        """The query for `scores`: hidden states (N, D), unchanged."""
        return hidden

    def scores(self, query: Tensor, start: int, stop: int) -> Tensor:
        """Scores of items start..stop-1, (N, stop - start)."""
        return query @ self.vectors[start:stop].t()

    def rows(self, ids: Tensor) -> Tensor:
        """Vectors of items, (U, D)."""
        return self.vectors[ids]


class CodedTargets(nn.Module):
    """Items that are scored by look-up tables of their codewords; a code takes one byte, more if W > 256.

    Args:
        codes: (V, B) in the type of `ops.packing.code_dtype`.
        codewords: (B, W, D).
    """

    def __init__(self, codes: Tensor, codewords: Tensor) -> None:
        super().__init__()
        self.codes, self.codewords = nn.Buffer(codes), nn.Buffer(codewords)

    def __len__(self) -> int:
        """V."""
        return len(self.codes)

    def take(self, ids: Tensor) -> "CodedTargets":
        """The items with ids (C,) as a smaller catalogue."""
        return CodedTargets(self.codes[ids], self.codewords)

    def query(self, hidden: Tensor) -> Tensor:
        """The query for `scores`: look-up tables (B, W, N) of hidden states (N, D)."""
        return lookup_tables(hidden, self.codewords)

    def scores(self, query: Tensor, start: int, stop: int) -> Tensor:
        """Scores of items start..stop-1, (N, stop - start)."""
        if query.shape[2] == 1:
            return scores_of_one(self.codes[start:stop], query.squeeze(2)).unsqueeze(0)
        return sum_of_rows(self.codes[start:stop], query).t()

    def rows(self, ids: Tensor) -> Tensor:
        """Vectors of items, (U, D)."""
        return sum_of_rows(self.codes[ids], self.codewords)


Targets = DenseTargets | CodedTargets


class DenseItems(nn.Module):
    """Items that are stored as vectors; LISA-Soft quantises them when they are read.

    Args:
        vectors: (V, D) scaled embeddings.
        codebook: the quantiser of layer 0 for LISA-Soft, else None.
    """

    def __init__(self, vectors: Tensor, codebook: Codebook | None = None) -> None:
        super().__init__()
        self.targets = DenseTargets(vectors)
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
    """

    def __init__(self, codes: Tensor, codewords: Tensor, targets: CodedTargets | None = None) -> None:
        super().__init__()
        self.codes, self.codewords = nn.Buffer(codes), nn.Buffer(codewords)
        self.has_own_targets = targets is not None
        self.targets = targets or CodedTargets(codes, codewords)

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
