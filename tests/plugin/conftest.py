"""Every test of the plug-in leaves RecBole as it was."""

import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import recbole_lisa
from tests.tiny import write_tiny_dataset


@pytest.fixture(autouse=True)
def recbole_as_it_was(isolated_run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo registrations, and what RecBole does to the root logger; the folder holds the data set `tiny`."""
    monkeypatch.setattr(sys, "argv", ["script"])  # RecBole's Config reads the arguments of the process
    warnings.simplefilter("ignore", FutureWarning)
    write_tiny_dataset(isolated_run_dir)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    recbole_lisa.unregister()
    root.handlers[:] = handlers
    root.setLevel(level)
