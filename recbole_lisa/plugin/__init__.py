"""Use of these models with RecBole's own functions."""
