"""From atomic files to batches: interactions are stored once, windows are cut when a batch is built."""
