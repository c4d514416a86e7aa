"""The numpy names that RecBole needs are there after the import, and existing ones are left alone."""

from typing import Any

import numpy as np
import pytest

import recbole_lisa
from tests.helpers import run_python


@pytest.mark.parametrize("name", ["bool", "int", "float", "complex", "object", "str", "long", "unicode"])
def test_importing_the_package_restores_the_names_of_recbole(name: str) -> None:
    assert np.zeros(1, dtype=vars(np)[name]).shape == (1,)


def test_without_numpy_the_names_come_with_recbole() -> None:
    code = "import sys, recbole_lisa.cli.main; assert 'numpy' not in sys.modules; import recbole, numpy; numpy.float"
    assert run_python(code)[0] == ""


@pytest.mark.parametrize("name", ["float_", "complex_", "unicode_"])
def test_a_missing_name_is_restored_as_in_numpy_1(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    expected: Any = vars(np)[name]
    monkeypatch.delattr(np, name)
    recbole_lisa._restore_numpy_aliases()
    assert vars(np)[name] is expected


def test_an_existing_name_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    marker = type("marker", (), {})
    monkeypatch.setattr(np, "float", marker)
    recbole_lisa._restore_numpy_aliases()
    assert vars(np)["float"] is marker
