"""The HTTP service: an export's recommendations and sessions as JSON, with limits on all that a caller sends."""
