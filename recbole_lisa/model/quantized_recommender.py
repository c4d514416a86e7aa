"""Models whose items are quantised once for all that the model does with them."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from recbole_lisa.attention.codebook import Codebook
from recbole_lisa.layers.item_store import CodedItems, CodedTargets, ItemStore
from recbole_lisa.layers.sequence_encoder import ItemView
from recbole_lisa.model.attentive_recommender import AttentiveRecommender
from recbole_lisa.ops.codeword_usage import CodewordUsage, codeword_usage
from recbole_lisa.ops.packing import code_dtype
from recbole_lisa.ops.quantize import Quantized

BLOCK_ITEMS = 2**13
"""Items quantised at once when the whole catalogue is needed, so that (V, B, W) never exists for hard codes."""

MAX_WATCHED = 2**16
"""Items whose codes tell how codebooks are used; larger catalogues are sampled evenly."""


class QuantizedRecommender(AttentiveRecommender):
    """AttentiveRecommender whose residual stream carries reconstructions y of the items, not the embeddings x.

    Each distinct item of a batch is quantised once. Where codebook is None the items stay as they are.
    """

    hard = True

    @property
    def codebook(self) -> Codebook | None:
        """The quantiser of the item table, or None."""
        raise NotImplementedError

    def build_codebook(self, config: Any, n_codewords: int, *, hard: bool) -> Codebook:
        """A quantiser with the model's settings and W = n_codewords."""
        return Codebook(
            hidden_size=config["hidden_size"],
            n_codebooks=config["n_codebooks"],
            n_codewords=n_codewords,
            similarity=config["codebook_similarity"],
            encoding=config["codebook_encoding"],
            temperature=config["codebook_temperature"],
            hard=hard,
        )

    def view(self, x: Tensor) -> ItemView:
        """Quantise the items: stream y, target as the model says."""
        if self.codebook is None:
            return super().view(x)
        quantized = self.codebook(x)
        return ItemView(quantized.reconstruction, self.target(x, quantized), quantized)

    def target(self, x: Tensor, quantized: Quantized) -> Tensor:
        """Vectors that hidden states are scored against, (U, D): here the reconstruction y."""
        return quantized.reconstruction

    def all_targets(self) -> Tensor:
        """Target vectors of all items, in blocks whose assignments are recomputed in the backward pass."""
        if self.codebook is None:
            return super().all_targets()
        blocks = torch.arange(self.n_items, device=self.item_embedding.weight.device).split(BLOCK_ITEMS)
        return torch.cat([checkpoint(self._target_block, block, use_reentrant=False) for block in blocks])

    def _target_block(self, ids: Tensor) -> Tensor:
        return self.view(self.embed(ids)).target

    @torch.no_grad()
    def item_store(self) -> ItemStore:
        """Hard codes and their codewords; soft assignments need the vectors themselves."""
        if self.codebook is None or not self.hard:
            return super().item_store()
        return CodedItems(self.item_codes(self.codebook), self.codebook.codewords.detach().clone(), self.target_store())

    def target_store(self) -> CodedTargets | None:
        """Codes and codewords that items are scored with; None for those of the history."""
        return None

    def codebooks(self) -> dict[str, Codebook]:
        """The quantisers of the item table by what they serve."""
        return {} if self.codebook is None else {"history": self.codebook}

    @torch.no_grad()
    def codebook_usage(self) -> dict[str, tuple[int, CodewordUsage]]:
        """W and how items use the codewords, of every quantiser of the item table; of MAX_WATCHED items at most."""
        step = -(-self.n_items // MAX_WATCHED)
        return {
            name: (book.n_codewords, codeword_usage(self.item_codes(book, step=step), book.n_codewords))
            for name, book in self.codebooks().items()
        }

    def item_codes(self, codebook: Codebook, *, step: int = 1) -> Tensor:
        """Codes of the real items, or of every step-th, in a quantiser, (V - 1, B), block by block."""
        blocks = torch.arange(1, self.n_items, step, device=self.item_embedding.weight.device).split(BLOCK_ITEMS)
        small = code_dtype(codebook.n_codewords)
        return torch.cat([codebook(self.embed(ids)).codes.to(small) for ids in blocks])

    def _build_item_view(self) -> ItemView:
        """All items, block by block; hard codes are kept as small integers, soft assignments as they are."""
        if self.codebook is None:
            return super()._build_item_view()
        small = torch.uint8 if self.codebook.n_codewords <= 256 else torch.int32
        parts: list[ItemView] = []
        for ids in torch.arange(self.n_items, device=self.item_embedding.weight.device).split(BLOCK_ITEMS):
            view = self.view(self.embed(ids))
            quantized = view.quantized
            assert quantized is not None
            keys = quantized.assignment[:, :0] if self.hard else quantized.assignment
            parts.append(view._replace(quantized=Quantized(quantized.codes.to(small), keys, view.stream[:0])))
        columns = [torch.cat(column) for column in zip(*(p.quantized for p in parts if p.quantized), strict=True)]
        return ItemView(torch.cat([p.stream for p in parts]), torch.cat([p.target for p in parts]), Quantized(*columns))
