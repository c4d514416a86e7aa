"""The encoder for sessions: a history of any length is a state of constant size, updated item by item."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from recbole_lisa.attention import MECHANISMS, Attention
from recbole_lisa.layers.convolution import ShortConvolution
from recbole_lisa.layers.sequence_encoder import ItemView, SequenceEncoder, Sequences


class EncoderState(NamedTuple):
    """N histories of any length at constant size."""

    layers: tuple[Any, ...]  # the state of each attention
    hidden: Tensor  # (N, D), that of the newest item
    length: Tensor  # (N,) int64, the number of items
    convolved: tuple[Tensor, ...] = ()  # the state (N, w - 1, D) of each layer's convolution


class SessionEncoder(SequenceEncoder):
    """SequenceEncoder for histories of any length.

    Item i of a history has position min(i, max_length - 1): the newest item of a long history has the position of the
    newest item of a full window. Keys of LISA contain no position. So with one layer of LISA, a state differs from a
    window only by the items that have left the window.

    With positions from_end every new item changes the positions of all others. So there is a state only where nothing
    but the newest item's own stream contains a position: one layer that reads nothing but the codes of the items.
    """

    def stateful_layers(self) -> list[Attention]:
        """The attention of every layer; raises ValueError where there is no state of constant size."""
        layers = self.layers()
        for number, attention in enumerate(layers, start=1):
            name = type(attention).__name__
            if not attention.has_state:
                able = ", ".join(key for key, mechanism in MECHANISMS.items() if mechanism.has_state)
                raise ValueError(f"{name} has no state of constant size; mechanisms with one: {able}")
            if not attention.is_causal and number < len(layers):
                raise ValueError(f"layer {number} is bidirectional ({name}): later layers would read changed inputs")
        if self.positions == "from_end" and not self.has_one_coded_layer:
            raise ValueError(
                "with positions from_end, a new item changes the vectors of all others; only one layer of LISA that "
                "reads nothing but codes keeps none of them (no local_window, exact histogram_values or conv_width); "
                "set positions to absolute or none"
            )
        return layers

    def init_state(self, n: int) -> EncoderState:
        """The empty history of n users, with sums in float64; raises as stateful_layers."""
        states = [attention.init_state(n) for attention in self.stateful_layers()]
        layers = tuple(type(state)(*(x.double() for x in state)) for state in states)
        weight = self.encoder_blocks()[0].feed_forward_norm.weight  # (D,)
        length = torch.zeros(n, dtype=torch.int64, device=weight.device)
        convolved = tuple(convolution.init_state(n) for convolution in self.convolutions())
        return EncoderState(layers, weight.new_zeros(n, len(weight)), length, convolved)

    def convolutions(self) -> list[ShortConvolution]:
        """The convolution of every layer; empty without conv_width."""
        return [block.convolution for block in self.encoder_blocks() if block.convolution is not None]

    def state_of(self, history: Sequences, view: ItemView) -> EncoderState:
        """The state after N whole histories of any length, each of at least one item, in O(L).

        It is the same as after a step for each item; raises as stateful_layers.
        """
        (hidden, inputs), streams = self._encode_newest(history, view)
        layers = tuple(
            attention.state_of(self._input_of(i, history, view, inputs), history.valid, history.gaps)
            for i, attention in enumerate(self.stateful_layers())
        )
        pairs = zip(self.convolutions(), streams, strict=True)
        convolved = tuple(convolution.state_of(stream, history.valid) for convolution, stream in pairs)
        return EncoderState(layers, hidden, history.valid.sum(dim=1), convolved)

    def step(self, state: EncoderState, items: ItemView, time_gaps: Tensor | None = None) -> EncoderState:
        """The new state of N users after one item each; the time does not depend on the lengths of the histories.

        time_gaps (N,) is the time since the previous item in the data set's time unit, where the attention needs it.
        Raises as stateful_layers.
        """
        h = items.stream  # (N, D)
        if self.position_embedding is not None:
            newest = 0 if self.positions == "from_end" else self.max_length - 1
            h = h + self.position_embedding(state.length.clamp_max(newest))
        h = self.dropout(h)
        layers: list[Any] = []
        convolved: list[Tensor] = []
        for i, (attention, block) in enumerate(zip(self.stateful_layers(), self.encoder_blocks(), strict=True)):
            if block.convolution is not None:
                h, kept = block.convolution.step(state.convolved[i], h)
                convolved.append(kept)
            vectors = block.read(h)
            codes = items.quantized if i == 0 and self.reads_codes(items) else None
            attended, after = attention.step(state.layers[i], vectors if codes is None else codes, time_gaps, vectors)
            h = block(h, attended)
            layers.append(after)
        return EncoderState(tuple(layers), self.final_norm(h), state.length + 1, tuple(convolved))
