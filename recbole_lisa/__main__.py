"""`python -m recbole_lisa`: the same as the command `recbole-lisa`."""

import sys

from recbole_lisa.cli.main import main

sys.exit(main())
