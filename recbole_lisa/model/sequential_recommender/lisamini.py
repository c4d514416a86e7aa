"""LISA-Mini (WWW 2021)."""

from typing import Any

from recbole_lisa.attention.codebook import Codebook
from recbole_lisa.model.lisa_recommender import LISARecommender


class LISAMini(LISARecommender):
    """LISA-Mini: small codebooks for the sequence, a second, larger set for the targets (Section 3.4)."""

    def build_targets(self, config: Any) -> None:
        """The larger set of codebooks."""
        self.target_codebook = self.build_codebook(
            config, config["n_target_codewords"], hard=True, first_column=config["n_codebooks"]
        )

    def codebooks(self) -> dict[str, Codebook]:
        """The quantisers of the history and of the targets."""
        return {**super().codebooks(), "target": self.target_codebook}
