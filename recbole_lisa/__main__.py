"""`python -m recbole_lisa`: the same as the command `recbole-lisa`."""

import sys

from recbole_lisa.cli import EndingAtOnce


def start() -> int:
    """Import and run the command line; return the exit status."""
    with EndingAtOnce():
        from recbole_lisa.cli.main import main
    return main()


if __name__ == "__main__":
    sys.exit(start())
