"""From items to hidden states: positions -> attention -> feed-forward, once for training and for serving."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from recbole_lisa.attention import Attention, LISAAttention, describe_attention
from recbole_lisa.attention.base import final_positions, take_positions, take_valid
from recbole_lisa.layers.dropout import Dropout
from recbole_lisa.layers.encoder import EncoderBlock
from recbole_lisa.ops.quantize import Quantized


class ItemView(NamedTuple):
    """U items as the model sees them.

    stream (U, D) enters the residual stream; target (U, D) is what hidden states are scored against; quantized holds
    the codes and assignments that LISA attends with, or None.
    """

    stream: Tensor
    target: Tensor
    quantized: Quantized | None


class Sequences(NamedTuple):
    """N right-padded histories.

    index (N, L) rows of an ItemView; valid (N, L) bool; gaps (N, L) time since the previous item in the data set's time
    unit, or None.
    """

    index: Tensor  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    valid: Tensor
    gaps: Tensor | None = None


class SequenceEncoder(nn.Module):
    """The encoder as a base class: whoever owns the items derives from it and calls add_encoder in its constructor.

        h = dropout(item + position), then in every layer h = block(h, attention(h))

    Sequences hold at most max_length items; see SessionEncoder for longer ones.
    """

    position_embedding: nn.Embedding
    dropout: Dropout
    attentions: nn.ModuleList
    blocks: nn.ModuleList

    def add_encoder(
        self,
        build_layer: Callable[[int], Attention],
        *,
        n_layers: int,
        hidden_size: int,
        max_length: int,
        inner_size: int,
        dropout: float,
        hidden_act: str,
        layer_norm_eps: float,
    ) -> None:
        """Build the modules.

        Args:
            build_layer: gives the attention of a layer, by its index.
            n_layers: number of layers.
            hidden_size: D.
            max_length: longest window.
            inner_size: F, width of the feed-forward networks.
            dropout: probability.
            hidden_act: name of the activation.
            layer_norm_eps: of the LayerNorms.
        """
        self.position_embedding = nn.Embedding(max_length, hidden_size)
        self.dropout = Dropout(dropout)
        self.attentions = nn.ModuleList(build_layer(i) for i in range(n_layers))
        block_settings = {"inner_size": inner_size, "hidden_act": hidden_act, "layer_norm_eps": layer_norm_eps}
        self._settings = {"hidden_size": hidden_size, "max_length": max_length, **block_settings}
        self.blocks = nn.ModuleList(
            EncoderBlock(
                hidden_size=hidden_size,
                inner_size=inner_size,
                dropout=dropout,
                hidden_act=hidden_act,
                layer_norm_eps=layer_norm_eps,
            )
            for _ in self.attentions
        )

    def encoder_settings(self) -> dict[str, Any]:
        """What add_encoder needs to build the same encoder for inference, as plain values.

        Returns:
            Its keywords but dropout, and in `layers` (mechanism, settings) of each attention for build_attention.

        Raises:
            ValueError: an attention is none of MECHANISMS.
        """
        return {
            **self._settings,
            "layers": [list(describe_attention(self.attention(i))) for i in range(len(self.attentions))],
        }

    def attention(self, layer: int) -> Attention:
        """The attention of a layer."""
        found = self.attentions[layer]
        assert isinstance(found, Attention)
        return found

    def attend(self, layer: int, h: Tensor, history: Sequences, view: ItemView) -> Tensor:
        """Attention of one layer at every position: residual stream h (N, L, D) -> (N, L, D)."""
        attention = self.attention(layer)
        if not isinstance(attention, LISAAttention):
            out: Tensor = attention(h, history.valid)
            return out
        if layer == 0 and view.quantized is not None:
            return attention.attend(history.index, view.quantized, history.valid, history.gaps)
        return attention.forward(h, history.valid, history.gaps)

    def attend_last(self, layer: int, h: Tensor, history: Sequences, view: ItemView) -> Tensor:
        """As attend, at each row's final real position only: (N, D)."""
        attention = self.attention(layer)
        if not isinstance(attention, LISAAttention):
            return attention.last(h, history.valid)
        if layer == 0 and view.quantized is not None:
            return attention.attend_last(history.index, view.quantized, history.valid, history.gaps)
        return attention.last(h, history.valid, history.gaps)

    def layer_inputs(self, history: Sequences, view: ItemView) -> list[Tensor]:
        """The residual stream before each layer.

        Args:
            history: N sequences of rows of the view.
            view: the distinct items.

        Returns:
            n_layers tensors (N, L, D).

        Raises:
            ValueError: a sequence has more items than there are positions.
        """
        self._check_length(history)
        return self.layer_inputs_of_any_length(history, view)

    def layer_inputs_of_any_length(self, history: Sequences, view: ItemView) -> list[Tensor]:
        """As layer_inputs; items beyond the last position stand at it."""
        positions = torch.arange(history.index.shape[1], device=history.index.device)
        inputs = [self._stream(history.index, positions, view)]
        for i, block in enumerate(list(self.blocks)[:-1]):
            inputs.append(block(inputs[i], self.attend(i, inputs[i], history, view)))
        return inputs

    def _check_length(self, history: Sequences) -> None:
        length, longest = history.index.shape[1], self.position_embedding.num_embeddings
        if length > longest:
            raise ValueError(
                f"sequence of {length} items, but the model has {longest} positions: raise MAX_ITEM_LIST_LENGTH or "
                "pass the last items only"
            )

    def _stream(self, rows: Tensor, positions: Tensor, view: ItemView) -> Tensor:
        """Rows (..., L) of the view at positions (L,) -> (..., L, D); beyond the last position there is that one."""
        where = positions.clamp_max(self.position_embedding.num_embeddings - 1)
        out: Tensor = self.dropout(nn.functional.embedding(rows, view.stream).add_(self.position_embedding(where)))
        return out

    def top(self, h: Tensor, history: Sequences, view: ItemView) -> Tensor:
        """The last layer at every position: its input h (N, L, D) -> (N, L, D)."""
        layer = len(self.blocks) - 1
        out: Tensor = self.blocks[layer](h, self.attend(layer, h, history, view))
        return out

    def top_last(self, h: Tensor, history: Sequences, view: ItemView) -> Tensor:
        """The last layer at each row's final real position, all that it computes there: h (N, L, D) -> (N, D)."""
        layer = len(self.blocks) - 1
        attended = self.attend_last(layer, h, history, view)  # (N, D)
        out: Tensor = self.blocks[layer](take_positions(h, final_positions(history.valid)), attended)
        return out

    def encode(self, history: Sequences, view: ItemView) -> Tensor:
        """Hidden state at every position, (N, L, D)."""
        return self.top(self.layer_inputs(history, view)[-1], history, view)

    def encode_real(self, history: Sequences, view: ItemView) -> tuple[Tensor, list[Tensor]]:
        """Hidden state at every real position, one row after the other, (M, D): as little as possible is padding.

        Also the residual stream before each layer: (N, L, D), or (M, D) where reads_codes_only.
        """
        if self.reads_codes_only(view):
            self._check_length(history)
            real = history.valid.flatten().nonzero().squeeze(1)  # (M,)
            rows = history.index.flatten().index_select(0, real)
            inputs = [self._stream(rows, real % history.index.shape[1], view)]  # (M, D)
            h, attended = inputs[0], self._attend_real(history, view)
        else:
            inputs = self.layer_inputs(history, view)
            h = take_valid(inputs[-1], history.valid)  # (M, D)
            attended = take_valid(self.attend(len(self.blocks) - 1, inputs[-1], history, view), history.valid)
        out: Tensor = self.blocks[-1](h, attended)
        return out, inputs

    def _attend_real(self, history: Sequences, view: ItemView) -> Tensor:
        attention = self.attention(0)
        assert isinstance(attention, LISAAttention)
        assert view.quantized is not None
        return attention.attend_real(history.index, view.quantized, history.valid, history.gaps)

    def encode_last(self, history: Sequences, view: ItemView) -> Tensor:
        """Hidden state at each row's final real position, (N, D)."""
        if self.reads_codes_only(view):
            self._check_length(history)
            return self.encode_codes(history, view)
        return self.top_last(self.layer_inputs(history, view)[-1], history, view)

    def reads_codes_only(self, view: ItemView) -> bool:
        """Whether the last position needs no (N, L, D) stream: a single layer that attends with the items' codes."""
        only = len(self.attentions) == 1 and isinstance(self.attention(0), LISAAttention)
        return only and view.quantized is not None

    def encode_codes(self, history: Sequences, view: ItemView) -> Tensor:
        """encode_last where reads_codes_only, for sequences of any length; positions beyond the last are the last."""
        final = final_positions(history.valid)  # (N,)
        rows = history.index.gather(1, final.unsqueeze(1)).squeeze(1)  # (N,)
        h = self._stream(rows, final, view)  # (N, D)
        out: Tensor = self.blocks[0](h, self.attend_last(0, h, history, view))
        return out
