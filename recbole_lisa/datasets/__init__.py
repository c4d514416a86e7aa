"""From the public archive or table of a data set to its atomic file."""
