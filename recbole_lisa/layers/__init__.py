"""Building blocks around the attention mechanisms: quantisers and the encoder block."""
