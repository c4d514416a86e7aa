"""LISA: linear-time self-attention over codeword histograms, inside RecBole.

`__all__` is the public interface. Its names are imported when they are first used: importing the package imports
neither torch nor RecBole nor ray.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import SimpleNamespace

TYPE_CHECKING = False  # that of typing takes milliseconds, in which Ctrl+C of a command would be a traceback
if TYPE_CHECKING:
    from typing import Any

    from recbole_lisa.attention import build_attention
    from recbole_lisa.model.sequential_recommender.clusteredtransformer import ClusteredTransformer
    from recbole_lisa.model.sequential_recommender.glatransformer import GLATransformer
    from recbole_lisa.model.sequential_recommender.hstu import HSTU
    from recbole_lisa.model.sequential_recommender.lineartransformer import LinearTransformer
    from recbole_lisa.model.sequential_recommender.linformer import Linformer
    from recbole_lisa.model.sequential_recommender.lisabase import LISABase
    from recbole_lisa.model.sequential_recommender.lisamini import LISAMini
    from recbole_lisa.model.sequential_recommender.lisasoft import LISASoft
    from recbole_lisa.model.sequential_recommender.lrurec import LRURec
    from recbole_lisa.model.sequential_recommender.mamba2rec import Mamba2Rec
    from recbole_lisa.model.sequential_recommender.recgrela import RecGRELA
    from recbole_lisa.model.sequential_recommender.reformer import Reformer
    from recbole_lisa.model.sequential_recommender.routingtransformer import RoutingTransformer
    from recbole_lisa.model.sequential_recommender.sinkhorntransformer import SinkhornTransformer
    from recbole_lisa.model.sequential_recommender.transformer import Transformer
    from recbole_lisa.plugin.registration import register, registered, unregister
    from recbole_lisa.quick_start import run
    from recbole_lisa.saved import export, load_data_and_model
    from recbole_lisa.serving import Recommender

__version__ = "0.3.0"
__all__ = ["ClusteredTransformer", "GLATransformer", "HSTU", "LISABase", "LISAMini", "LISASoft", "LRURec"]
__all__ += ["LinearTransformer", "Linformer", "Mamba2Rec", "RecGRELA", "Recommender", "Reformer"]
__all__ += ["RoutingTransformer", "SinkhornTransformer", "Transformer", "__version__", "build_attention", "export"]
__all__ += ["load_data_and_model", "register", "registered", "run", "unregister"]

_MODULES = {
    **{"Recommender": "serving", "build_attention": "attention", "run": "quick_start"},
    **dict.fromkeys(("export", "load_data_and_model"), "saved"),
    **dict.fromkeys(("register", "registered", "unregister"), "plugin.registration"),
}

# RecBole 1.2.1 uses the names on the left, which newer numpy lacks. RecBole itself assigns the values on the right when
# a Config is built, so the order of the two does not matter.
_NUMPY_ALIASES = {
    **{name: f"{name}_" for name in ("bool", "int", "object", "str")},
    **{"long": "int_", "unicode": "str_", "unicode_": "str_"},
    **{"float": "float64", "float_": "float64", "complex": "complex128", "complex_": "complex128"},
}


def _restore_numpy_aliases() -> None:
    """Add the numpy names that RecBole uses and this numpy lacks; existing names stay."""
    import numpy

    # vars() rather than hasattr(): numpy answers hasattr for a removed name with a warning.
    for name in _NUMPY_ALIASES.keys() - vars(numpy).keys():
        setattr(numpy, name, getattr(numpy, _NUMPY_ALIASES[name]))


def _find_nothing(name: str, *_: object) -> None:
    """Finds no module, but restores the names just before RecBole is imported: a command starts without numpy."""
    if name == "recbole":
        _restore_numpy_aliases()


if "numpy" in sys.modules:
    _restore_numpy_aliases()
sys.meta_path.insert(0, SimpleNamespace(find_spec=_find_nothing))


def __getattr__(name: str) -> Any:
    """Import a public name; every other public name is a model of the registry."""
    if name not in __all__:
        raise AttributeError(f"module 'recbole_lisa' has no attribute {name!r}")
    from recbole_lisa.errors import advise_missing_recbole

    with advise_missing_recbole():
        if name in _MODULES:
            return getattr(import_module(f"recbole_lisa.{_MODULES[name]}"), name)
        return import_module("recbole_lisa.config.registry").model_class(name)


def __dir__() -> list[str]:
    """Names of the module, the public ones included."""
    return sorted({*globals(), *__all__})
