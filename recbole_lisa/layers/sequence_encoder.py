"""From items to hidden states, by default post-norm as in SASRec (LISA, Section 4.3); for training and for serving.

h = dropout(item + position),  then in every layer  h = convolve(h),  h = block(h, attention(read(h))),  final_norm(h)

The attention reads h (post_norm) or a norm of h (pre_norm, gated; see blocks.py). LISA's first layer is different: it
reads the codes of the items, without positions, norm and convolution. LISA's other layers quantise read(h).
final_norm is a LayerNorm for pre_norm and gated; for post_norm it returns h. convolve returns h without conv_width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from recbole_lisa.attention import Attention, describe_attention
from recbole_lisa.attention.base import CodedSequences, Input, apply_layer, final_positions
from recbole_lisa.layers.blocks import BLOCKS, EncoderBlock
from recbole_lisa.layers.dropout import Dropout
from recbole_lisa.layers.query_time import QUERY_TIMES, Query, QueryTime
from recbole_lisa.ops.checks import check_choice, check_number
from recbole_lisa.ops.quantize import Quantized

POSITIONS = ("absolute", "from_end", "none")


class ItemView(NamedTuple):
    """U items as the model sees them."""

    stream: Tensor  # (U, D), enters the residual stream
    target: Tensor  # (U, D), hidden states are scored against it
    quantized: Quantized | None  # codes and assignments for the first layer's attention


class Sequences(NamedTuple):
    """N right-padded histories of rows of an ItemView."""

    rows: Tensor  # (N, L)
    valid: Tensor  # (N, L) bool
    gaps: Tensor | None = None  # (N, L), time since the previous item in the data set's time unit
    query: Query | None = None  # (N, L), when the item after each position is asked for


class Encoded(NamedTuple):
    """The result of an encoder."""

    hidden: Tensor  # hidden states (M, D) or (N, D)
    inputs: list[Tensor]  # (N, L, D), what each layer's attention reads where it reads no codes; empty if none does


class SequenceEncoder(nn.Module):
    """Positions, attention and feed-forward network.

    Args:
        build_layer: returns the attention of a layer, by its index.
        hidden_size: D.
        max_length: longest sequence; see SessionEncoder for longer ones.
        inner_size, hidden_act: F, width of the feed-forward networks, and the name of their activation.
        block, conv_width, attention_gate: a key of BLOCKS, and the settings of the blocks, see blocks.py.
        positions: absolute counts from the first item, from_end from the newest one, none has no position embedding.
        drop_path: probability that a sequence skips the last layer in training; layer i of n has i / n of it.
        any_length: read longer sequences, too; items after position max_length get the last position.
        query_time: what hidden states know of the time of the question where Sequences has one, see query_time.py.

    Raises:
        TypeError: build_layer returns no attention, or one of another hidden_size.
        ValueError: block, positions, query_time or hidden_act is unknown, conv_width is 1, or drop_path is outside
            [0, 1).
    """

    def __init__(
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
        block: str = "post_norm",
        positions: str = "absolute",
        conv_width: int = 0,
        attention_gate: bool = False,
        drop_path: float = 0.0,
        any_length: bool = False,
        query_time: str = "none",
    ) -> None:
        super().__init__()
        check_choice("positions", positions, POSITIONS)
        check_choice("query_time", query_time, QUERY_TIMES)
        check_number("drop_path", drop_path, 0, 1)
        self.max_length, self.positions, self.drop_path = max_length, positions, drop_path
        self.any_length = any_length
        self.position_embedding = nn.Embedding(max_length, hidden_size) if positions != "none" else None
        self.dropout = Dropout(dropout)
        layers = [build_layer(i) for i in range(n_layers)]
        for layer in layers:
            if not isinstance(layer, Attention) or layer.hidden_size != hidden_size:
                name = "None" if layer is None else type(layer).__name__
                given = f"{name} of hidden_size {getattr(layer, 'hidden_size', None)}"
                right = f"an attention of hidden_size {hidden_size}"
                raise TypeError(f"build_layer must return {right}, it returned {given}")
        self.attentions = nn.ModuleList(layers)
        check_choice("block", block, BLOCKS)
        own: dict[str, Any] = {"hidden_size": hidden_size, "inner_size": inner_size, "hidden_act": hidden_act}
        own |= {"layer_norm_eps": layer_norm_eps, "conv_width": conv_width, "attention_gate": attention_gate}
        self._settings = {**own, "max_length": max_length, "block": block}
        self._settings |= {"positions": positions, "any_length": any_length}
        if query_time != "none":  # 0.3.0 can read exports without it
            self._settings["query_time"] = query_time
        codes_only = layers[0].quantizer is not None and not layers[0].needs_vectors
        # Whether no layer reads anything of the items but their codes, where they have codes.
        self.has_one_coded_layer = codes_only and n_layers == 1 and not conv_width
        self.blocks = nn.ModuleList(
            BLOCKS[block](dropout=dropout, reads_codes=i == 0 and codes_only, **own) for i in range(n_layers)
        )
        pre_norm = BLOCKS[block].pre_norm
        self.final_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps) if pre_norm else nn.Identity()
        self.query_time = QueryTime(hidden_size, query_time) if query_time != "none" else None

    def settings(self) -> dict[str, Any]:
        """The constructor's keywords for inference, as plain values; `layers` has what build_attention needs.

        A ValueError for an attention that is not one of MECHANISMS.
        """
        return {**self._settings, "layers": [list(describe_attention(layer)) for layer in self.layers()]}

    def layers(self) -> list[Attention]:
        """The attention of every layer."""
        return [layer for layer in self.attentions if isinstance(layer, Attention)]

    def encoder_blocks(self) -> list[EncoderBlock]:
        """The block of every layer."""
        return [block for block in self.blocks if isinstance(block, EncoderBlock)]

    def at(self, hidden: Tensor, query: Query | None) -> Tensor:
        """Hidden states (..., D) for questions at a time; the same ones without query, or with query_time none."""
        if query is None or self.query_time is None:
            return hidden
        out: Tensor = self.query_time(hidden, query)
        return out

    def encode_non_padding(self, history: Sequences, view: ItemView) -> Encoded:
        """Hidden states at the M non-padding positions of N sequences of rows of the view, row after row, (M, D).

        Raises:
            ValueError: a sequence has more items than there are positions.
        """
        self._check_length(history)
        positions = history.valid.flatten().nonzero().squeeze(1)  # (M,) of N L
        return self._encode_at(positions, self.layers()[-1].non_padding, history, view)[0]

    def encode_last(self, history: Sequences, view: ItemView) -> Encoded:
        """Hidden states at each row's final item only, (N, D)."""
        self._check_length(history)
        return self.encode_last_of_any_length(history, view)

    def encode_last_of_any_length(self, history: Sequences, view: ItemView) -> Encoded:
        """As encode_last, for longer histories, too: items after the last position get that position."""
        return self._encode_newest(history, view)[0]

    def _encode_newest(self, history: Sequences, view: ItemView) -> tuple[Encoded, list[Tensor]]:
        """As encode_last_of_any_length, and the residual stream before each convolution."""
        n, length = history.rows.shape
        positions = final_positions(history.valid) + torch.arange(n, device=history.rows.device) * length  # (N,) of N L
        return self._encode_at(positions, self.layers()[-1].last, history, view)

    def _encode_at(
        self, positions: Tensor, attend: Callable[..., Tensor], history: Sequences, view: ItemView
    ) -> tuple[Encoded, list[Tensor]]:
        """Hidden states at M of the N L positions, where attend attends, and the stream before each convolution."""
        length = history.rows.shape[1]
        inputs: list[Tensor] = []
        streams: list[Tensor] = []
        if self.has_one_coded_layer and self.reads_codes(view):  # no layer needs the whole (N, L, D) stream
            where = self._positions(history.valid).expand(history.rows.shape)[positions // length, positions % length]
            h = self._stream(history.rows.flatten().index_select(0, positions), where, view)  # (M, D)
        else:
            whole, inputs, streams = self._before_last_layer(history, view)
            stream = whole.flatten(0, 1)  # (N L, D)
            h = stream if len(positions) == len(stream) else stream.index_select(0, positions)  # (M, D)
        attended = attend(self._input_of(-1, history, view, inputs), history.valid, history.gaps)  # (M, D)
        kept = self._kept(len(self.blocks) - 1, history.valid)
        if kept is not None:
            kept = kept.view(-1, 1)[positions // length]  # (M, 1)
        query = history.query and Query(*(x.flatten().index_select(0, positions) for x in history.query))
        return Encoded(self.at(self.final_norm(self.blocks[-1](h, attended, kept)), query), inputs), streams

    def layer_inputs(self, history: Sequences, view: ItemView) -> list[Tensor]:
        """What each layer's attention reads where it reads no codes, n_layers tensors (N, L, D)."""
        return self._before_last_layer(history, view)[1]

    def _before_last_layer(self, history: Sequences, view: ItemView) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """The residual stream (N, L, D) of the last block, the layer_inputs, the stream before each convolution."""
        stream = self._stream(history.rows, self._positions(history.valid), view)
        inputs: list[Tensor] = []
        streams: list[Tensor] = []
        for i, block in enumerate(self.encoder_blocks()):
            streams += [] if block.convolution is None else [stream]
            stream = block.convolve(stream)
            inputs.append(block.read(stream))
            if i < len(self.blocks) - 1:
                attended = self.attentions[i](self._input_of(i, history, view, inputs), history.valid, history.gaps)
                stream = block(stream, attended, self._kept(i, history.valid))
        return stream, inputs, streams

    def _kept(self, layer: int, valid: Tensor) -> Tensor | None:
        """What each of N sequences keeps of a layer in training, (N, 1, 1): 0, or 1 / (1 - rate); None at rate 0."""
        rate = self.drop_path * (layer + 1) / len(self.blocks)
        if not (self.training and rate):
            return None
        return (torch.rand(len(valid), 1, 1, device=valid.device) >= rate) / (1 - rate)

    def _positions(self, valid: Tensor) -> Tensor:
        """The position of each item, (L,) where it is the same for every row, else (N, L); 0 at padding."""
        steps = torch.arange(valid.shape[1], device=valid.device)
        if self.positions != "from_end":
            return steps
        return (valid.sum(dim=1, keepdim=True) - 1 - steps).clamp_min(0)

    def reads_codes(self, view: ItemView) -> bool:
        """Whether the first layer attends with the codes of the items instead of their vectors."""
        return view.quantized is not None and self.layers()[0].quantizer is not None

    def _input_of(self, layer: int, history: Sequences, view: ItemView, inputs: list[Tensor]) -> Input:
        """The input of a layer's attention: the codes of the items, or the vectors of layer_inputs."""
        is_first = layer in (0, -len(self.attentions))
        if is_first and view.quantized is not None and self.reads_codes(view):
            vectors = inputs[0] if self.layers()[0].needs_vectors else None
            return CodedSequences(history.rows, view.quantized, vectors)
        return inputs[layer]

    def _stream(self, rows: Tensor, positions: Tensor, view: ItemView) -> Tensor:
        """Rows (..., L) of the view at positions (..., L) or (L,) -> (..., L, D); larger positions are the last."""
        x = nn.functional.embedding(rows, view.stream)
        if self.position_embedding is not None:
            x.add_(self.position_embedding(positions.clamp_max(self.max_length - 1)))
        return apply_layer(self.dropout, x)

    def _check_length(self, history: Sequences) -> None:
        length, longest = history.rows.shape[1], self.max_length
        if length > longest and not self.any_length:
            raise ValueError(
                f"sequence of {length} items, but the model has {longest} positions: raise MAX_ITEM_LIST_LENGTH or "
                "pass the last items only"
            )
