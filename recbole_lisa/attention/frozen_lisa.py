"""LISA for serving: the inner-product table and the projected codebooks are worked out once."""

from torch import Tensor, nn

from recbole_lisa.attention.lisa import LISAAttention


class FrozenLISA(LISAAttention):
    """A LISAAttention whose parameters no longer change, as the paper looks them up at inference (Complexity Analysis).

    Attending then costs no O(B W D^2) product. The projections are dropped.

    Args:
        attention: the module to freeze; its codebook is shared.
    """

    def __init__(self, attention: LISAAttention) -> None:
        nn.Module.__init__(self)
        self.codebook = attention.codebook
        self.decay = attention.decay
        self.raw_decay = attention.raw_decay
        self.is_causal = attention.is_causal
        table, values = attention.table_and_values()
        self.table: Tensor
        self.values: Tensor
        self.register_buffer("table", table.detach().contiguous())
        self.register_buffer("values", values.detach().contiguous())

    def table_and_values(self) -> tuple[Tensor, Tensor]:
        """Inner-product table T (B, W, W) and projected codebooks (B, W, D)."""
        return self.table, self.values
