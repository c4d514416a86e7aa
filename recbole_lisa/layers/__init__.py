"""The encoder around the attention mechanisms, and the items at inference."""
