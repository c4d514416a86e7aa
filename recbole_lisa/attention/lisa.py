"""LISA: linear-time self attention with codeword histograms (WWW 2021)."""

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from recbole_lisa.attention.base import (
    Attention,
    CodedSequences,
    Input,
    empty_state,
    take_last,
    take_non_padding,
    zero_padding,
)
from recbole_lisa.attention.codebook import Codebook, initialise_each
from recbole_lisa.attention.local import LocalAttention
from recbole_lisa.ops import lisa_attention_items, lisa_attention_last, lisa_attention_non_padding
from recbole_lisa.ops.checks import check_choice, check_number
from recbole_lisa.ops.lisa.attention import read_histogram
from recbole_lisa.ops.lisa.exact_values import exact_values_attention
from recbole_lisa.ops.lisa.histogram import histogram_step, last_histogram
from recbole_lisa.ops.lisa.operands import flat_codes, working_dtype
from recbole_lisa.ops.lisa.readout import SAFE_SPAN, read_scored, row_span, score_rows
from recbole_lisa.ops.quantize import Quantized

PROJECTIONS = ("per_codebook", "shared")
LEARNABLE = ("learnable", "time", "spread")
HISTOGRAM_VALUES = ("codewords", "exact")
DEFAULT_DECAY = 0.1
_Select = Callable[[Tensor, Tensor], Tensor]


class LISAState(NamedTuple):
    """A whole history at constant size; what the settings do not need has 0 columns."""

    histogram: Tensor  # (N, B, W)
    value_sums: Tensor  # (N, B, W, D / B + 1), sums and count of exact values
    recent_keys: Tensor  # (N, w, D), those of the last items for a local window w, see LocalAttention
    recent_values: Tensor  # (N, w, D)
    n_recent: Tensor  # (N,), their number


class LISAAttention(Attention):
    r"""x'_i = sum_b sum_w F_i[b,w] exp(T[b,q_i^b,w]) / Z_i^b  C_b[w] P_b^V  (LISA, Eq. 11 and Algorithm 1).

        T[b,i,j] = (C_b[i] P_b^Q)^T (C_b[j] P_b^K) / sqrt(D)

    O(L B W D) time. Deviations from the paper, as in the authors' code: the decay of the histogram, the scaling by
    sqrt(D), one projection per codebook. Beyond the paper, with local_window: the output is
    gate * exact attention over the last w items + (1 - gate) * x', see LocalAttention. The histogram keeps counting
    all items, the last w too, so LISA is the limit of a gate of 0.

    Args:
        hidden_size, n_codebooks, n_codewords: D, B and W.
        similarity, encoding, temperature: of the quantiser, see Codebook.
        hard: one codeword a codebook for the keys; False: soft keys (queries always use the best codeword).
        projection: per_codebook (B, D, D), or shared (D, D) as in the paper's equation.
        decay: of the histogram per step: a number (0 as in the paper), "learnable" (a scalar that starts at 0.1),
            "time" (a learnable rate times the time gap before each item), or "spread" (a learnable rate a codebook,
            which start between 1/2 and 1/256 in equal ratios; of two or more codebooks the last has no decay).
        bidirectional: sum the histogram over the whole sequence; needs decay 0.
        histogram_values: codewords (as published: C_b P_b^V), or exact: each codebook sums its D / B dimensions of
            P^V x_j over the items j of a codeword, x the residual stream. That equals softmax attention of the query
            codeword over quantised keys with exact values; see ops.lisa.exact_values.
        local_window: w, items that are also attended to exactly; 0 for none.
        local_heads: heads of the attention to these items.
        codebook: quantiser to use instead of a new one, such as that of a recommender's items.

    Raises:
        ValueError: on an unknown projection or decay, bidirectional with a decay or a local window, or local_heads that
            do not divide hidden_size.
    """

    has_state = True

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
        histogram_values: str = "codewords",
        local_window: int = 0,
        local_heads: int = 1,
        codebook: Codebook | None = None,
    ) -> None:
        super().__init__(hidden_size)
        check_choice("projection", projection, PROJECTIONS)
        if not (decay in LEARNABLE or (isinstance(decay, int | float) and decay >= 0)):
            raise ValueError(f"decay must be a number >= 0, or one of {', '.join(LEARNABLE)}, got {decay!r}")
        if bidirectional and decay != 0:
            raise ValueError(f"bidirectional LISA sums the histogram over all positions: set decay to 0, got {decay!r}")
        check_choice("histogram_values", histogram_values, HISTOGRAM_VALUES)
        self.exact = histogram_values == "exact"
        check_number("local_window", local_window, 0)
        if bidirectional and (self.exact or local_window):
            raise ValueError("bidirectional LISA needs local_window 0 and histogram_values codewords")
        self.codebook = codebook or Codebook(
            hidden_size=hidden_size,
            n_codebooks=n_codebooks,
            n_codewords=n_codewords,
            similarity=similarity,
            encoding=encoding,
            temperature=temperature,
            hard=hard,
        )
        if self.exact and hidden_size % self.codebook.n_codebooks:
            raise ValueError(f"exact values: n_codebooks must divide {hidden_size}, got {self.codebook.n_codebooks}")
        self.is_causal = not bidirectional
        self.decay = decay
        self.needs_time_gaps = decay == "time"
        self.needs_vectors = self.exact or local_window > 0
        start = torch.tensor(DEFAULT_DECAY, dtype=torch.float64)
        if decay == "spread":
            start = torch.logspace(-1, -8, max(self.codebook.n_codebooks - 1, 1), base=2.0, dtype=torch.float64)
        raw = start.expm1().log().to(torch.get_default_dtype())
        self.raw_decay = nn.Parameter(raw) if isinstance(decay, str) else None
        n_projections = 1 if projection == "shared" else self.codebook.n_codebooks
        self.query, self.key, self.value = (
            nn.Parameter(torch.empty(count, hidden_size, hidden_size))
            for count in (n_projections, n_projections, 1 if self.exact else n_projections)
        )
        for weight in (self.query, self.key, self.value):
            initialise_each(weight)
        self.local = LocalAttention(hidden_size, window=local_window, n_heads=local_heads) if local_window else None

    def settings(self) -> dict[str, Any]:
        """The keywords that build a module of the same shape with its own quantiser, as plain values."""
        keywords = {name: value for name, value in self._keywords.items() if name != "codebook"}
        return keywords | self.codebook.settings()

    @property
    def quantizer(self) -> Codebook:
        """The codebooks that quantise the input."""
        return self.codebook

    def frozen(self) -> "LISAAttention":
        """See FrozenLISA."""
        return FrozenLISA(self)

    def table_and_values(self) -> tuple[Tensor, Tensor]:
        """Inner-product table T (B, W, W) and projected codebooks (B, W, D)."""
        codewords = self.codebook.codewords  # (B, W, D)
        query, key, values = codewords @ self.query, codewords @ self.key, codewords @ self.value
        return query @ key.transpose(1, 2) / math.sqrt(codewords.shape[-1]), values

    def step_decay(self, time_gaps: Tensor | None) -> float | Tensor:
        """Decay of each step: a number, a 0-d tensor, (B,) for decay="spread", or for "time" (N, L) from time_gaps.

        A ValueError for decay="time" without gaps.
        """
        if self.raw_decay is None:
            return float(self.decay)
        rate = nn.functional.softplus(self.raw_decay)
        if self.decay == "learnable":
            return rate
        if self.decay == "spread":
            return nn.functional.pad(rate, (0, self.codebook.n_codebooks - len(rate)))
        if time_gaps is None:
            raise ValueError('decay="time" needs time_gaps (N, L): the time since the previous item')
        return rate * time_gaps

    def forward(self, x: Input, valid: Tensor, time_gaps: Tensor | None = None) -> Tensor:
        """Attend at every position; see Attention. Vectors are quantised first."""
        read = partial(lisa_attention_items, causal=self.is_causal)
        return self._attend(read, zero_padding, x, valid, time_gaps)  # (N, L, D)

    def non_padding(self, x: Input, valid: Tensor, time_gaps: Tensor | None = None) -> Tensor:
        """As forward, at the M non-padding positions only, row after row: (M, D)."""
        read = partial(lisa_attention_non_padding, causal=self.is_causal)
        return self._attend(read, take_non_padding, x, valid, time_gaps)

    def last(self, x: Input, valid: Tensor, time_gaps: Tensor | None = None) -> Tensor:
        """As forward, at each row's final item only: (N, D)."""
        return self._attend(lisa_attention_last, take_last, x, valid, time_gaps)

    def _attend(
        self, read: Callable[..., Tensor], select: _Select, x: Input, valid: Tensor, time_gaps: Tensor | None
    ) -> Tensor:
        """The operator read over the codes of x, which gives the positions that select takes of a whole (N, L, D)."""
        coded = self.coded(x, valid)
        if self.exact and valid.numel():
            out = select(self._append(coded, valid, time_gaps, self.init_state(len(valid)))[0], valid)
        else:
            table, values = self.table_and_values()  # (B, W, W), (B, W, D)
            codes, soft, parts = coded.quantized.codes, self._soft(coded.quantized), []
            same = {"valid": valid, "straight_through": self.codebook.hard and soft is not None}
            for p, rate in _rates(self.step_decay(time_gaps)):
                options = {"assignment": soft if soft is None else soft[:, p], "decay": rate, **same}
                parts.append(read(coded.rows, codes[:, p], table[p], values[p], **options))
            out = reduce(torch.add, parts)  # the sum over codebooks, each with its rate
        if self.local is None or not valid.numel():
            return out
        return torch.lerp(out, *(select(x.to(out.dtype), valid) for x in self.local(_vectors(coded, valid))))

    def _append(
        self, coded: CodedSequences, valid: Tensor, time_gaps: Tensor | None, state: LISAState
    ) -> tuple[Tensor, LISAState]:
        """Exact values: the output at every position after the state (N, L, D), and the state with the new sums."""
        with torch.autocast(valid.device.type, enabled=False):
            table, _ = self.table_and_values()
            dtype = torch.promote_types(working_dtype(table, table, row_span(table)), state.value_sums.dtype)
            n_books, n_words, _ = table.shape
            query = flat_codes(coded.quantized.codes, n_words)[coded.rows]  # (N, L, B)
            scores = nn.functional.embedding(query, score_rows(table.to(dtype)))  # (N, L, B, W)
            soft = self._soft(coded.quantized)
            keys = nn.functional.one_hot(query % n_words, n_words) if soft is None else soft[coded.rows]
            keys = keys.masked_fill(~valid[:, :, None, None], 0).to(dtype)  # (N, L, B, W)
            values = _vectors(coded, valid).to(self.value.dtype) @ self.value[0]
            values = values.view(*query.shape, self.hidden_size // n_books).to(dtype)  # (N, L, B, D / B)
            decay = torch.as_tensor(self.step_decay(time_gaps), dtype=torch.float64, device=table.device)
            steps = decay.unsqueeze(2) if decay.dim() == 2 else decay.view(1, 1, -1)
            steps = steps.expand(*valid.shape, -1).masked_fill(~valid.unsqueeze(2), 0.0)  # (N, L, B or 1)
            out, sums = exact_values_attention(scores, keys, values, steps, state.value_sums.to(dtype))
            return out.flatten(2).to(table.dtype), state._replace(histogram=sums[..., -1], value_sums=sums)

    def coded(self, x: Input, valid: Tensor) -> CodedSequences:
        """The codes of x: x itself if it has codes, else each position of the vectors (N, L, D) quantised."""
        self.check_input(x, valid)
        if isinstance(x, CodedSequences):
            return x
        rows = torch.arange(valid.numel(), device=x.device).view(valid.shape)  # (N, L)
        vectors = zero_padding(x, valid).flatten(0, 1)  # (N L, D)
        if torch.is_grad_enabled() or not self.codebook.hard:
            return CodedSequences(rows, self.codebook(vectors), x)
        codes = self.codebook(vectors, n_keys=0).codes  # (N L, B)
        unused = vectors.new_empty(len(vectors), 0)
        return CodedSequences(rows, Quantized(codes, unused, unused), x)

    def init_state(self, n: int) -> LISAState:
        """The empty history of n users."""
        codewords = self.codebook.codewords
        books, width = codewords.shape[:2], codewords.shape[2] // codewords.shape[0] + 1 if self.exact else 0
        recent = (0 if self.local is None else self.local.window, self.hidden_size)
        shapes = (books, (*books, width), recent, recent, ())
        return LISAState(*(empty_state(codewords, n, *shape) for shape in shapes))

    def step(
        self, state: LISAState, x: Tensor | Quantized, time_gap: Tensor | None = None, vectors: Tensor | None = None
    ) -> tuple[Tensor, LISAState]:
        """Append one item to each user's history in O(B W D); see Attention. Hard items may have codes only."""
        self.check_step(state, x, Tensor, Quantized)
        codes, vectors = (self.codebook(x), x) if isinstance(x, Tensor) else (x, vectors)
        if not self.needs_vectors:
            return self._step_histogram(state, codes, time_gap)
        if vectors is None:
            raise ValueError("this LISA reads vectors (N, D) beside codes: pass them to step, too")
        if self.exact:
            rows = torch.arange(len(vectors), device=vectors.device).unsqueeze(1)  # (N, 1)
            coded = CodedSequences(rows, codes, vectors.unsqueeze(1))
            gaps = None if time_gap is None else time_gap.unsqueeze(1)
            out, state = self._append(coded, torch.ones_like(rows, dtype=torch.bool), gaps, state)
            out = out.squeeze(1)
        else:
            out, state = self._step_histogram(state, codes, time_gap)
        if self.local is None:
            return out, state
        local, recent = self.local.step(state[2:], vectors)
        return torch.lerp(out, *local), LISAState(*state[:2], *recent)

    def _step_histogram(self, state: LISAState, item: Quantized, time_gap: Tensor | None) -> tuple[Tensor, LISAState]:
        """The output of the histogram alone, and the state with the new histogram."""
        decay = torch.as_tensor(self.step_decay(time_gap), dtype=torch.float64, device=state.histogram.device)
        decay = decay.unsqueeze(0) if self.decay == "spread" else decay  # (1, B)
        codes, soft = item.codes.long(), self._soft(item)
        histogram = histogram_step(state.histogram, codes if soft is None else soft, decay)
        return self._read(histogram, codes), state._replace(histogram=histogram)

    def _read(self, histogram: Tensor, query: Tensor) -> Tensor:
        """Attention of codes (N, B) over a histogram (N, B, W): (N, D)."""
        return read_histogram(histogram, query, *self.table_and_values())

    def state_of(self, x: Input, valid: Tensor, time_gaps: Tensor | None = None) -> LISAState:
        """The state after whole sequences; see Attention."""
        rows, distinct, _ = coded = self.coded(x, valid)
        state = self.init_state(len(rows))
        if self.exact and valid.numel():
            state = self._append(coded, valid, time_gaps, state._replace(value_sums=state.value_sums.double()))[1]
        else:
            soft, parts = self._soft(distinct), []
            for p, rate in _rates(self.step_decay(time_gaps)):
                decay = torch.as_tensor(rate, dtype=torch.float64, device=rows.device)
                keys = None if soft is None else soft[:, p].double()
                operands = rows, distinct.codes[:, p].long(), self.codebook.n_codewords
                parts.append(last_histogram(*operands, assignment=keys, decay=decay, valid=valid))
            state = state._replace(histogram=torch.cat(parts, dim=1))
        if self.local is None or not valid.numel():
            return state
        return LISAState(*state[:2], *(part.double() for part in self.local.state_of(_vectors(coded, valid), valid)))

    def _soft(self, distinct: Quantized) -> Tensor | None:
        """Keys of the distinct items; None for hard keys without gradient, where the codes are enough."""
        needs_keys = not self.codebook.hard or (torch.is_grad_enabled() and distinct.assignment.requires_grad)
        return distinct.assignment if needs_keys else None


def _rates(decay: float | Tensor) -> list[tuple[slice, float | Tensor]]:
    """Codebooks, and their decay of each step: all of them, or one by one where each has its own, (B,)."""
    if not isinstance(decay, Tensor) or decay.dim() != 1:
        return [(slice(None), decay)]
    return [(slice(b, b + 1), rate) for b, rate in enumerate(decay)]


def _vectors(coded: CodedSequences, valid: Tensor) -> Tensor:
    """The residual stream of coded sequences, (N, L, D) with 0 at padding."""
    if coded.vectors is None:
        raise ValueError("this LISA reads vectors (N, L, D) beside codes: CodedSequences has none")
    return zero_padding(coded.vectors, valid)


class FrozenLISA(LISAAttention):
    """LISA for serving: the inner-product table and the projected codebooks are computed once (Complexity Analysis).

    Attending then needs no O(B W D^2) product, and a step takes O(B W + B W D) with one row of exp(T) a codebook. The
    projections are dropped, the codebook is shared.
    """

    def __init__(self, attention: LISAAttention) -> None:
        Attention.__init__(self, attention.hidden_size)
        kept = ("codebook", "decay", "raw_decay", "is_causal", "local", "exact", "needs_time_gaps", "needs_vectors")
        for name in kept:
            setattr(self, name, getattr(attention, name))
        if self.exact:
            self.value = attention.value
        table, values = (x.detach().contiguous() for x in attention.table_and_values())
        self.log_domain = row_span(table) > SAFE_SPAN[table.dtype]
        self.table, self.values, self.rows = nn.Buffer(table), nn.Buffer(values), nn.Buffer(score_rows(table))
        self.first_rows = nn.Buffer(torch.arange(table.shape[0]) * table.shape[1])

    def table_and_values(self) -> tuple[Tensor, Tensor]:
        """Inner-product table T (B, W, W) and projected codebooks (B, W, D)."""
        return self.table, self.values

    def _read(self, histogram: Tensor, query: Tensor) -> Tensor:
        """As of LISAAttention, without gradients; its own code is used where exp(T) would overflow."""
        if self.log_domain:
            return super()._read(histogram, query)
        return read_scored(histogram, query + self.first_rows, self.rows, self.values.flatten(0, 1))
