"""The error of the correctness checks."""


class CheckError(RuntimeError):
    """The code to be timed computes a wrong result."""
