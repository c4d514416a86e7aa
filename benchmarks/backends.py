"""Which of torch's fused attention kernels is fastest on a GPU: the vanilla side gets the best there is."""

import contextlib
import math
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from benchmarks.measure import time_calls

FUSED = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION")
Chosen = Callable[[], AbstractContextManager[Any]]


def fastest_backend(call: Callable[[], object], device: torch.device) -> tuple[str, Chosen]:
    """Try every kernel on a call.

    Args:
        call: Uses scaled_dot_product_attention.
        device: Where.

    Returns:
        The kernel's name and a context in which it is used; "" and no context on the CPU, which has one kernel, or
        where torch's own choice is faster.

    Raises:
        RuntimeError: No kernel can serve the call.
    """
    chosen: Chosen = contextlib.nullcontext
    best, best_seconds = "", math.inf
    if device.type != "cuda":
        return best, chosen
    from torch.nn.attention import SDPBackend, sdpa_kernel

    contexts: dict[str, Chosen] = {
        name: lambda name=name: sdpa_kernel([getattr(SDPBackend, name)])  # type: ignore[misc]
        for name in FUSED
    }
    for name, context in (contexts | {"": contextlib.nullcontext}).items():
        try:
            with warnings.catch_warnings(), context():
                warnings.simplefilter("ignore")  # torch warns about each kernel that does not serve these shapes
                seconds = time_calls(call, repeats=2, device=device).median
        except RuntimeError:  # this kernel does not serve these shapes, or there is not enough memory for it
            if not name and best_seconds == math.inf:
                raise
            continue
        if seconds < best_seconds:
            best, best_seconds, chosen = name, seconds, context
    return best, chosen
