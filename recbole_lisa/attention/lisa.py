"""LISA: linear-time self attention with codeword histograms (WWW 2021)."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from recbole_lisa.attention.base import Attention, keep_real
from recbole_lisa.attention.codebook import Codebook
from recbole_lisa.ops.lisa.attention import (
    lisa_attention_items,
    lisa_attention_last,
    lisa_attention_real,
    read_histogram,
)
from recbole_lisa.ops.lisa.histogram import histogram_step, last_histogram
from recbole_lisa.ops.quantize import Quantized

PROJECTIONS = ("per_codebook", "shared")
DEFAULT_DECAY = 0.1
BLOCK_ROWS = 2**13
"""Vectors that LISA quantises at once when nothing is to be differentiated and codes are all that stays of them."""


class LISAState(NamedTuple):
    """A whole history at constant size: histogram (N, B, W)."""

    histogram: Tensor


class LISAAttention(Attention):
    r"""x'_i = sum_b sum_w F_i[b,w] exp(T[b,q_i^b,w]) / Z_i^b  C_b[w] P_b^V  (LISA, Eq. 11 and Algorithm 1).

        T[b,i,j] = (C_b[i] P_b^Q)^T (C_b[j] P_b^K) / sqrt(D)

    O(L B W D) time. Deviations from the paper, as in the authors' own code: the decay of the histogram, the
    scaling by sqrt(D), one projection a codebook.

    Args:
        hidden_size: D.
        n_codebooks: B.
        n_codewords: W.
        similarity: of the quantiser: bilinear, dot or euclidean.
        encoding: residual or parallel.
        temperature: of the quantiser's softmax.
        hard: one codeword a codebook for the keys; False: soft keys (queries always use the best codeword).
        projection: per_codebook (B, D, D) or shared (D, D), the latter as the paper's equation is written.
        decay: of the histogram a step: a number (0 = the paper), "learnable" (one scalar, starts at 0.1), or "time"
            (one learnable rate times the time gap before each item).
        bidirectional: sum the histogram over the whole sequence; needs decay 0.
        codebook: quantiser to share instead of an own one (the recommender's, over its item table).

    Raises:
        ValueError: on an unknown projection or decay, or bidirectional with a decay.
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
        projection: str = "per_codebook",
        decay: float | str = DEFAULT_DECAY,
        bidirectional: bool = False,
        codebook: Codebook | None = None,
    ) -> None:
        super().__init__()
        if projection not in PROJECTIONS:
            raise ValueError(f"projection must be one of {', '.join(PROJECTIONS)}, got {projection!r}")
        if not (decay in ("learnable", "time") or (isinstance(decay, int | float) and decay >= 0)):
            raise ValueError(f"decay must be a number >= 0, learnable or time, got {decay!r}")
        if bidirectional and decay != 0:
            raise ValueError(f"bidirectional LISA sums the histogram over all positions: set decay to 0, got {decay!r}")
        self.codebook = codebook or Codebook(
            hidden_size=hidden_size,
            n_codebooks=n_codebooks,
            n_codewords=n_codewords,
            similarity=similarity,
            encoding=encoding,
            temperature=temperature,
            hard=hard,
        )
        self.is_causal = not bidirectional
        self.decay = decay
        start = math.log(math.expm1(DEFAULT_DECAY))
        self.raw_decay = nn.Parameter(torch.tensor(start)) if isinstance(decay, str) else None
        n_projections = 1 if projection == "shared" else self.codebook.n_codebooks
        self.query, self.key, self.value = (
            nn.Parameter(torch.empty(n_projections, hidden_size, hidden_size)) for _ in range(3)
        )
        for weight in (self.query, self.key, self.value):
            for matrix in weight:
                nn.init.xavier_normal_(matrix)

    def settings(self) -> dict[str, Any]:
        """The keywords that build a module of the same shape, with an own quantiser, as plain values."""
        own = {name: value for name, value in self._keywords.items() if name != "codebook"}
        return own | self.codebook.settings()

    def table_and_values(self) -> tuple[Tensor, Tensor]:
        """Inner-product table T (B, W, W) and projected codebooks (B, W, D)."""
        codewords = self.codebook.codewords  # (B, W, D)
        query, key, values = codewords @ self.query, codewords @ self.key, codewords @ self.value
        return query @ key.transpose(1, 2) / math.sqrt(codewords.shape[-1]), values

    def step_decay(self, time_gaps: Tensor | None) -> float | Tensor:
        """Decay of each step: a number, a 0-d tensor, or (N, L) from the gaps.

        Args:
            time_gaps: (N, L) time since the previous item, in the data set's time unit; for decay="time" only.

        Raises:
            ValueError: when decay="time" and no gaps are given.
        """
        if self.raw_decay is None:
            return float(self.decay)
        rate = nn.functional.softplus(self.raw_decay)
        if self.decay == "learnable":
            return rate
        if time_gaps is None:
            raise ValueError('decay="time" needs time_gaps (N, L): the time since the previous item')
        return rate * time_gaps

    def forward(self, x: Tensor, valid: Tensor, time_gaps: Tensor | None = None) -> Tensor:
        """Quantise x itself, then attend: x (N, L, D), valid (N, L) -> (N, L, D)."""
        return self.attend(*self.quantized(keep_real(x, valid)), valid, time_gaps)

    def last(self, x: Tensor, valid: Tensor, time_gaps: Tensor | None = None) -> Tensor:
        """Quantise x, attend at the final real position: x (N, L, D), valid (N, L) -> (N, D)."""
        return self.attend_last(*self.quantized(keep_real(x, valid)), valid, time_gaps)

    def quantized(self, x: Tensor) -> tuple[Tensor, Quantized]:
        """Quantise every position: x (N, L, D) -> items (N, L) and the N L distinct rows that they index.

        Where codes are all that is needed, (N L, B, W) assignments exist for a block of rows at a time only.
        """
        n, length, _ = x.shape
        items = torch.arange(n * length, device=x.device).view(n, length)
        rows = x.flatten(0, 1)
        if torch.is_grad_enabled() or not self.codebook.hard:
            return items, self.codebook(rows)
        codes = torch.cat([self.codebook(block).codes for block in torch.split(rows, BLOCK_ROWS)])
        nothing = rows.new_empty(len(rows), 0)
        return items, Quantized(codes, nothing, nothing)

    def attend(self, items: Tensor, distinct: Quantized, valid: Tensor, time_gaps: Tensor | None = None) -> Tensor:
        """Attend over items that are quantised already.

        Args:
            items: (N, L) index into the U distinct rows.
            distinct: codes (U, B), assignment (U, B, W), quantised once.
            valid: (N, L) bool.
            time_gaps: (N, L), for decay="time".

        Returns:
            (N, L, D).
        """
        if not items.shape[1]:
            return self.codebook.codewords.new_zeros(*items.shape, self.codebook.codewords.shape[-1])
        table, values = self.table_and_values()
        keys, decay = self._soft(distinct), self.step_decay(time_gaps)
        return lisa_attention_items(
            items, distinct.codes, table, values, assignment=keys, decay=decay, valid=valid, causal=self.is_causal
        )

    def attend_real(self, items: Tensor, distinct: Quantized, valid: Tensor, time_gaps: Tensor | None = None) -> Tensor:
        """As attend, at the M real positions only, one row after the other: (M, D)."""
        table, values = self.table_and_values()
        keys, decay = self._soft(distinct), self.step_decay(time_gaps)
        return lisa_attention_real(
            items, distinct.codes, table, values, assignment=keys, decay=decay, valid=valid, causal=self.is_causal
        )

    def attend_last(self, items: Tensor, distinct: Quantized, valid: Tensor, time_gaps: Tensor | None = None) -> Tensor:
        """As attend, at each row's final real position only: (N, D)."""
        if not items.shape[1]:
            return self.codebook.codewords.new_zeros(items.shape[0], self.codebook.codewords.shape[-1])
        table, values = self.table_and_values()
        keys, decay = self._soft(distinct), self.step_decay(time_gaps)
        return lisa_attention_last(items, distinct.codes, table, values, assignment=keys, decay=decay, valid=valid)

    def init_state(self, n: int) -> LISAState:
        """The empty history of n users; counts are kept in float32 at least, as bfloat16 stops counting at 256."""
        codewords = self.codebook.codewords
        dtype = torch.promote_types(codewords.dtype, torch.float32)
        return LISAState(codewords.new_zeros(n, *codewords.shape[:2], dtype=dtype))

    def step(self, state: LISAState, item: Quantized, time_gap: Tensor | None = None) -> tuple[Tensor, LISAState]:
        """Append one item a user in O(B W D), at any position.

        Args:
            state: of N users.
            item: the new items, quantised: codes (N, B), assignment (N, B, W), of which hard codes need no gradient.
            time_gap: (N,), for decay="time".

        Returns:
            The attention output at the new position (N, D), and the new state.
        """
        table, values = self.table_and_values()
        decay = torch.as_tensor(self.step_decay(time_gap), dtype=torch.float64, device=table.device)
        codes, keys = item.codes.long(), self._soft(item)
        if keys is None:
            keys = torch.zeros_like(state.histogram).scatter_(2, codes.unsqueeze(2), 1.0)
        state = LISAState(histogram_step(state.histogram, keys, decay))
        return read_histogram(state.histogram, codes, table, values), state

    def state_of(self, items: Tensor, distinct: Quantized, valid: Tensor, time_gaps: Tensor | None = None) -> LISAState:
        """The state after whole sequences, arguments as in attend: float64, as a sum over any length."""
        decay = torch.as_tensor(self.step_decay(time_gaps), dtype=torch.float64, device=items.device)
        keys = self._soft(distinct)
        return LISAState(
            last_histogram(
                items,
                distinct.codes.long(),
                self.codebook.n_codewords,
                assignment=None if keys is None else keys.double(),
                decay=decay,
                valid=valid,
            )
        )

    def _soft(self, distinct: Quantized) -> Tensor | None:
        """Keys of the distinct items; None where codes alone say it: hard keys that need no gradient."""
        needs_keys = not self.codebook.hard or (torch.is_grad_enabled() and distinct.assignment.requires_grad)
        return distinct.assignment if needs_keys else None
