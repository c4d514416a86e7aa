"""The encoder for sessions: a history of any length is a state of constant size, updated item by item."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from recbole_lisa.attention import MECHANISMS, Attention
from recbole_lisa.layers.sequence_encoder import ItemView, SequenceEncoder, Sequences


class EncoderState(NamedTuple):
    """N histories of any length at constant size.

    layers holds each attention's state; hidden (N, D) is that of the newest item; length (N,) int64 counts the items.
    """

    layers: tuple[Any, ...]
    hidden: Tensor
    length: Tensor


class SessionEncoder(SequenceEncoder):
    """SequenceEncoder for histories of any length.

    Item i of a history has position min(i, max_length - 1): the newest item of a long history has the position of the
    newest item of a full window. Keys of LISA contain no position. So with one layer of LISA, a state differs from a
    window only by the items that have left the window.
    """

    def stateful_layers(self) -> list[Attention]:
        """The attention of every layer; raises ValueError for an attention without a state of constant size."""
        layers = self.layers()
        for number, attention in enumerate(layers, start=1):
            name = type(attention).__name__
            if not attention.has_state:
                able = ", ".join(key for key, mechanism in MECHANISMS.items() if mechanism.has_state)
                raise ValueError(f"{name} has no state of constant size; mechanisms with one: {able}")
            if not attention.is_causal and number < len(layers):
                raise ValueError(f"layer {number} is bidirectional ({name}): later layers would read changed inputs")
        return layers

    def init_state(self, n: int) -> EncoderState:
        """The empty history of n users, with sums in float64; raises as stateful_layers."""
        weight = self.position_embedding.weight
        states = [attention.init_state(n) for attention in self.stateful_layers()]
        layers = tuple(type(state)(*(x.double() for x in state)) for state in states)
        length = torch.zeros(n, dtype=torch.int64, device=weight.device)
        return EncoderState(layers, weight.new_zeros(n, weight.shape[1]), length)

    def state_of(self, history: Sequences, view: ItemView) -> EncoderState:
        """The state after whole histories of any length, each of at least one item, in O(L).

        Args:
            history: N sequences of rows of the view.
            view: the distinct items.

        Returns:
            The same state as after a step for each item; raises as stateful_layers.
        """
        hidden, inputs = self.encode_last_of_any_length(history, view)
        layers = tuple(
            attention.state_of(self._input_of(i, history, view, inputs), history.valid, history.gaps)
            for i, attention in enumerate(self.stateful_layers())
        )
        return EncoderState(layers, hidden, history.valid.sum(dim=1))

    def step(self, state: EncoderState, items: ItemView, time_gaps: Tensor | None = None) -> EncoderState:
        """Append one item to each user's history; the time does not depend on its length.

        Args:
            state: of N users.
            items: the N new items.
            time_gaps: (N,) time since the previous item in the data set's time unit, where the attention needs it.

        Returns:
            The new state; raises as stateful_layers.
        """
        positions = state.length.clamp_max(self.position_embedding.num_embeddings - 1)
        h = self.dropout(items.stream + self.position_embedding(positions))  # (N, D)
        layers: list[Any] = []
        for i, (attention, block) in enumerate(zip(self.stateful_layers(), self.encoder_blocks(), strict=True)):
            codes = items.quantized if i == 0 and self.reads_codes(items) else None
            if codes is None:
                attended, after = attention.step(state.layers[i], block.read(h), time_gaps)
            else:
                attended, after = attention.step_coded(state.layers[i], codes, block.read(h), time_gaps)
            h = block(h, attended)
            layers.append(after)
        return EncoderState(tuple(layers), self.final_norm(h), state.length + 1)
