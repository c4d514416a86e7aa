"""Names of numpy that RecBole 1.2.1 needs before it can be imported or unpickled."""

import sys
from types import SimpleNamespace

# RecBole's modules use the names on the left, which newer numpy lacks. RecBole itself assigns the values on the right
# when a Config is built, so the order of the two does not matter.
_ALIASES = {
    **{name: f"{name}_" for name in ("bool", "int", "object", "str")},
    **{"long": "int_", "unicode": "str_", "unicode_": "str_"},
    **{"float": "float64", "float_": "float64", "complex": "complex128", "complex_": "complex128"},
}


def restore_numpy_aliases() -> None:
    """Add the numpy names that RecBole uses and this numpy lacks; existing names stay."""
    import numpy

    # vars() rather than hasattr(): numpy answers hasattr for a removed name with a warning.
    for name in _ALIASES.keys() - vars(numpy).keys():
        setattr(numpy, name, getattr(numpy, _ALIASES[name]))


def restore_before_recbole() -> None:
    """Restore the names now if numpy is imported, else just before RecBole is: a command starts without numpy."""
    if "numpy" in sys.modules:
        restore_numpy_aliases()
    sys.meta_path.insert(0, SimpleNamespace(find_spec=_find_nothing))


def _find_nothing(name: str, *_: object) -> None:
    if name == "recbole":
        restore_numpy_aliases()
