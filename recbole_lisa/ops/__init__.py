"""Pure tensor functions: no nn.Module, no configuration, no RecBole."""

from recbole_lisa.ops.lisa.attention import (
    lisa_attention,
    lisa_attention_items,
    lisa_attention_last,
    lisa_attention_non_padding,
)
from recbole_lisa.ops.quantize import Quantized, quantize

__all__ = ["Quantized", "lisa_attention", "lisa_attention_items", "lisa_attention_last", "lisa_attention_non_padding"]
__all__ += ["quantize"]
