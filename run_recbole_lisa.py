"""The same as the command `recbole-lisa`: `python run_recbole_lisa.py --model=LISASoft --dataset=ml-100k` trains."""

import sys

from recbole_lisa.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
