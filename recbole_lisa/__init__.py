"""LISA: linear-time self-attention over codeword histograms, inside RecBole.

Importing the package restores the numpy names that RecBole needs (see `recbole_lisa.compat`) and does
nothing else: neither RecBole nor ray nor torch is imported before a function is called.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from recbole_lisa.compat import restore_numpy_aliases

__version__ = "0.1.0"

# Imported late: it needs torch and RecBole.
_REGISTRATION = "recbole_lisa.plugin.registration"

restore_numpy_aliases()


def register(dataset: type[Any] | None = None) -> None:
    """Make the models known to RecBole's own functions by name; see `recbole_lisa.plugin.registration.register`."""
    import_module(_REGISTRATION).register(dataset)


def unregister() -> None:
    """Undo `register`."""
    import_module(_REGISTRATION).unregister()


def registered(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that registers first, also in a fresh process; see `recbole_lisa.plugin.registration.registered`."""
    wrapped: Callable[..., Any] = import_module(_REGISTRATION).registered(function)
    return wrapped
