"""One recommender for all attention mechanisms: embed -> attend -> FFN -> score -> loss (SASRec's architecture)."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import SequentialRecommender
from recbole.utils import InputType
from torch import Tensor, nn

from recbole_lisa.attention import Attention
from recbole_lisa.config.fields import field_names
from recbole_lisa.config.model_defaults import fill_defaults, item_counts
from recbole_lisa.layers.item_store import DenseItems, ItemStore
from recbole_lisa.layers.sequence_encoder import ItemView, SequenceEncoder, Sequences
from recbole_lisa.model import losses
from recbole_lisa.model.item_cache import ItemCache
from recbole_lisa.ops.pair_scores import pair_scores


class AttentiveRecommender(SequentialRecommender, SequenceEncoder):
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
        fill_defaults(config, type(self))
        super().__init__(config, dataset)
        self.fields = field_names(config)
        self.hidden_size: int = config["hidden_size"]
        self.loss_type: str = config["loss_type"]
        self.gbce_t: float = config["gbce_t"]
        if self.loss_type not in losses.LOSSES:
            raise ValueError(f"loss_type must be one of {', '.join(losses.LOSSES)}, got {self.loss_type!r}")
        self.item_embedding = nn.Embedding(self.n_items, self.hidden_size, padding_idx=0)
        self.add_encoder(
            partial(self.build_layer, config),
            n_layers=config["n_layers"],
            hidden_size=self.hidden_size,
            max_length=self.max_seq_length,
            inner_size=config["inner_size"],
            dropout=config["hidden_dropout_prob"],
            hidden_act=config["hidden_act"],
            layer_norm_eps=config["layer_norm_eps"],
        )
        self.register_buffer("time_unit", torch.tensor(float(getattr(dataset, "time_unit", 1.0))))
        self.register_buffer("log_q", self._log_q(config, dataset), persistent=False)
        self._init_embeddings()
        self._cache = ItemCache()
        remedies = {layer.remedy for layer in self.attentions if layer.sees_future}
        if remedies:
            self.logger.warning(
                f"the published form of {type(self).__name__} lets what follows decide which earlier items a position "
                f"attends to: where every position is trained, it sees the future; {'; '.join(sorted(remedies))}"
            )

    def _init_embeddings(self) -> None:
        nn.init.xavier_normal_(self.item_embedding.weight)
        nn.init.xavier_normal_(self.position_embedding.weight)
        with torch.no_grad():
            self.item_embedding.weight[0].zero_()

    def _log_q(self, config: Any, dataset: Any) -> Tensor | None:
        sampling = config["train_neg_sample_args"] or {}
        if self.loss_type != "SSM" or sampling.get("distribution") != "popularity":
            return None
        return losses.log_sampling_probability(item_counts(dataset), sampling["alpha"])

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        """Refuse, before data is read, what this model cannot do.

        Args:
            settings: all settings of the run by key.

        Raises:
            UsageError: with what would be right.
        """

    def build_layer(self, config: Any, index: int) -> Attention:
        """The attention of layer index."""
        raise NotImplementedError

    def view(self, x: Tensor) -> ItemView:
        """How items with scaled embeddings x (U, D) look to the model."""
        return ItemView(stream=x, target=x, quantized=None)

    def embed(self, items: Tensor) -> Tensor:
        """Scaled item embeddings, (...) -> (..., D)."""
        return self.item_embedding(items) * math.sqrt(self.hidden_size)

    def _history(self, interaction: Interaction) -> Sequences:
        """The input items of a batch, by id."""
        f = self.fields
        gaps = interaction[f.time_gap_list] / self.time_unit if f.time_gap_list in interaction else None
        return Sequences(interaction[f.item_list], self._valid(interaction), gaps)

    def _valid(self, interaction: Interaction) -> Tensor:
        """(N, L), True on real items."""
        items, length = interaction[self.fields.item_list], interaction[self.fields.item_length]
        return torch.arange(items.shape[1], device=items.device) < length.unsqueeze(1)

    def _supervision(self, interaction: Interaction, valid: Tensor) -> tuple[Tensor, Tensor | None]:
        """Targets (M,) and negatives (M, R) of the M supervised positions; no negatives for CE."""
        f = self.fields
        everywhere = f.target_list in interaction
        target = interaction[f.target_list][valid] if everywhere else interaction[f.item]
        if self.loss_type not in losses.SAMPLED_LOSSES:
            return target, None
        name = f.negative_list if everywhere else f.negative
        if name not in interaction:
            raise ValueError(
                f"loss_type {self.loss_type} needs negatives: set train_neg_sample_args, or loss_type to CE"
            )
        return target, interaction[name][valid] if everywhere else interaction[name].view(len(target), -1)

    @staticmethod
    def _looked_up(index: Tensor, target: Tensor, negative: Tensor | None) -> list[Tensor]:
        """The ids that the loss of a batch looks up one by one: CE has the targets among all items."""
        return [index] if negative is None else [index, target, negative]

    def calculate_loss(self, interaction: Interaction) -> Tensor | tuple[Tensor, ...]:
        """Training loss of a batch: all positions when it brings a target a position, else the last."""
        history = self._history(interaction)
        target, negative = self._supervision(interaction, history.valid)
        ids = self._looked_up(history.index, target, negative)
        distinct, inverse = torch.cat([x.flatten() for x in ids]).unique(return_inverse=True)
        rows = [part.view_as(x) for part, x in zip(inverse.split([x.numel() for x in ids]), ids, strict=True)]
        x = self.embed(distinct)  # (U, D)
        view = self.view(x)
        history = history._replace(index=rows[0])
        if self.fields.target_list in interaction:
            hidden, inputs = self.encode_real(history, view)  # (M, D)
        else:
            inputs = self.layer_inputs(history, view)
            hidden = self.top_last(inputs[-1], history, view)  # (M, D)
        if negative is None:
            loss = losses.full_cross_entropy(hidden, self.all_targets(), target)
        else:
            pairs = torch.cat([rows[1].unsqueeze(1), rows[2]], dim=1)  # (M, 1 + R)
            scores = pair_scores(hidden, view.target, pairs)
            scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
            loss = losses.sampled_loss(
                self.loss_type,
                scores[:, 0],
                scores[:, 1:],
                n_items=self.n_items - 1,
                gbce_t=self.gbce_t,
                log_q=None if self.log_q is None else (self.log_q[target], self.log_q[negative]),
            )
        extra = self.regulariser(x, view, inputs, history.valid)
        return loss if extra is None else (loss, extra)

    def regulariser(self, x: Tensor, view: ItemView, inputs: list[Tensor], valid: Tensor) -> Tensor | None:
        """An additional loss term, or None.

        Args:
            x: (U, D) embeddings of the batch's distinct items.
            view: the same items as the model sees them.
            inputs: the residual stream before each layer, (N, L, D), or what encode_real says.
            valid: (N, L).
        """
        return None

    def all_targets(self) -> Tensor:
        """Target vectors of all items (V, D), differentiable."""
        return self.view(self.embed(torch.arange(self.n_items, device=self.item_embedding.weight.device))).target

    def item_view(self) -> ItemView:
        """All items for inference, (V, ...), cached until a parameter changes."""
        return self._cache.get(self, self._build_item_view)

    def _build_item_view(self) -> ItemView:
        return self.view(self.embed(torch.arange(self.n_items, device=self.item_embedding.weight.device)))

    @torch.no_grad()
    def item_store(self) -> ItemStore:
        """The real items, without padding, as serving keeps them: item i of the model is number i - 1."""
        return DenseItems(self.embed(torch.arange(1, self.n_items, device=self.item_embedding.weight.device)))

    def train(self, mode: bool = True) -> "AttentiveRecommender":
        """Set the mode; training drops the cached item table."""
        if mode:
            self._cache.clear()
        return super().train(mode)

    def predict(self, interaction: Interaction) -> Tensor:
        """Score of each row's own item: (N,)."""
        candidates = interaction[self.fields.item].unsqueeze(1)
        return self.score_candidates(interaction, candidates).squeeze(1)

    def score_candidates(self, interaction: Interaction, candidates: Tensor) -> Tensor:
        """Encode each history once and score its candidates: (N, K) ids -> (N, K)."""
        view = self.item_view()
        hidden = self.encode_last(self._history(interaction), view)  # (N, D)
        return pair_scores(hidden, view.target, candidates)

    def full_sort_predict(self, interaction: Interaction) -> Tensor:
        """Scores of all items, (N, V); column 0 is padding."""
        view = self.item_view()
        return self.encode_last(self._history(interaction), view) @ view.target.t()

    def item_scorer(self, interaction: Interaction) -> Callable[[Tensor], Tensor]:
        """Encode each history once; the result scores any items, ids (K,) -> (N, K)."""
        view = self.item_view()
        hidden = self.encode_last(self._history(interaction), view)  # (N, D)
        return lambda ids: hidden @ view.target.index_select(0, ids).t()
