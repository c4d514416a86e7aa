"""Names of numpy that RecBole 1.2.1 needs before it can be imported or unpickled."""

import numpy

# RecBole's modules use the names on the left, which newer numpy lacks. RecBole itself assigns the values on the right
# when a Config is built, so the order of the two does not matter.
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
    """Add the numpy names that RecBole uses and this numpy lacks; existing names stay."""
    # vars() rather than hasattr(): numpy answers hasattr for a removed name with a warning.
    for name in _ALIASES.keys() - vars(numpy).keys():
        setattr(numpy, name, _ALIASES[name])
