"""All items at inference, as vectors or as codes, and their scores against hidden states."""

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
        self.vectors: Tensor
        self.register_buffer("vectors", vectors)

    def __len__(self) -> int:
        """V."""
        return len(self.vectors)

    def take(self, ids: Tensor) -> "DenseTargets":
        """Some of the items, (C,) ids, as a catalogue of their own."""
        return DenseTargets(self.vectors[ids])

    def query(self, hidden: Tensor) -> Tensor:
        """What scores needs of hidden states (N, D)."""
        return hidden

    def scores(self, query: Tensor, start: int, stop: int) -> Tensor:
        """Scores of items start..stop-1, (N, stop - start)."""
        return query @ self.vectors[start:stop].t()

    def rows(self, ids: Tensor) -> Tensor:
        """Vectors of items, (U, D)."""
        return self.vectors[ids]


class CodedTargets(nn.Module):
    """Items that are scored by their codewords: look-ups, never their vectors.

    Kept is a byte a code, two or four where W > 256.

    Args:
        codes: (V, B) in the type of `ops.packing.code_dtype`.
        codewords: (B, W, D).
    """

    def __init__(self, codes: Tensor, codewords: Tensor) -> None:
        super().__init__()
        self.codes: Tensor
        self.codewords: Tensor
        self.register_buffer("codes", codes)
        self.register_buffer("codewords", codewords)

    def __len__(self) -> int:
        """V."""
        return len(self.codes)

    def take(self, ids: Tensor) -> "CodedTargets":
        """Some of the items, (C,) ids, as a catalogue of their own."""
        return CodedTargets(self.codes[ids], self.codewords)

    def query(self, hidden: Tensor) -> Tensor:
        """What scores needs of hidden states (N, D): (B, W, N)."""
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
    """Items whose history needs their own vectors; LISA-Soft quantises them when they are looked up.

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
    """Items that are nothing but codes: LISA-Base and LISA-Mini.

    Args:
        codes: (V, B).
        codewords: (B, W, D) of layer 0's codebook.
        targets: codes and codewords that items are scored with; None takes those of the history (LISA-Base).
    """

    def __init__(self, codes: Tensor, codewords: Tensor, targets: CodedTargets | None = None) -> None:
        super().__init__()
        self.codes: Tensor
        self.codewords: Tensor
        self.register_buffer("codes", codes)
        self.register_buffer("codewords", codewords)
        self.has_own_targets = targets is not None
        self.targets = targets or CodedTargets(codes, codewords)

    def view(self, ids: Tensor) -> ItemView:
        """Items (U,) as the encoder sees them; their keys are their codes."""
        codes = self.codes[ids]
        y = sum_of_rows(codes, self.codewords)
        target = self.targets.rows(ids) if self.has_own_targets else y
        return ItemView(y, target, Quantized(codes.long(), y[:, :0], y[:, :0]))

    def tables(self) -> Sequence[tuple[Tensor, Tensor]]:
        """Codes (V, B) and codewords (B, W, D): of the history, and of the targets where these have their own."""
        own = [(self.targets.codes, self.targets.codewords)] if self.has_own_targets else []
        return [(self.codes, self.codewords), *own]


ItemStore = DenseItems | CodedItems
