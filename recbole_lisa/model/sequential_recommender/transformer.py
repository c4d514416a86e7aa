"""The vanilla Transformer of the comparison."""

from typing import Any

from recbole_lisa.attention import FullAttention
from recbole_lisa.attention.codebook import Codebook
from recbole_lisa.model.attentive_recommender import AttentiveRecommender


class Transformer(AttentiveRecommender):
    """Exact softmax attention on torch's fused kernels in the same encoder (SASRec, post-norm).

    With quantize_items, items are sums of codewords, as in LISA-Base. The codebooks can then be migrated to a LISA-Base
    (in the paper: Migrating Codebooks from Vanilla Self-Attention).
    """

    mechanism = FullAttention

    def __init__(self, config: Any, dataset: Any) -> None:
        super().__init__(config, dataset)
        self.item_codebook = (
            self.build_codebook(config, config["n_codewords"], hard=True) if config["quantize_items"] else None
        )

    @property
    def codebook(self) -> Codebook | None:
        """The quantiser of the items, None without quantize_items."""
        return self.item_codebook
