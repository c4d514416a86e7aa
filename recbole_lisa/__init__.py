"""LISA: linear-time self-attention over codeword histograms, inside RecBole.

Importing the package restores the numpy names that RecBole needs (see `recbole_lisa.compat`) and does
nothing else: neither RecBole nor ray nor torch is imported.
"""

from recbole_lisa.compat import restore_numpy_aliases

__version__ = "0.1.0"

restore_numpy_aliases()
