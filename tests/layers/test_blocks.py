"""Each block against its formula, written out with the parameters of the block."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, silu

from recbole_lisa.layers.blocks import ACTIVATIONS, BLOCKS, EncoderBlock
from tests.helpers import assert_close, assert_close_with_gradients

D, F, EPS = 4, 6, 1e-2
SIZES: dict[str, Any] = {"hidden_size": D, "inner_size": F, "dropout": 0.0, "layer_norm_eps": EPS}


def build(block: str, hidden_act: str = "relu", **settings: Any) -> EncoderBlock:
    module = BLOCKS[block](**SIZES | {"hidden_act": hidden_act} | settings).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module


def feed_forward(weights: dict[str, Tensor], hidden_act: str, x: Tensor) -> Tensor:
    if hidden_act == "swiglu":
        gate, inner = weights["feed_forward.0.linear.weight"][:F], weights["feed_forward.0.linear.weight"][F:]
        return (silu(x @ gate.t()) * (x @ inner.t())) @ weights["feed_forward.2.weight"].t()
    act = {"relu": torch.relu, "gelu": gelu}[hidden_act]
    inner = act(x @ weights["feed_forward.0.weight"].t() + weights["feed_forward.0.bias"])
    return inner @ weights["feed_forward.3.weight"].t() + weights["feed_forward.3.bias"]


def naive_block(module: EncoderBlock, block: str, act: str, x: Tensor, attended: Tensor, kept: float = 1.0) -> Tensor:
    """The formulas of the module docstring, one position at a time."""
    weights = dict(module.named_parameters())

    def norm(name: str, h: Tensor) -> Tensor:
        return layer_norm(h, (D,), weights[f"{name}.weight"], weights[f"{name}.bias"], EPS)

    def gate(half: int, h: Tensor) -> Tensor:
        return torch.sigmoid(h @ weights[f"residual_gates.{half}.weight"].t() + weights[f"residual_gates.{half}.bias"])

    def at_one(x: Tensor, a: Tensor) -> Tensor:
        if module.output_gate is not None:
            read = x if block == "post_norm" else norm("attention_norm", x)
            a = a * silu(read @ weights["output_gate.weight"].t() + weights["output_gate.bias"])
        a = a * kept
        if block == "post_norm":
            h = norm("attention_norm", x + a)
            return norm("feed_forward_norm", h + kept * feed_forward(weights, act, h))
        h = x + (gate(0, x) * a if block == "gated" else a)
        fed = kept * feed_forward(weights, act, norm("feed_forward_norm", h))
        return h + (gate(1, h) * fed if block == "gated" else fed)

    rows = zip(x.view(-1, D), attended.view(-1, D), strict=True)
    return torch.stack([at_one(*row) for row in rows]).view(x.shape)


@pytest.mark.parametrize("gate", [{}, {"attention_gate": True}, {"attention_gate": True, "reads_codes": True}], ids=str)
@pytest.mark.parametrize("hidden_act", ["relu", "gelu", "swiglu"])
@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_equals_its_formula(block: str, hidden_act: str, gate: dict[str, bool]) -> None:
    module = build(block, hidden_act, **gate)
    x, attended = (torch.randn(3, 5, D, dtype=torch.float64, requires_grad=True) for _ in range(2))
    expected = naive_block(module, block, hidden_act, x, attended)
    assert_close_with_gradients(module(x, attended), expected, [x, attended, *module.parameters()])
    if not gate:  # steps begin behind the gate
        assert_close(module.steps(x, attended), expected)


@pytest.mark.parametrize("block", BLOCKS)
def test_stochastic_depth_scales_both_halves(block: str) -> None:
    module = build(block, attention_gate=True)
    x, attended = (torch.randn(2, 5, D, dtype=torch.float64) for _ in range(2))
    out = module(x, attended, torch.tensor([0.0, 2.0]).view(2, 1, 1))
    for n, kept in enumerate((0.0, 2.0)):
        assert_close(out[n], naive_block(module, block, "relu", x[n], attended[n], kept))
    if block != "post_norm":
        assert_close(out[0], x[0])


@pytest.mark.parametrize("block", BLOCKS)
def test_an_attention_reads_the_stream_or_its_norm(block: str) -> None:
    module, x = build(block), torch.randn(3, D, dtype=torch.float64)
    norm = module.attention_norm
    expected = x if block == "post_norm" else layer_norm(x, (D,), norm.weight, norm.bias, EPS)
    assert_close(module.read(x), expected)
    # With codes the norm of pre_norm would have no use; that of post_norm comes after the attention.
    coded = dict(build(block, reads_codes=True).named_parameters())
    assert ("attention_norm.weight" in coded) == (block == "post_norm")


def test_each_half_drops_elements_in_training() -> None:
    for block in BLOCKS:
        module, x, attended = build(block, dropout=0.5), torch.randn(3, D).double(), torch.randn(3, D).double()
        assert not torch.equal(module(x, attended), module(x, attended))
        module.eval()
        assert_close(module(x, attended), naive_block(module, block, "relu", x, attended))


def test_a_block_names_an_unknown_activation() -> None:
    with pytest.raises(ValueError, match=f"{', '.join(ACTIVATIONS)}, swiglu, got 'rely'"):
        build("gated", "rely")
