"""`python -m recbole_lisa`: the same as the command `recbole-lisa`."""

import sys

from recbole_lisa.cli import imported


def start() -> int:
    """Import and run the command line; return the exit status."""
    return int(imported("cli.main").main())


if __name__ == "__main__":
    sys.exit(start())
