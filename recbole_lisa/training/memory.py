"""Memory: an estimate before the work starts, and one line where an allocation fails."""

import contextlib
from collections.abc import Iterator
from typing import Any

import psutil
import torch

from recbole_lisa.errors import UsageError
from recbole_lisa.model.attentive_recommender import AttentiveRecommender
from recbole_lisa.model.lisa_recommender import LISARecommender

_GIB = 2**30


def check_memory(config: Any, n_items: int = 0) -> None:
    """Refuse a model whose parameters and first training step exceed the free memory of the device.

    Counted are parameters, gradients and the moments of Adam, and LISA's score tables (B, W, W) of all layers and the
    gradient of one; activations are not. `n_items` is V; 0, before the data set is known, leaves the item table out.
    """
    if not issubclass(config.model_class, AttentiveRecommender):
        return
    width, layers = config["hidden_size"], config["n_layers"]
    per_parameter = 16 if config["learner"] in ("adam", "adamw") else 8
    needed = {
        "hidden_size": layers * 4 * width**2 * per_parameter,
        "inner_size": layers * 2 * width * config["inner_size"] * per_parameter,
        "MAX_ITEM_LIST_LENGTH": config["MAX_ITEM_LIST_LENGTH"] * width * per_parameter,
        f"hidden_size (of {n_items:,} items)": n_items * width * per_parameter,
    }
    if issubclass(config.model_class, LISARecommender):
        n_codebooks, n_codewords = config["n_codebooks"], config["n_codewords"]
        codewords = layers * n_codebooks * n_codewords * width * per_parameter
        needed["n_codewords or n_codebooks"] = codewords + 4 * (layers + 1) * n_codebooks * n_codewords**2
    on_gpu = config["device"].type == "cuda"
    free = torch.cuda.mem_get_info(config["device"])[0] if on_gpu else psutil.virtual_memory().available
    total, largest = sum(needed.values()), max(needed, key=lambda key: needed[key])
    if total > free:
        raise UsageError(
            f"{config['model']} needs at least {total / _GIB:.1f} GiB of memory and {free / _GIB:.1f} GiB are free: "
            f"lower {largest}, which takes {needed[largest] / _GIB:.1f} GiB"
        )


@contextlib.contextmanager
def named_allocation_errors() -> Iterator[None]:
    """Turn an error of an allocator into a UsageError that names the sizes to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
        raise UsageError(
            f"there is not enough memory ({(str(error) or 'MemoryError').splitlines()[0]}): lower train_batch_size, "
            "eval_batch_size, MAX_ITEM_LIST_LENGTH, hidden_size or n_codewords"
        ) from error
