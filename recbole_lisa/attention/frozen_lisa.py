"""LISA for serving: the inner-product table and the projected codebooks are worked out once."""

import torch
from torch import Tensor, nn

from recbole_lisa.attention.lisa import LISAAttention, LISAState
from recbole_lisa.ops.lisa.readout import ScoreTable, read_scored, row_span, score_table
from recbole_lisa.ops.quantize import Quantized


class FrozenLISA(LISAAttention):
    """A LISAAttention whose parameters no longer change, as the paper looks them up at inference (Complexity Analysis).

    Attending then costs no O(B W D^2) product, and a step O(B W + B W D) with a row of exp(T) for each codebook. The
    projections are dropped.

    Args:
        attention: the module to freeze; its codebook is shared.
    """

    def __init__(self, attention: LISAAttention) -> None:
        nn.Module.__init__(self)
        self.codebook = attention.codebook
        self.decay = attention.decay
        self.raw_decay = attention.raw_decay
        self.is_causal = attention.is_causal
        table, values = (x.detach().contiguous() for x in attention.table_and_values())
        rows, self.log_domain = score_table(table, row_span(table))
        self.table: Tensor
        self.values: Tensor
        self.rows: Tensor
        self.first_rows: Tensor
        self.register_buffer("table", table)
        self.register_buffer("values", values)
        self.register_buffer("rows", rows)
        self.register_buffer("first_rows", torch.arange(table.shape[0]) * table.shape[1])

    def table_and_values(self) -> tuple[Tensor, Tensor]:
        """Inner-product table T (B, W, W) and projected codebooks (B, W, D)."""
        return self.table, self.values

    def step(self, state: LISAState, item: Quantized, time_gap: Tensor | None = None) -> tuple[Tensor, LISAState]:
        """As LISAAttention.step, without gradients; scores too far apart for exp(T) take its way."""
        if self.log_domain:
            return super().step(state, item, time_gap)
        decay = torch.as_tensor(self.step_decay(time_gap), dtype=torch.float64)
        histogram = state.histogram * torch.exp(-decay).to(state.histogram.dtype).reshape(-1, 1, 1)
        codes, keys = item.codes.long(), self._soft(item)
        if keys is None:
            histogram.scatter_add_(2, codes.unsqueeze(2), histogram.new_ones(*codes.shape, 1))
        else:
            histogram += keys
        scores = ScoreTable(self.rows, log_domain=False)
        out = read_scored(histogram, codes + self.first_rows, scores, self.values.flatten(0, 1))
        return out, LISAState(histogram)
