"""The public interface: every name of `__all__` is there, and the type checker sees the same ones."""

import ast
from pathlib import Path

import pytest

import recbole_lisa
from recbole_lisa.config.registry import MODELS, OPTIONAL_MODELS

FUNCTIONS = {"run", "register", "unregister", "registered", "build_attention", "export", "load_data_and_model"}


def test_all_names_the_functions_the_recommender_and_every_model() -> None:
    assert set(recbole_lisa.__all__) == {*FUNCTIONS, "Recommender", "__version__", *MODELS, *OPTIONAL_MODELS}
    assert set(recbole_lisa.__all__) <= set(dir(recbole_lisa))


@pytest.mark.parametrize("name", recbole_lisa.__all__)
def test_every_public_name_is_the_object_that_the_type_checker_sees(name: str) -> None:
    tree = ast.parse(Path(recbole_lisa.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    typed = {alias.name: node.module for node in imports for alias in node.names}
    public = getattr(recbole_lisa, name)
    if name != "__version__":
        assert public.__name__ == name
        assert getattr(__import__(str(typed[name]), fromlist=[name]), name) is public


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'recbole_lisa' has no attribute 'LISABse'"):
        recbole_lisa.LISABse  # type: ignore[attr-defined]  # noqa: B018 - the access is what is tested
