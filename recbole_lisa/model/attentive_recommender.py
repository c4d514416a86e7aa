"""One recommender for all attention mechanisms: embed, attend, feed forward, score, loss (SASRec's architecture)."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from inspect import signature
from typing import Any

import torch
from recbole.data.interaction import Interaction
from recbole.model.abstract_recommender import SequentialRecommender
from recbole.utils import InputType
from torch import Tensor, nn

from recbole_lisa.attention import Attention
from recbole_lisa.attention.codebook import Codebook
from recbole_lisa.config.fields import FieldNames
from recbole_lisa.config.model_defaults import fill_defaults, inner_width
from recbole_lisa.errors import UsageError
from recbole_lisa.layers.item_store import CodedItems, CodedTargets, DenseItems, DenseTargets, ItemStore, Targets
from recbole_lisa.layers.sequence_encoder import ItemView, SequenceEncoder, Sequences
from recbole_lisa.model import losses
from recbole_lisa.model.items import item_table
from recbole_lisa.model.training_batch import read_batch, read_history
from recbole_lisa.ops.checks import check_choice
from recbole_lisa.ops.codeword_usage import CodewordUsage, codeword_usage
from recbole_lisa.ops.numba_threads import numba_serves
from recbole_lisa.ops.packing import code_dtype
from recbole_lisa.ops.pair_scores import pair_scores
from recbole_lisa.ops.quantize import Quantized

BLOCK_ITEMS = 2**13
"""Items quantised at a time when the whole catalogue is needed, so that hard codes never need a (V, B, W) tensor."""

SETTINGS = {"max_length": "MAX_ITEM_LIST_LENGTH", "dropout": "attn_dropout_prob", "temperature": "sort_temperature"}
"""Keywords of mechanisms whose settings have other names."""

MAX_WATCHED = 2**16
"""Number of items that codebook_usage quantises at most; of a larger catalogue it takes every n-th item."""


class AttentiveRecommender(SequentialRecommender):  # type: ignore[misc]  # RecBole carries no types
    """RecBole model around any attention mechanism.

    Subclasses name their mechanism, or return the attention of layer i (build_layer). Where items are quantised
    (codebook), the residual stream carries their reconstructions y instead of their embeddings x (see item_input), and
    each distinct item of a batch is quantised once. The model trains on every position if the batch has a target for
    each, else on the last one. The data set may have item_counts (V,), for popularity-corrected SSM, and time_unit.

    Raises:
        ValueError: on an unknown loss_type.
    """

    input_type = InputType.PAIRWISE
    mechanism: type[Attention] | None = None
    """The attention of every layer, where build_layer is not overridden."""
    loss_parts = ("prediction", "regulariser")
    reads_any_length = True
    """Whether the mechanism reads histories of more than MAX_ITEM_LIST_LENGTH items."""
    hard = True
    """True: items are stored as codes. False: assignments are soft, so embeddings are stored and scored."""
    item_input = "codewords"
    """What enters the residual stream of an item with soft assignments: codewords, or embeddings."""

    def __init__(self, config: Any, dataset: Any) -> None:
        fill_defaults(config, type(self))
        super().__init__(config, dataset)
        self.fields = FieldNames(config)
        self.hidden_size: int = config["hidden_size"]
        self.loss_type: str = config["loss_type"]
        self.gbce_t: float = config["gbce_t"]
        self.shared_negatives: int = config["shared_negatives"]
        self.seen_negatives: bool = config["seen_negatives"]
        self.temperature: float | None = config["score_temperature"] if config["score"] == "cosine" else None
        check_choice("loss_type", self.loss_type, losses.LOSSES)
        self.item_embedding = item_table(config, self.n_items)
        same = ("n_layers", "hidden_act", "layer_norm_eps", "block", "positions", "conv_width", "attention_gate")
        self.encoder = SequenceEncoder(
            partial(self.build_layer, config),
            hidden_size=self.hidden_size,
            max_length=self.max_seq_length,
            inner_size=inner_width(config["inner_size"], self.hidden_size),
            dropout=config["hidden_dropout_prob"],
            drop_path=config["drop_path"],
            any_length=config["windows"] == "whole",
            **{name: config[name] for name in (*same, "query_time")},
        )
        self.register_buffer("time_unit", torch.tensor(float(getattr(dataset, "time_unit", 1.0))))
        self.register_buffer("log_q", self._log_q(config, dataset), persistent=False)
        std: float | None = config["item_init_std"]
        for table in (self.item_embedding, self.encoder.position_embedding):
            if isinstance(table, nn.Embedding):
                nn.init.xavier_normal_(table.weight) if std is None else nn.init.normal_(table.weight, std=std)
        with torch.no_grad():
            self.item_embedding.weight[0].zero_()
        self._cached: tuple[list[tuple[int, int]], ItemView, Targets] | None = None
        has_op = not config["drop_path"] and all(block.has_fused_op for block in self.encoder.encoder_blocks())
        if not has_op and torch.device(config["device"]).type == "cpu" and numba_serves(self.item_embedding.weight):
            self.logger.info(
                "feed-forward layers: torch's modules, about 5% of a training step slower than the fused Numba kernel, "
                "which serves block post_norm, hidden_act relu and drop_path 0 together"
            )
        trains_all = "supervision" in config and config["supervision"] == "all_positions"
        if trains_all and not self.item_embedding.weight.is_meta:  # on meta, only its shapes are of use
            self._warn_of_the_future()

    def _warn_of_the_future(self) -> None:
        name, layers = type(self).__name__, self.encoder.layers()
        if remedies := {layer.remedy for layer in layers if layer.sees_future}:
            self.logger.warning(
                f"in the published form of {name}, later items decide which earlier ones a position attends to: where "
                f"every position is trained, it sees the future; {'; '.join(sorted(remedies))}"
            )
        if not all(layer.is_causal for layer in layers):
            self.logger.warning(f"{name} is bidirectional: where every position is trained, each sees its target")

    def _log_q(self, config: Any, dataset: Any) -> Tensor | None:
        sampling = config["train_neg_sample_args"] or {}
        if self.loss_type != "SSM" or sampling.get("distribution") != "popularity":
            return None
        counts = getattr(dataset, "item_counts", None)
        if counts is None:  # RecBole's data set: how often each item is a target
            counts = torch.bincount(dataset.inter_feat[dataset.iid_field], minlength=dataset.item_num)
        return losses.log_sampling_probability(torch.as_tensor(counts), sampling["alpha"])

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        """Raise UsageError, before data is read, if the model does not allow the settings (all of the run, by key)."""
        if cls.mechanism is not None:
            try:
                # The constructor checks its settings and allocates nothing. check_memory refuses sizes that overflow.
                with torch.device("meta"), suppress(RuntimeError):
                    cls._build_mechanism(settings, 0)
            except (ValueError, TypeError) as error:
                raise UsageError(f"{cls.__name__} cannot be built: {error}") from error

    def build_layer(self, config: Any, index: int) -> Attention:
        """The attention of layer index: the mechanism with the settings named as its keywords, see SETTINGS."""
        return self._build_mechanism(config, index)

    @classmethod
    def _build_mechanism(cls, config: Any, index: int) -> Attention:
        if not (isinstance(cls.mechanism, type) and issubclass(cls.mechanism, Attention)):
            right = "must define build_layer(config, index), which returns an attention, or mechanism, a class of them"
            raise TypeError(f"{cls.__name__} {right}, got {cls.mechanism!r}")
        _, *names = signature(cls.mechanism.__init__).parameters
        settings = {name: config[SETTINGS.get(name, name)] for name in names}
        seeds = {name: value + index for name, value in settings.items() if name.endswith("_seed")}
        return cls.mechanism(**(settings | seeds))

    def build_codebook(
        self, config: Any, n_codewords: int, *, hard: bool, of_items: bool = True, first_column: int = 0
    ) -> Codebook:
        """A quantiser with the model's settings and W = n_codewords; for fixed codes of items one of fewest weights."""
        return Codebook(
            hidden_size=config["hidden_size"],
            n_codebooks=config["n_codebooks"],
            n_codewords=n_codewords,
            similarity=(of_items and self.item_embedding.similarity) or config["codebook_similarity"],
            encoding=config["codebook_encoding"],
            temperature=config["codebook_temperature"],
            hard=hard,
            first_column=first_column,
        )

    @property
    def codebook(self) -> Codebook | None:
        """The quantiser of the items, or None."""
        return None

    def codebooks(self) -> dict[str, Codebook]:
        """The quantisers of the items by their purpose."""
        return {} if self.codebook is None else {"history": self.codebook}

    def calculate_loss(self, interaction: Interaction) -> Tensor | tuple[Tensor, ...]:
        """Training loss of a batch, and the regulariser where there is one."""
        batch = read_batch(
            interaction,
            self.fields,
            self.history(interaction),
            loss_type=self.loss_type,
            shared_negatives=bool(self.shared_negatives),
            seen_negatives=self.seen_negatives,
        )
        x = self.embed(batch.items)  # embed, (U, D)
        view = self.view(x, n_keys=batch.n_history)
        everywhere = self.fields.target_list in interaction
        encode = self.encoder.encode_non_padding if everywhere else self.encoder.encode_last
        hidden, inputs = encode(batch.history, view)  # attend, feed forward, (M, D)
        hidden = self.query(hidden if batch.supervised is None else hidden.index_select(0, batch.supervised))
        log_q = None if self.log_q is None else self.log_q[batch.items]  # (U,)
        settings: dict[str, Any] = {"n_items": self.n_items - 1, "gbce_t": self.gbce_t}
        if batch.pairs is None:
            seen = None if batch.group is None else interaction[self.fields.item_list]  # (N, L)
            items = self.item_embedding.catalogue(self)
            loss = losses.full_cross_entropy(hidden, items, batch.target, seen=seen, group=batch.group)
        elif batch.shared is not None:
            operands = hidden, view.target, batch.pairs.squeeze(1), batch.shared
            loss = losses.shared_negatives_loss(self.loss_type, *operands, log_q=log_q, **settings)  # score, loss
        else:
            scores = pair_scores(hidden, view.target, batch.pairs)  # score, (M, 1 + R)
            scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
            log_q = None if log_q is None else log_q[batch.pairs]
            loss = losses.sampled_loss(self.loss_type, scores, log_q=log_q, **settings)  # loss
        extra = self.regulariser(x, view, inputs, batch.history.valid)
        return loss if extra is None else (loss, extra)

    def regulariser(self, x: Tensor, view: ItemView, inputs: list[Tensor], valid: Tensor) -> Tensor | None:
        """An additional loss term, or None.

        x (U, D) are the embeddings of the batch's distinct items, view is these items as the model sees them, inputs is
        what each layer's attention reads, see Encoded, and valid is (N, L).
        """
        return None

    def embed(self, items: Tensor) -> Tensor:
        """Item embeddings, times sqrt(D) with scale_embedding, (...) -> (..., D); or fixed codes, (...) -> (..., C)."""
        return self.item_embedding.embed(items)

    @property
    def target_book(self) -> Codebook:
        """The last of codebooks(), that of the targets."""
        *_, book = self.codebooks().values()
        return book

    def view(self, x: Tensor, *, n_keys: int | None = None) -> ItemView:
        """Items x of embed, (U, D) or codes (U, C), as the model sees them.

        The attention reads the first n_keys of them, None is all; at 0 hard codes have no assignment.
        """
        if self.codebook is None:
            return ItemView(stream=x, target=self._normalised(x), quantized=None)
        n_keys = n_keys if self.encoder.layers()[0].quantizer is self.codebook else 0
        quantized = self.item_embedding.quantized(self.codebook, x, n_keys=n_keys)
        target = self._normalised(self.target(x, quantized))
        if n_read := len(quantized.assignment):
            quantized = quantized._replace(codes=quantized.codes[:n_read])
        stream = x if self.item_input == "embeddings" else quantized.reconstruction
        return ItemView(stream, target, quantized)

    def target(self, x: Tensor, quantized: Quantized | None = None) -> Tensor:
        """Vectors that hidden states are scored against, (U, D): reconstructions y; x without codebook or if soft.

        quantized is x by the codebook of the history, where that is known.
        """
        if self.codebook is None or not self.hard:
            return x
        if quantized is None or self.target_book is not self.codebook:
            quantized = self.item_embedding.quantized(self.target_book, x)
        return quantized.reconstruction

    def query(self, hidden: Tensor) -> Tensor:
        """Hidden states (..., D) whose products with the target vectors are the scores."""
        return hidden if self.temperature is None else self._normalised(hidden) / self.temperature

    def _normalised(self, x: Tensor) -> Tensor:
        return x if self.temperature is None else nn.functional.normalize(x, dim=-1)

    def target_vectors(self) -> Tensor:
        """Target vectors of all items, (V, D), with cosine scores of length 1."""
        return self._normalised(self.target(self.embed(torch.arange(self.n_items, device=self.time_unit.device))))

    def _blocks(self, start: int, step: int = 1) -> tuple[Tensor, ...]:
        """The ids from start on, or every step-th, in blocks of BLOCK_ITEMS."""
        ids = torch.arange(start, self.n_items, step, device=self.item_embedding.weight.device)
        return torch.split(ids, BLOCK_ITEMS)

    def predict(self, interaction: Interaction) -> Tensor:
        """Score of the item in each row: (N,)."""
        return self.score_candidates(interaction, interaction[self.fields.item].unsqueeze(1)).squeeze(1)

    def score_candidates(self, interaction: Interaction, candidates: Tensor) -> Tensor:
        """Encode each history once and score its candidates: (N, K) ids -> (N, K)."""
        view, rows = self.item_embedding.some(self, candidates)
        return pair_scores(self._encode_last(interaction), view.target, rows)

    def full_sort_predict(self, interaction: Interaction) -> Tensor:
        """Scores of all items, (N, V); column 0 is padding."""
        targets = self.item_embedding.targets(self)
        return targets.scores(targets.query(self._encode_last(interaction)), 0, self.n_items)

    def item_scorer(self, interaction: Interaction) -> Callable[[Tensor], Tensor]:
        """Encode each history once; returns a function that scores items, ids (K,) -> (N, K)."""
        targets = self.item_embedding.targets(self)
        query = targets.query(self._encode_last(interaction))
        return lambda ids: targets.take(ids).scores(query, 0, len(ids))

    def _encode_last(self, interaction: Interaction) -> Tensor:
        return self.query(self.encoder.encode_last(*self.view_of(self.history(interaction))).hidden)  # (N, D)

    def view_of(self, history: Sequences) -> tuple[Sequences, ItemView]:
        """Histories for inference as rows of items, and these items."""
        view, rows = self.item_embedding.some(self, history.rows)
        return history._replace(rows=rows), view

    def item_view(self) -> ItemView:
        """All items for inference, (V, ...); in eval mode cached until a parameter changes (not by `.data`)."""
        return self._build_item_view() if self.training else self._items()[1]

    def item_targets(self) -> Targets:
        """All items as targets of inference, cached as item_view is; of hard codes, equal codes have equal scores."""
        return self._build_targets(self._build_item_view()) if self.training else self._items()[2]

    def _items(self) -> tuple[Any, ItemView, Targets]:
        versions = [(x.data_ptr(), x._version) for x in (*self.parameters(), *self.buffers())]
        if self._cached is None or self._cached[0] != versions:
            with torch.no_grad():
                view = self._build_item_view()
                self._cached = versions, view, self._build_targets(view)
        return self._cached

    def _build_item_view(self) -> ItemView:
        """All items, block by block, with codes as small integers. Assignments are kept only if they are soft."""
        if (book := self.codebook) is None:
            return self.view(self.embed(torch.arange(self.n_items, device=self.item_embedding.weight.device)))
        small, columns = code_dtype(book.n_codewords), []
        for ids in self._blocks(0):
            stream, target, quantized = self.view(self.embed(ids), n_keys=0 if self.hard else None)
            assert quantized is not None
            columns.append((stream, target, quantized.codes.to(small), quantized.assignment, stream[:0]))
        stream, target, *rest = (torch.cat(parts) for parts in zip(*columns, strict=True))
        return ItemView(stream, target, Quantized(*rest))

    def _build_targets(self, view: ItemView) -> Targets:
        # Products with equal vectors can differ in rounding: a matrix product rounds by the place of a column.
        if (book := self.codebook) is None or not self.hard:
            return DenseTargets(view.target)
        if (target_book := self.target_book) is not book or view.quantized is None:
            codes = nn.functional.pad(self.item_codes(target_book), (0, 0, 1, 0))  # of the padding any
        else:
            codes = view.quantized.codes
        return CodedTargets(codes, target_book.codewords.detach(), temperature=self.temperature)

    def train(self, mode: bool = True) -> "AttentiveRecommender":
        """Set the mode and drop the cached items."""
        self._cached = None
        super().train(mode)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load parameters of this version and of 0.1.0; see current_names."""
        renamed = current_names(state_dict, prefix)
        state_dict.clear()
        state_dict.update(renamed)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the cached items out of a copied or pickled model."""
        return {**self.__dict__, "_cached": None}

    def history(self, interaction: Interaction) -> Sequences:
        """The input items of a batch, by id."""
        has_query = self.encoder.query_time is not None
        return read_history(interaction, self.fields, time_unit=self.time_unit, query_time=has_query)

    @torch.no_grad()
    def item_store(self) -> ItemStore:
        """The items for serving, item i as number i - 1: hard codes with their codewords, else vectors."""
        if self.codebook is None or not self.hard:
            x = self.embed(torch.arange(1, self.n_items, device=self.item_embedding.weight.device))
            return DenseItems(x, temperature=self.temperature, item_input=self.item_input)
        settings: dict[str, Any] = {"temperature": self.temperature, "dense": self.item_embedding.dense_from(1)}
        books = self.codebooks().values()
        return CodedItems(*(CodedTargets(self.item_codes(b), b.codewords.detach().clone(), **settings) for b in books))

    def item_codes(self, codebook: Codebook, *, step: int = 1) -> Tensor:
        """Codes (V - 1, B) of the items, or of every step-th item, by a quantiser, block by block."""
        blocks = self._blocks(1, step)
        shape, dtype = (sum(map(len, blocks)), codebook.n_codebooks), code_dtype(codebook.n_codewords)
        codes = torch.empty(shape, dtype=dtype, device=blocks[0].device)
        for rows, ids in zip(torch.split(codes, BLOCK_ITEMS), blocks, strict=True):
            rows.copy_(self.item_embedding.codes(codebook, self.embed(ids)))
        return codes

    @torch.no_grad()
    def codebook_usage(self) -> dict[str, tuple[int, CodewordUsage]]:
        """Quantiser of the items -> W, and how its codewords are used by at most MAX_WATCHED items."""
        step = -(-self.n_items // MAX_WATCHED)
        return {
            name: (book.n_codewords, codeword_usage(self.item_codes(book, step=step), book.n_codewords))
            for name, book in self.codebooks().items()
        }

    def items_with_equal_codes(self) -> int:
        """How many items have the same codes, and so the same score, as another item; 0 if targets are vectors."""
        return self.item_store().targets.items_with_equal_codes()


def current_names(weights: Mapping[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """A state dict with the parameter names of this version: 0.1.0 named those of the encoder without `encoder.`."""
    old = tuple(prefix + part for part in ("position_embedding.", "attentions.", "blocks."))
    return {
        f"{prefix}encoder.{name[len(prefix) :]}" if name.startswith(old) else name: value
        for name, value in weights.items()
    }
