"""Training and evaluation of one model."""
