"""The encoder over histories of any length, kept at constant size and continued item by item."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from recbole_lisa.attention import LinearAttention, LISAAttention
from recbole_lisa.layers.sequence_encoder import ItemView, SequenceEncoder, Sequences


class EncoderState(NamedTuple):
    """N histories of any length at constant size.

    layers holds each attention's state; hidden (N, D) is the hidden state at the newest item; length (N,) int64 counts
    the items.
    """

    layers: tuple[Any, ...]
    hidden: Tensor
    length: Tensor


class SessionEncoder(SequenceEncoder):
    """SequenceEncoder whose histories go on for ever.

    A state holds a whole history, where a sequence holds a window of at most max_length items. Item i of a history
    stands at position min(i, max_length - 1): the newest item of a long history stands where the newest item of a full
    window does, and with one layer of LISA, whose keys carry no position, the two differ only by what has left the
    window.
    """

    def stateful_layers(self) -> list[LISAAttention | LinearAttention]:
        """The attention of every layer, all of which can keep a history at constant size.

        Raises:
            ValueError: one of them cannot; the message says which and why.
        """
        found: list[LISAAttention | LinearAttention] = []
        for i in range(len(self.attentions)):
            attention = self.attention(i)
            name = type(attention).__name__
            if not isinstance(attention, LISAAttention | LinearAttention):
                raise ValueError(f"{name} has no state of constant size, only LISA and linear attention have one")
            if not attention.is_causal and i < len(self.attentions) - 1:
                raise ValueError(f"the bidirectional {name} of layer {i + 1} changes what the layers above have read")
            found.append(attention)
        return found

    def init_state(self, n: int) -> EncoderState:
        """The empty history of n users. Sums are kept in float64: they go on for any number of steps.

        Args:
            n: users.

        Raises:
            ValueError: as stateful_layers.
        """
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
            The same as from that many steps.

        Raises:
            ValueError: as stateful_layers.
        """
        items, valid, gaps = history
        codes_only = self.reads_codes_only(view)
        inputs = [view.stream[:0]] if codes_only else self.layer_inputs_of_any_length(history, view)
        layers: list[Any] = []
        for i, (attention, h) in enumerate(zip(self.stateful_layers(), inputs, strict=True)):
            if isinstance(attention, LinearAttention):
                layers.append(attention.state_of(h, valid))
            elif i == 0 and view.quantized is not None:
                layers.append(attention.state_of(items, view.quantized, valid, gaps))
            else:
                layers.append(attention.state_of(*attention.quantized(h), valid, gaps))
        hidden = self.encode_codes(history, view) if codes_only else self.top_last(inputs[-1], history, view)
        return EncoderState(tuple(layers), hidden, valid.sum(dim=1))

    def step(self, state: EncoderState, items: ItemView, time_gaps: Tensor | None = None) -> EncoderState:
        """Append one item a user, in the same time at any length.

        Args:
            state: of N users.
            items: the N new items.
            time_gaps: (N,) time since the previous item in the data set's time unit, where the attention asks for it.

        Returns:
            The new state.

        Raises:
            ValueError: as stateful_layers.
        """
        positions = state.length.clamp_max(self.position_embedding.num_embeddings - 1)
        h = self.dropout(items.stream + self.position_embedding(positions))  # (N, D)
        layers: list[Any] = []
        for i, (attention, block) in enumerate(zip(self.stateful_layers(), self.blocks, strict=True)):
            after: Any
            if isinstance(attention, LinearAttention):
                attended, after = attention.step(state.layers[i], h)
            else:
                keys = items.quantized if i == 0 and items.quantized is not None else attention.codebook(h)
                attended, after = attention.step(state.layers[i], keys, time_gaps)
            h = block(h, attended)
            layers.append(after)
        return EncoderState(tuple(layers), h, state.length + 1)
