"""The same as the command `recbole-lisa`: `python run_recbole_lisa.py --model=LISASoft --dataset=ml-100k` trains."""

import sys

from recbole_lisa.__main__ import start

if __name__ == "__main__":
    sys.exit(start())
