"""All items as the model sees them, kept between inference calls and rebuilt whenever a parameter has changed."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class ItemCache:
    """One cached value derived from a module's parameters, dropped as soon as one of them changes.

    The value is kept with a fingerprint of every parameter and buffer: its storage, its version counter (in-place
    edits, optimiser steps, load_state_dict), and three sums over its numbers for edits through .data, which the counter
    does not see. Settings that are no tensors are not watched: they are fixed when a model is built.
    """

    def __init__(self) -> None:
        self._key: Any = None
        self._value: Any = None

    def clear(self) -> None:
        """Forget the value."""
        self._key = self._value = None

    def get(self, module: nn.Module, build: Callable[[], Any]) -> Any:
        """The value for the module's present parameters, built without gradient when needed.

        Args:
            module: whose parameters and buffers the value depends on.
            build: makes the value.

        Returns:
            The cached or new value. In training mode nothing is kept.
        """
        if module.training:
            return build()
        key = self._fingerprint(module)
        if key != self._key:
            with torch.no_grad():
                self._value = build()
            self._key = key
        return self._value

    @staticmethod
    def _fingerprint(module: nn.Module) -> tuple[Any, ...]:
        tensors = [t.detach() for t in (*module.parameters(), *module.buffers())]
        flat = [t.flatten() for t in tensors if t.is_floating_point()]
        # The sum sees a change of sign, the norm one of size, the product of neighbours one of order.
        sums = [x for t in flat for x in (t.sum(), t.norm(), t[1:] @ t[:-1])]
        numbers = torch.stack([x.double() for x in sums]).tolist() if sums else []
        return tuple((t.data_ptr(), t._version) for t in tensors), tuple(numbers)

    def __deepcopy__(self, memo: dict[int, Any]) -> "ItemCache":
        """A copied model starts with an empty cache."""
        return ItemCache()

    def __reduce__(self) -> tuple[type["ItemCache"], tuple[()]]:
        """A pickled model carries no cache."""
        return ItemCache, ()
