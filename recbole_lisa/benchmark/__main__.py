"""`python -m recbole_lisa.benchmark NAME ...`, where the command recbole-lisa is not installed."""

import sys

from recbole_lisa.cli import main

if __name__ == "__main__":
    sys.exit(main(["benchmark", *sys.argv[1:]]))
