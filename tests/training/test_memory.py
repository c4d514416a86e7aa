"""A run that needs too much memory ends in one line, before the work where that can be known."""

from pathlib import Path
from typing import Any

import pytest
import torch

from recbole_lisa.errors import UsageError
from recbole_lisa.model.sequential_recommender.lisabase import LISABase
from recbole_lisa.quick_start import run_configured
from recbole_lisa.training.memory import check_memory
from tests.tiny import tiny_config

CPU_ERROR = RuntimeError(
    "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes\nmore"
)


def test_the_largest_part_is_named_and_items_count_once_they_are_known(tmp_path: Path) -> None:
    for settings, n_items, key in (
        ({"hidden_size": 10**7}, 0, "hidden_size"),
        ({"inner_size": 10**13}, 0, "inner_size"),
        ({"n_codewords": 10**7}, 0, "n_codewords or n_codebooks"),
        ({}, 10**12, "hidden_size .of 1,000,000,000,000 items."),
    ):
        config = tiny_config(tmp_path, model=LISABase, **settings)
        with pytest.raises(UsageError, match=rf"needs at least \d+\.\d GiB .* free: lower {key}, which takes \d"):
            check_memory(config, n_items)
    check_memory(tiny_config(tmp_path, model=LISABase), 30)


@pytest.mark.usefixtures("isolated_run_dir")
@pytest.mark.parametrize("error", [MemoryError(), CPU_ERROR, torch.OutOfMemoryError("CUDA out of memory. Tried")])
def test_an_error_of_an_allocator_is_one_line(tmp_path: Path, error: Exception) -> None:
    def fail(_: Any) -> None:
        raise error

    with pytest.raises(UsageError, match="there is not enough memory .*: lower train_batch_size, .* or n_codewords$"):
        run_configured(tiny_config(tmp_path), prepare=fail)


@pytest.mark.usefixtures("isolated_run_dir")
def test_a_run_checks_before_the_data_and_before_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []
    monkeypatch.setattr("recbole_lisa.quick_start.check_memory", lambda _, *n_items: calls.append(n_items))
    run_configured(tiny_config(tmp_path, epochs=1))
    assert calls == [(), (31,)]
