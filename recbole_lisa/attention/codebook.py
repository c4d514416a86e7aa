"""B learnable codebooks that quantise any embedding (LISA, Section 3.1.2)."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from recbole_lisa.ops.checks import MIN_TEMPERATURE, check_choice, check_number, check_sizes
from recbole_lisa.ops.kmeans import cluster_sums, mean_directions, nearest
from recbole_lisa.ops.quantize import SIMILARITIES, Quantized, quantize

ENCODINGS = ("residual", "parallel")
KMEANS_ROUNDS = 10


def initialise_each(weight: Tensor) -> None:
    """Fill each matrix of weight (B, rows, columns) by Xavier's rule; on meta, where B may be forged, do nothing."""
    for matrix in () if weight.is_meta else weight:
        nn.init.xavier_normal_(matrix)


class Codebook(nn.Module):
    """Quantiser with B codebooks of W codewords (Eq. 2).

    Args:
        hidden_size, n_codebooks, n_codewords: D, B and W.
        similarity, temperature: see quantize; one matrix M serves all codebooks.
        encoding: residual (each codebook encodes the residual of the earlier ones) or parallel (the paper's equation).
        hard: one codeword per codebook with a straight-through gradient; False: the softmax itself (LISA-Soft).
        first_column: the first of its columns of fixed codes.

    Raises:
        ValueError: on a size below 1, a temperature below MIN_TEMPERATURE, or an unknown similarity or encoding.
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        n_codebooks: int = 8,
        n_codewords: int = 128,
        similarity: str = "bilinear",
        encoding: str = "residual",
        temperature: float = 0.7,
        hard: bool = True,
        first_column: int = 0,
    ) -> None:
        super().__init__()
        check_sizes(hidden_size=hidden_size, n_codebooks=n_codebooks, n_codewords=n_codewords)
        check_number("temperature", temperature, MIN_TEMPERATURE)
        check_choice("similarity", similarity, SIMILARITIES)
        check_choice("encoding", encoding, ENCODINGS)
        self.similarity = similarity
        self.temperature = temperature
        self.residual = encoding == "residual"
        self.hard = hard
        self.columns = slice(first_column, first_column + n_codebooks)
        self.codewords = nn.Parameter(torch.empty(n_codebooks, n_codewords, hidden_size))
        self.bilinear = nn.Parameter(torch.empty(hidden_size, hidden_size)) if similarity == "bilinear" else None
        initialise_each(self.codewords)
        if self.bilinear is not None:
            nn.init.xavier_normal_(self.bilinear)

    @property
    def n_codebooks(self) -> int:
        """B."""
        return self.codewords.shape[0]

    @property
    def n_codewords(self) -> int:
        """W."""
        return self.codewords.shape[1]

    def settings(self) -> dict[str, Any]:
        """The keywords that build a quantiser of the same shape, as plain values."""
        n_codebooks, n_codewords, hidden_size = self.codewords.shape
        encoding = "residual" if self.residual else "parallel"
        sizes = {"hidden_size": hidden_size, "n_codebooks": n_codebooks, "n_codewords": n_codewords}
        others = {"similarity": self.similarity, "encoding": encoding, "temperature": self.temperature}
        return {**sizes, **others, "hard": self.hard}

    def forward(self, x: Tensor, *, n_keys: int | None = None) -> Quantized:
        """Quantise distinct vectors (U, D): codes (U, B), assignment (U, B, W), reconstruction (U, D).

        Of hard codes only the first n_keys vectors have an assignment, (n_keys, B, W); None is all.
        """
        return self._quantize(x, self.codewords, n_keys=n_keys)

    @torch.no_grad()
    def restart(self, x: Tensor, *, used_too: bool) -> None:
        """Move codewords to what their codebook encodes of vectors x (M, D), by draws with a fixed seed.

        A codeword that no vector has moves beside that of a random vector, by the difference of two vectors: the vector
        itself could win over all others. With used_too all become centres of spherical k-means, and M = c I.
        """
        generator, left = torch.Generator().manual_seed(0), x.to(self.codewords.dtype)
        if used_too and self.bilinear is not None:  # so that x^T M x is about sqrt(D)
            nn.init.eye_(self.bilinear).mul_(math.sqrt(x.shape[1]) / left.square().sum(dim=1).mean())
        for book in self.codewords:
            codes = self._quantize(left, book.unsqueeze(0), n_keys=0).codes.squeeze(1)
            drawn, other = torch.randint(len(x), (2, len(book)), generator=generator).to(x.device)
            seen = left if self.bilinear is None else left @ self.bilinear  # (M, D), x . c is the score of c
            step, mean = seen[drawn] - seen[other], normalize(seen.mean(dim=0), dim=0)
            step = step - (step @ mean).unsqueeze(1) * mean  # the part that all vectors have would decide alone
            new = book[codes[drawn]] + normalize(step, dim=1) * book.norm(dim=1).mean()
            if used_too:
                points, new = normalize(left, dim=1), normalize(left[drawn], dim=1)
                for _ in range(KMEANS_ROUNDS):
                    new = mean_directions(cluster_sums(points, nearest(points, new), len(book)), new)
                new = new * left.norm(dim=1).mean()
            moved = (torch.bincount(codes, minlength=len(book)) == 0) | used_too
            book[moved] = new[moved]
            if self.residual:
                left = left - self._quantize(left, book.unsqueeze(0), n_keys=0).reconstruction

    def _quantize(self, x: Tensor, codewords: Tensor, *, n_keys: int | None) -> Quantized:
        with torch.autocast(x.device.type, enabled=False):
            return quantize(
                x.to(self.codewords.dtype),
                codewords,
                similarity=self.similarity,
                bilinear=self.bilinear,
                temperature=self.temperature,
                residual=self.residual,
                hard=self.hard,
                n_keys=n_keys,
            )
