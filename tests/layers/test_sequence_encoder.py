"""Positions, and stochastic depth; the paths for fewer positions and causality are tested with the models."""

from typing import Any

import pytest
import torch
from torch import Tensor

from recbole_lisa.attention import build_attention
from recbole_lisa.layers.sequence_encoder import ItemView, SequenceEncoder, Sequences
from tests.helpers import all_valid, assert_close, ragged

D, U = 8, 13


def build(n_layers: int = 1, max_length: int = 7, **settings: Any) -> SequenceEncoder:
    sizes: dict[str, Any] = {"n_layers": n_layers, "hidden_size": D, "max_length": max_length, "inner_size": D}
    own: dict[str, Any] = {"dropout": 0.0, "hidden_act": "relu", "layer_norm_eps": 1e-5}
    encoder = SequenceEncoder(lambda _: build_attention("full", hidden_size=D, max_length=9), **sizes, **own | settings)
    return encoder.double()


def view_of(x: Tensor) -> ItemView:
    return ItemView(x, x, None)


def test_positions_are_counted_from_the_first_or_the_newest_item() -> None:
    valid, rows = ragged(3, 7), torch.randint(U, (3, 7))
    history, x = Sequences(rows, valid), torch.randn(U, D, dtype=torch.float64)
    for n, length in enumerate(valid.sum(dim=1).tolist()):
        for positions in ("absolute", "from_end", "none"):
            encoder = build(positions=positions)
            (stream,) = encoder.layer_inputs(history, view_of(x))
            for i in range(length):
                position = {"absolute": i, "from_end": length - 1 - i}.get(positions)
                table = encoder.position_embedding
                expected = x[rows[n, i]] + (0 if position is None or table is None else table.weight[position])
                assert_close(stream[n, i], expected)


def test_older_items_than_there_are_positions_have_the_last_position() -> None:
    encoder = build(positions="from_end", max_length=3)
    history = Sequences(torch.zeros(1, 5, dtype=torch.int64), all_valid(1, 5))
    (stream,) = encoder.layer_inputs(history, view_of(torch.zeros(1, D).double()))
    assert encoder.position_embedding is not None
    assert_close(stream[0], encoder.position_embedding.weight[torch.tensor([2, 2, 2, 1, 0])])


@pytest.mark.parametrize("block", ["post_norm", "gated"])
def test_a_sequence_skips_whole_layers_in_training_only(block: str) -> None:
    encoder, x = build(2, block=block, drop_path=0.5), torch.randn(U, D, dtype=torch.float64)
    history = Sequences(torch.arange(5).expand(2000, 5), all_valid(2000, 5))
    reference = build(2, block=block)
    reference.load_state_dict(encoder.state_dict())
    hidden, expected = (module.encode_last(history, view_of(x)).hidden for module in (encoder.eval(), reference))
    assert_close(hidden, expected)
    for encode in (encoder.train().encode_last, encoder.encode_non_padding):
        hidden = encode(history, view_of(x)).hidden.view(2000, -1, D)[:, -1]
        _, counts = hidden.round(decimals=8).unique(dim=0, return_counts=True)
        # The first layer is skipped at the rate 1/4, the second at 1/2.
        expected = torch.tensor([0.25 * 0.5, 0.25 * 0.5, 0.75 * 0.5, 0.75 * 0.5])
        torch.testing.assert_close(counts.sort().values / 2000, expected, rtol=0, atol=0.05)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block": "prenorm"}, "block must be one of post_norm, pre_norm, gated, got 'prenorm'"),
        ({"positions": "end"}, "positions must be one of absolute, from_end, none, got 'end'"),
        ({"drop_path": 1.0}, r"drop_path must be in \[0, 1\), got 1.0"),
    ],
)
def test_a_wrong_form_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**settings)
