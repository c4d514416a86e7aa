"""LISA-Mini (WWW 2021)."""

from typing import Any

from torch import Tensor

from recbole_lisa.attention.codebook import Codebook
from recbole_lisa.layers.item_store import CodedTargets
from recbole_lisa.model.lisa_recommender import LISARecommender
from recbole_lisa.ops.quantize import Quantized


class LISAMini(LISARecommender):
    """LISA-Mini: small codebooks for the sequence, a second, larger set for the targets (Section 3.4)."""

    def build_targets(self, config: Any) -> None:
        """The larger set of codebooks."""
        self.target_codebook = self.build_codebook(config, config["n_target_codewords"], hard=True)

    def target(self, x: Tensor, quantized: Quantized | None = None) -> Tensor:
        """The reconstruction from the target codebooks."""
        return self.quantized(self.target_codebook, x).reconstruction

    def target_store(self) -> CodedTargets:
        """Codes in the target codebooks."""
        codewords = self.target_codebook.codewords.detach().clone()
        return CodedTargets(self.item_codes(self.target_codebook), codewords, temperature=self.temperature)

    def codebooks(self) -> dict[str, Codebook]:
        """The quantisers of the history and of the targets."""
        return {**super().codebooks(), "target": self.target_codebook}
