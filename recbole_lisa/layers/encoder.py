"""The SASRec-style encoder around any attention mechanism, post-norm (LISA, Section 4.3)."""

from torch import Tensor, nn

from recbole_lisa.attention.base import apply_layer
from recbole_lisa.layers.dropout import Dropout
from recbole_lisa.ops.encoder_block import BlockWeights, encoder_block, encoder_block_serves

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "swish": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


class EncoderBlock(nn.Module):
    """One layer after its attention.

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
        if hidden_act not in ACTIVATIONS:
            raise ValueError(f"hidden_act must be one of {', '.join(ACTIVATIONS)}, got {hidden_act!r}")
        self.attention_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.feed_forward = nn.Sequential(
            nn.Linear(hidden_size, inner_size),
            ACTIVATIONS[hidden_act](),
            Dropout(dropout),
            nn.Linear(inner_size, hidden_size),
        )
        self.feed_forward_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.dropout = Dropout(dropout)

    def forward(self, stream: Tensor, attended: Tensor) -> Tensor:
        """The residual stream (..., D) and the output of the attention (..., D) -> (..., D)."""
        if self._fits_the_op(stream, attended):
            return encoder_block(
                stream, attended, self._weights(), dropout=self.dropout.active, eps=self.attention_norm.eps
            )
        return self.steps(stream, attended)

    def steps(self, stream: Tensor, attended: Tensor) -> Tensor:
        """forward in torch's modules: without gradients, on a GPU or under autocast."""
        h = self.attention_norm(stream + self.dropout(attended))
        return apply_layer(self.feed_forward_norm, h + self.dropout(self.feed_forward(h)))

    def _fits_the_op(self, stream: Tensor, attended: Tensor) -> bool:
        fits = isinstance(self.feed_forward[1], nn.ReLU) and stream.numel() > 0
        return fits and encoder_block_serves(stream, attended, self.attention_norm.weight)

    def _weights(self) -> BlockWeights:
        modules = self.feed_forward[0], self.feed_forward[-1], self.attention_norm, self.feed_forward_norm
        return BlockWeights(*(parameter for module in modules for parameter in module.parameters()))
