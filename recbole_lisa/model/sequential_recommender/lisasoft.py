"""LISA-Soft (WWW 2021)."""

from torch import Tensor

from recbole_lisa.model.lisa_recommender import LISARecommender
from recbole_lisa.ops.quantize import Quantized


class LISASoft(LISARecommender):
    """LISA-Soft: keys are soft assignments; targets are scored by their own embeddings (Section 3.4)."""

    hard = False

    def target(self, x: Tensor, quantized: Quantized | None = None) -> Tensor:
        """The embedding x itself."""
        return x
