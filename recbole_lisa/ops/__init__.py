"""Pure tensor functions: no nn.Module, no configuration, no RecBole.

NaN is not refused. A float result that depends on NaN is NaN. An integer result (a code, a bucket, a cluster) of NaN
lies in its range and means nothing.
"""

from recbole_lisa.ops.lisa.attention import (
    lisa_attention,
    lisa_attention_items,
    lisa_attention_last,
    lisa_attention_non_padding,
)
from recbole_lisa.ops.quantize import Quantized, quantize

__all__ = ["Quantized", "lisa_attention", "lisa_attention_items", "lisa_attention_last", "lisa_attention_non_padding"]
__all__ += ["quantize"]
