"""What RecBole 1.2.1 needs from its surroundings before it can be imported or unpickled."""

import numpy

# RecBole's modules use the left-hand names; old numpy had them, new numpy lacks them. The targets are the
# ones that RecBole itself assigns when a Config is built, so that the order of the two does not matter.
_ALIASES = {
    "bool": numpy.bool_,
    "int": numpy.int_,
    "float": numpy.float64,
    "complex": numpy.complex128,
    "object": numpy.object_,
    "str": numpy.str_,
    "long": numpy.int_,
    "unicode": numpy.str_,
    "float_": numpy.float64,
    "complex_": numpy.complex128,
    "unicode_": numpy.str_,
}


def restore_numpy_aliases() -> None:
    """Add the numpy names that RecBole uses and this numpy lacks; names that exist are left alone."""
    # vars() rather than hasattr(): numpy answers hasattr for a removed name with a warning.
    for name in _ALIASES.keys() - vars(numpy).keys():
        setattr(numpy, name, _ALIASES[name])
