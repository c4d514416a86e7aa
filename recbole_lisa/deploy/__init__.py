"""From a checkpoint to what serves: the commands `export` and `recommend`."""
