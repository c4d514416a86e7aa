"""One recommender for all attention mechanisms: embed -> attend -> FFN -> score -> loss (SASRec's architecture)."""

import math
from typing import Any, NamedTuple

import torch
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import SequentialRecommender
from recbole.utils import InputType
from torch import Tensor, nn

from recbole_lisa.attention import Attention
from recbole_lisa.attention.base import final_positions, take_positions
from recbole_lisa.fields import field_names
from recbole_lisa.layers.dropout import Dropout
from recbole_lisa.layers.encoder import EncoderBlock
from recbole_lisa.model import losses
from recbole_lisa.model.item_cache import ItemCache
from recbole_lisa.ops.quantize import Quantized


class ItemView(NamedTuple):
    """U items as the model sees them.

    stream (U, D) enters the residual stream; target (U, D) is what hidden states are scored against; quantized holds
    the codes and assignments that LISA attends with, or None.
    """

    stream: Tensor
    target: Tensor
    quantized: Quantized | None


class Batch(NamedTuple):
    """One training batch; M supervised positions.

    items (N, L); valid (N, L); gaps (N, L) or None; supervised (N, L) bool; target (M,); negative (M, R) or None.
    """

    items: Tensor
    valid: Tensor
    gaps: Tensor | None
    supervised: Tensor
    target: Tensor
    negative: Tensor | None


class AttentiveRecommender(SequentialRecommender):
    """RecBole model around any attention mechanism.

    Subclasses say which attention stands in layer i (build_layer) and, where items are quantised, how items look to
    the model (view). Trains on every position when the batch brings a target a position, else on the last one.

    Args:
        config: RecBole configuration.
        dataset: gives the number of items; item_counts (V,) for popularity-corrected SSM and time_unit where present.

    Raises:
        ValueError: on an unknown loss_type.
    """

    input_type = InputType.PAIRWISE

    def __init__(self, config: Any, dataset: Any) -> None:
        super().__init__(config, dataset)
        self.fields = field_names(config)
        self.hidden_size: int = config["hidden_size"]
        self.loss_type: str = config["loss_type"]
        self.gbce_t: float = config["gbce_t"]
        if self.loss_type not in losses.LOSSES:
            raise ValueError(f"loss_type must be one of {', '.join(losses.LOSSES)}, got {self.loss_type!r}")
        self.item_embedding = nn.Embedding(self.n_items, self.hidden_size, padding_idx=0)
        self.position_embedding = nn.Embedding(self.max_seq_length, self.hidden_size)
        self.dropout = Dropout(config["hidden_dropout_prob"])
        self.attentions = nn.ModuleList(self.build_layer(config, i) for i in range(config["n_layers"]))
        self.blocks = nn.ModuleList(
            EncoderBlock(
                hidden_size=self.hidden_size,
                inner_size=config["inner_size"],
                dropout=config["hidden_dropout_prob"],
                hidden_act=config["hidden_act"],
                layer_norm_eps=config["layer_norm_eps"],
            )
            for _ in self.attentions
        )
        self.register_buffer("time_unit", torch.tensor(float(getattr(dataset, "time_unit", 1.0))))
        self.register_buffer("log_q", self._log_q(config, dataset), persistent=False)
        self._init_embeddings()
        self._cache = ItemCache()

    def _init_embeddings(self) -> None:
        nn.init.xavier_normal_(self.item_embedding.weight)
        nn.init.xavier_normal_(self.position_embedding.weight)
        with torch.no_grad():
            self.item_embedding.weight[0].zero_()

    def _log_q(self, config: Any, dataset: Any) -> Tensor | None:
        sampling = config["train_neg_sample_args"] or {}
        if self.loss_type != "SSM" or sampling.get("distribution") != "popularity":
            return None
        return losses.log_sampling_probability(torch.as_tensor(dataset.item_counts), sampling["alpha"])

    def build_layer(self, config: Any, index: int) -> Attention:
        """The attention of layer index."""
        raise NotImplementedError

    def view(self, x: Tensor) -> ItemView:
        """How items with scaled embeddings x (U, D) look to the model."""
        return ItemView(stream=x, target=x, quantized=None)

    def attend(self, layer: int, h: Tensor, batch_view: tuple[Tensor, ItemView], valid: Tensor, gaps: Any) -> Tensor:
        """Attention of one layer: h (N, L, D) -> (N, L, D). batch_view: index (N, L) into the view's items."""
        return self.attentions[layer](h, valid)

    def attend_last(
        self, layer: int, h: Tensor, batch_view: tuple[Tensor, ItemView], valid: Tensor, gaps: Any
    ) -> Tensor:
        """As attend, at the final real position only: (N, D)."""
        return self.attentions[layer].last(h, valid)

    def embed(self, items: Tensor) -> Tensor:
        """Scaled item embeddings, (...) -> (..., D)."""
        return self.item_embedding(items) * math.sqrt(self.hidden_size)

    def _stream(self, index: Tensor, view: ItemView) -> Tensor:
        length = index.shape[1]
        if length > self.max_seq_length:
            raise ValueError(
                f"sequence of {length} items, but the model has {self.max_seq_length} positions: raise "
                "MAX_ITEM_LIST_LENGTH or pass the last items only"
            )
        h = nn.functional.embedding(index, view.stream)  # (N, L, D)
        return self.dropout(h + self.position_embedding.weight[:length])

    def encode(self, index: Tensor, view: ItemView, valid: Tensor, gaps: Tensor | None) -> Tensor:
        """Hidden state at every position.

        Args:
            index: (N, L) rows of the view.
            view: the distinct items.
            valid: (N, L) bool.
            gaps: (N, L) time gaps, or None.

        Returns:
            (N, L, D).
        """
        h = self._stream(index, view)
        for i, block in enumerate(self.blocks):
            h = block(h, self.attend(i, h, (index, view), valid, gaps))
        return h

    def encode_last(self, index: Tensor, view: ItemView, valid: Tensor, gaps: Tensor | None) -> Tensor:
        """Hidden state at each row's final real position, (N, D), which is all the last layer computes; see encode."""
        h = self._stream(index, view)
        for i, block in enumerate(self.blocks[:-1]):
            h = block(h, self.attend(i, h, (index, view), valid, gaps))
        final = len(self.blocks) - 1
        attended = self.attend_last(final, h, (index, view), valid, gaps)  # (N, D)
        return self.blocks[final](take_positions(h, final_positions(valid)), attended)

    def _read(self, interaction: Interaction) -> Batch:
        f = self.fields
        items, length = interaction[f.item_list], interaction[f.item_length]
        valid = torch.arange(items.shape[1], device=items.device) < length.unsqueeze(1)
        if f.target_list in interaction:
            supervised, target, negative = valid, interaction[f.target_list], f.negative_list
            target = target[valid]
        else:
            supervised = torch.zeros_like(valid).scatter_(1, (length - 1).clamp_min(0).unsqueeze(1), True)
            target, negative = interaction[f.item], f.negative
        sampled = None
        if self.loss_type in losses.SAMPLED_LOSSES:
            if negative not in interaction:
                raise ValueError(f"loss_type {self.loss_type} needs negatives: set train_neg_sample_args")
            sampled = interaction[negative]
            sampled = sampled[valid] if negative == f.negative_list else sampled.view(len(target), -1)
        return Batch(items, valid, self._gaps(interaction), supervised, target, sampled)

    def _gaps(self, interaction: Interaction) -> Tensor | None:
        if self.fields.time_gap_list not in interaction:
            return None
        return interaction[self.fields.time_gap_list] / self.time_unit

    def calculate_loss(self, interaction: Interaction) -> Tensor | tuple[Tensor, ...]:
        """Training loss of a batch: all positions when it brings a target a position, else the last."""
        batch = self._read(interaction)
        ids = [x for x in (batch.items, batch.target, batch.negative) if x is not None]
        if self.loss_type == "CE":
            ids = [batch.items]
        distinct, inverse = torch.cat([x.flatten() for x in ids]).unique(return_inverse=True)
        parts = inverse.split([x.numel() for x in ids])
        x = self.embed(distinct)  # (U, D)
        view = self.view(x)
        index = parts[0].view_as(batch.items)
        if self.fields.target_list in interaction:
            hidden = self.encode(index, view, batch.valid, batch.gaps)[batch.supervised]  # (M, D)
        else:
            hidden = self.encode_last(index, view, batch.valid, batch.gaps)
        if self.loss_type == "CE":
            loss = losses.full_cross_entropy(hidden, self.all_targets(), batch.target)
        else:
            loss = self._sampled_loss(hidden, view.target, batch, parts[1], parts[2].view_as(batch.negative))
        extra = self.regulariser(x, view)
        return loss if extra is None else (loss, extra)

    def _sampled_loss(self, hidden: Tensor, table: Tensor, batch: Batch, target: Tensor, negative: Tensor) -> Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        positive = losses.score_pairs(hidden, table, target.unsqueeze(1)).squeeze(1).to(wide)  # (M,)
        scores = losses.score_pairs(hidden, table, negative).to(wide)  # (M, R)
        if self.loss_type == "BCE":
            return losses.binary_cross_entropy(positive, scores)
        if self.loss_type == "BPR":
            return losses.bpr(positive, scores)
        if self.loss_type == "gBCE":
            return losses.generalised_bce(positive, scores, n_items=self.n_items - 1, t=self.gbce_t)
        log_q = self.log_q
        return losses.sampled_softmax(
            positive,
            scores,
            positive_log_q=None if log_q is None else log_q[batch.target],
            negative_log_q=None if log_q is None else log_q[batch.negative],
        )

    def regulariser(self, x: Tensor, view: ItemView) -> Tensor | None:
        """An additional loss term, or None."""
        return None

    def all_targets(self) -> Tensor:
        """Target vectors of all items (V, D), differentiable."""
        return self.view(self.embed(torch.arange(self.n_items, device=self.item_embedding.weight.device))).target

    def item_view(self) -> ItemView:
        """All items for inference, (V, ...), cached until a parameter changes."""
        return self._cache.get(self, self._build_item_view)

    def _build_item_view(self) -> ItemView:
        return self.view(self.embed(torch.arange(self.n_items, device=self.item_embedding.weight.device)))

    def train(self, mode: bool = True) -> "AttentiveRecommender":
        """Set the mode; training drops the cached item table."""
        if mode:
            self._cache.clear()
        return super().train(mode)

    def _last_hidden(self, interaction: Interaction, view: ItemView) -> Tensor:
        items, length = interaction[self.fields.item_list], interaction[self.fields.item_length]
        valid = torch.arange(items.shape[1], device=items.device) < length.unsqueeze(1)
        return self.encode_last(items, view, valid, self._gaps(interaction))  # (N, D)

    def predict(self, interaction: Interaction) -> Tensor:
        """Score of each row's own item: (N,)."""
        candidates = interaction[self.fields.item].unsqueeze(1)
        return self.score_candidates(interaction, candidates).squeeze(1)

    def score_candidates(self, interaction: Interaction, candidates: Tensor) -> Tensor:
        """Encode each history once and score its candidates: (N, K) ids -> (N, K)."""
        view = self.item_view()
        hidden = self._last_hidden(interaction, view)
        return losses.score_pairs(hidden, view.target, candidates)

    def full_sort_predict(self, interaction: Interaction) -> Tensor:
        """Scores of all items, (N, V); column 0 is padding."""
        view = self.item_view()
        return self._last_hidden(interaction, view) @ view.target.t()
