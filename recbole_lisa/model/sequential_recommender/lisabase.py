"""LISA-Base (WWW 2021)."""

from torch import Tensor

from recbole_lisa.model.lisa_recommender import LISARecommender
from recbole_lisa.ops.quantize import Quantized


class LISABase(LISARecommender):
    """LISA-Base: hard codes; targets are scored by their reconstruction from the same codebooks (Section 3.3)."""

    def target(self, x: Tensor, quantized: Quantized) -> Tensor:
        """The reconstruction y."""
        return quantized.reconstruction
