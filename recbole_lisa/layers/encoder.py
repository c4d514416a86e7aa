"""The SASRec-style encoder around any attention mechanism, post-norm (LISA, Section 4.3)."""

from torch import Tensor, nn

from recbole_lisa.layers.dropout import Dropout

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
        h = self.attention_norm(stream + self.dropout(attended))
        out: Tensor = self.feed_forward_norm(h + self.dropout(self.feed_forward(h)))
        return out
