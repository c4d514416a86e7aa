"""`python -m benchmarks.paper.job WORDS`: the command line for a run that ends with what has started it.

Whoever starts it holds its standard input open. That is closed however the starting process ends, `kill -9` included,
so that no run is left behind to write into a folder in which the next one goes on.
"""

import os
import sys
import threading

from recbole_lisa.cli.main import main

_ENDED_STATUS = 143


def _follow() -> None:
    os.read(sys.stdin.fileno(), 1)  # not through its buffer, which could not be closed at the end of the program
    os._exit(_ENDED_STATUS)  # checkpoints and results are complete or not there


if __name__ == "__main__":
    threading.Thread(target=_follow, daemon=True).start()
    sys.exit(main())
