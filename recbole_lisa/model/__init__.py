"""The RecBole boundary: Interaction <-> tensors, scores, losses."""
