"""Search of hyperparameters: `recbole-lisa tune`, on Ray Tune. Nothing but `ray_adapter` knows Ray."""
