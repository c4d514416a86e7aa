"""A layer of the encoder around its attention: norms, feed-forward network and residual connections.

x is the residual stream before the layer, a what its attention adds, ff the feed-forward network.

    post_norm   a = attention(x)                    h = norm(x + a)               out = norm(h + ff(h))
    pre_norm    a = attention(norm(x))              h = x + a                     out = h + ff(norm(h))
    gated       a = attention(norm(x))              h = x + sigmoid(V x) * a      out = h + sigmoid(W h) * ff(norm(h))

Each norm has its own parameters; a and ff(.) pass through dropout. pre_norm and gated need a norm after the last layer.
With conv_width, x becomes x + conv(x) first, or x + conv(norm(x)) for pre_norm and gated; see convolution.py.
With attention_gate, a = attention(r) * silu(G r + g), where r = x for post_norm and norm(x) for the others.
"""

import torch
from torch import Tensor, nn

from recbole_lisa.attention.base import apply_layer
from recbole_lisa.layers.convolution import ShortConvolution
from recbole_lisa.layers.dropout import Dropout
from recbole_lisa.ops.checks import check_choice
from recbole_lisa.ops.encoder_block import BlockWeights, encoder_block, encoder_block_serves

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "swish": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}
SWIGLU = "swiglu"


class SwiGLU(nn.Module):
    """silu(W1 x) * (W3 x) without biases: (..., D) -> (..., F)."""

    def __init__(self, hidden_size: int, inner_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, 2 * inner_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The gated inner vectors of x."""
        gate, inner = apply_layer(self.linear, x).chunk(2, dim=-1)
        return nn.functional.silu(gate) * inner


def feed_forward_network(*, hidden_size: int, inner_size: int, dropout: float, hidden_act: str) -> nn.Sequential:
    """W2 dropout(act(W1 x + b1)) + b2, or W2 dropout(silu(W1 x) * (W3 x)) for swiglu."""
    check_choice("hidden_act", hidden_act, (*ACTIVATIONS, SWIGLU))
    if hidden_act == SWIGLU:
        gated = SwiGLU(hidden_size, inner_size)
        return nn.Sequential(gated, Dropout(dropout), nn.Linear(inner_size, hidden_size, bias=False))
    inner, act = nn.Linear(hidden_size, inner_size), ACTIVATIONS[hidden_act]()
    return nn.Sequential(inner, act, Dropout(dropout), nn.Linear(inner_size, hidden_size))


class EncoderBlock(nn.Module):
    """The post_norm block; hidden_size is D, inner_size is F, conv_width 0 stands for no convolution.

    With reads_codes the attention reads the codes of the items, not norm(x): pre_norm and gated leave that norm out,
    unless attention_gate needs it.

    Raises:
        ValueError: hidden_act is unknown, or conv_width is 1.
    """

    pre_norm = False
    """Whether the attention reads norm(x), and the last layer needs a norm after it."""
    n_residual_gates = 0

    def __init__(
        self,
        *,
        hidden_size: int,
        inner_size: int,
        dropout: float,
        hidden_act: str,
        layer_norm_eps: float,
        reads_codes: bool = False,
        conv_width: int = 0,
        attention_gate: bool = False,
    ) -> None:
        super().__init__()
        has_norm = not (self.pre_norm and reads_codes) or attention_gate
        self.attention_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps) if has_norm else nn.Identity()
        self.feed_forward = feed_forward_network(
            hidden_size=hidden_size, inner_size=inner_size, dropout=dropout, hidden_act=hidden_act
        )
        self.feed_forward_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.dropout = Dropout(dropout)
        self.residual_gates = nn.ModuleList(nn.Linear(hidden_size, hidden_size) for _ in range(self.n_residual_gates))
        self.output_gate = nn.Linear(hidden_size, hidden_size) if attention_gate else None
        norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps) if self.pre_norm and conv_width else nn.Identity()
        self.convolution = ShortConvolution(hidden_size, width=conv_width, norm=norm) if conv_width else None

    @property
    def has_fused_op(self) -> bool:
        """Whether the fused Numba op computes this block in training on the CPU: post_norm with relu."""
        return not self.pre_norm and isinstance(self.feed_forward[1], nn.ReLU)

    def convolve(self, stream: Tensor) -> Tensor:
        """The residual stream (N, L, D) after the convolution, if there is one."""
        return stream if self.convolution is None else apply_layer(self.convolution, stream)

    def read(self, stream: Tensor) -> Tensor:
        """What the attention reads of the residual stream (..., D), where it does not read codes."""
        return apply_layer(self.attention_norm, stream) if self.pre_norm else stream

    def forward(self, stream: Tensor, attended: Tensor, kept: Tensor | None = None) -> Tensor:
        """The rest of the layer, from the residual stream and the output of the attention, (..., D) each: (..., D).

        kept (..., 1) is a factor of what the layer adds, 0 where it is skipped, for stochastic depth; None for 1.
        """
        if self.output_gate is not None:
            attended = attended * nn.functional.silu(self.output_gate(self.read(stream)))
        norm = self.feed_forward_norm
        fits = kept is None and self.has_fused_op and stream.numel() > 0
        if fits and encoder_block_serves(stream, attended, norm.weight):
            modules = self.feed_forward[0], self.feed_forward[-1], self.attention_norm, norm
            weights = BlockWeights(*(parameter for module in modules for parameter in module.parameters()))
            return encoder_block(stream, attended, weights, dropout=self.dropout.active, eps=norm.eps)
        return self.steps(stream, attended, kept)

    def steps(self, stream: Tensor, attended: Tensor, kept: Tensor | None = None) -> Tensor:
        """As forward behind the gate, by torch's modules: without gradients, on a GPU, under autocast."""
        h = self.attention_norm(stream + self._branch(attended, kept))
        return apply_layer(self.feed_forward_norm, h + self._branch(self.feed_forward(h), kept))

    def _branch(self, x: Tensor, kept: Tensor | None) -> Tensor:
        x = apply_layer(self.dropout, x)
        return x if kept is None else x * kept


class PreNormBlock(EncoderBlock):
    """The pre_norm block; arguments as for EncoderBlock."""

    pre_norm = True

    def steps(self, stream: Tensor, attended: Tensor, kept: Tensor | None = None) -> Tensor:
        """As forward behind the gate, by torch's modules."""
        h = self.add(0, stream, self._branch(attended, kept))
        return self.add(1, h, self._branch(self.feed_forward(self.feed_forward_norm(h)), kept))

    def add(self, half: int, stream: Tensor, branch: Tensor) -> Tensor:
        """Add the output of the attention (half 0) or of the feed-forward network (half 1) to the residual stream."""
        return stream + branch


class GatedBlock(PreNormBlock):
    """The gated block of LiGR and eSASRec; arguments as for EncoderBlock."""

    n_residual_gates = 2

    def add(self, half: int, stream: Tensor, branch: Tensor) -> Tensor:
        """As PreNormBlock.add, times sigmoid(W stream)."""
        return stream + torch.sigmoid(self.residual_gates[half](stream)) * branch


BLOCKS: dict[str, type[EncoderBlock]] = {"post_norm": EncoderBlock, "pre_norm": PreNormBlock, "gated": GatedBlock}
