"""Search of hyperparameters with Ray Tune: `recbole-lisa tune`, and `trainable` for a `ray.tune.Tuner` of your own."""

from typing import Any

__all__ = ["trainable"]


def __getattr__(name: str) -> Any:
    """Import `trainable` on first use, so that this package imports without torch, RecBole and Ray."""
    if name == "trainable":
        from recbole_lisa.tuning.trial import trainable

        return trainable
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
