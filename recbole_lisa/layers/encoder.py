"""The SASRec-style encoder around any attention mechanism, post-norm (LISA, Section 4.3)."""

from torch import Tensor, nn

from recbole_lisa.layers.dropout import Dropout
from recbole_lisa.ops.encoder_block import BlockWeights, encoder_block
from recbole_lisa.ops.numba_threads import numba_serves, trains_eagerly

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "swish": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


def activation(name: str) -> nn.Module:
    """The activation module of that name.

    Raises:
        ValueError: on an unknown name.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"hidden_act must be one of {', '.join(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]()


class EncoderBlock(nn.Module):
    """What follows the attention in one layer.

        h = LayerNorm(h + dropout(attended))
        h = LayerNorm(h + dropout(W2 dropout(act(W1 h))))

    Args:
        hidden_size: D.
        inner_size: F, width of the feed-forward network.
        dropout: probability.
        hidden_act: name of the activation.
        layer_norm_eps: of both LayerNorms.
    """

    def __init__(
        self, *, hidden_size: int, inner_size: int, dropout: float, hidden_act: str, layer_norm_eps: float
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.feed_forward = nn.Sequential(
            nn.Linear(hidden_size, inner_size),
            activation(hidden_act),
            Dropout(dropout),
            nn.Linear(inner_size, hidden_size),
        )
        self.feed_forward_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.dropout = Dropout(dropout)

    def forward(self, stream: Tensor, attended: Tensor) -> Tensor:
        """One layer of the encoder.

        Args:
            stream: (..., D) residual stream.
            attended: (..., D) output of the attention.

        Returns:
            (..., D).
        """
        if self._fits_the_op(stream, attended):
            return encoder_block(
                stream, attended, self._weights(), dropout=self.dropout.active, eps=self.attention_norm.eps
            )
        return self.steps(stream, attended)

    def steps(self, stream: Tensor, attended: Tensor) -> Tensor:
        """forward, one module after the other: without gradients, on a GPU, under autocast and the like."""
        h = self.attention_norm(stream + self.dropout(attended))
        out: Tensor = self.feed_forward_norm(h + self.dropout(self.feed_forward(h)))
        return out

    def _fits_the_op(self, stream: Tensor, attended: Tensor) -> bool:
        fits = isinstance(self.feed_forward[1], nn.ReLU) and stream.numel() > 0
        return fits and trains_eagerly() and numba_serves(stream, attended, self.attention_norm.weight)

    def _weights(self) -> BlockWeights:
        first, last = self.feed_forward[0], self.feed_forward[-1]
        assert isinstance(first, nn.Linear)
        assert isinstance(last, nn.Linear)
        norms = self.attention_norm, self.feed_forward_norm
        return BlockWeights(
            first.weight, first.bias, last.weight, last.bias, *(x for norm in norms for x in (norm.weight, norm.bias))
        )
