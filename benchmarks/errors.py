"""What a benchmark raises."""


class GateError(RuntimeError):
    """A row does not compute what its reference computes; nothing was timed."""
