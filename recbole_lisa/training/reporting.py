"""Curves of a run: TensorBoard and wandb get them from the first of several processes alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import recbole.trainer.trainer as stock
from recbole.config import Config

from recbole_lisa.distributed.processes import is_first


class NoCurves:
    """A TensorBoard writer that writes nothing."""

    def add_scalar(self, *_: Any) -> None:
        """Drop a point."""

    def add_hparams(self, *_: Any) -> None:
        """Drop a table."""

    def close(self) -> None:
        """Nothing is open."""


@contextmanager
def first_one_reports(config: Config) -> Iterator[None]:
    """While a trainer of RecBole is made: only the first process gets a TensorBoard folder and a run of wandb.

    Args:
        config: Of the run; loses `log_wandb` in the other processes.
    """
    if is_first():
        yield
        return
    config["log_wandb"] = False
    original = stock.get_tensorboard
    stock.get_tensorboard = lambda _logger: NoCurves()
    try:
        yield
    finally:
        stock.get_tensorboard = original
