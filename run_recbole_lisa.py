"""Train and test one model: `python run_recbole_lisa.py --model=LISASoft --dataset=ml-100k`."""

import sys

from recbole_lisa.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))
