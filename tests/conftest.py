"""Every test starts from the same seeds and the same number of threads."""

import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

# The tensors of the tests are small: a second thread gains nothing, and on a busy machine it spins.
torch.set_num_threads(1)

# A shell that starts pytest in the background makes it ignore SIGINT; some tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Triton reads this when it is imported: without a GPU its kernels run in its interpreter.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def seeds() -> None:
    """Seed python, numpy and torch before each test; undo what an import of RecBole's SINE leaves switched on."""
    torch.autograd.set_detect_anomaly(False)
    random.seed(2021)
    np.random.seed(2021)
    torch.manual_seed(2021)


@pytest.fixture
def isolated_run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, so that a run's log, checkpoint and TensorBoard files stay out of the tree."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked `gpu` where there is no CUDA device."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
