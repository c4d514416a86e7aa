"""Memory: an estimate before the work starts, and one line where an allocation fails."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from recbole_lisa.config.model_defaults import inner_width
from recbole_lisa.data.windows import Windows
from recbole_lisa.environment import free_memory
from recbole_lisa.errors import UsageError
from recbole_lisa.model.attentive_recommender import AttentiveRecommender
from recbole_lisa.model.lisa_recommender import LISARecommender

_GIB = 2**30
_PROCESS_BYTES = 2**28  # of a process of several, for the libraries alone
_MANY_POSITIONS = 2**20  # more than this, and than any history has: memory and time are wasted
_MANY_LAYERS = 64  # more than this: the number of layers is the cause


def check_memory(config: Any, n_items: int = 0, windows: Windows | None = None) -> None:
    """Refuse a model whose parameters and training step exceed the free memory of the device.

    The estimate is a lower bound. It counts parameters with gradients and moments of the optimizer, LISA's score tables
    (B, W, W), and, once the data is known, the item table, negatives, and what a step stores of each layer. Before
    the data set is known, n_items (V) is 0 and windows, all those of training, is None.
    """
    length, longest = config["MAX_ITEM_LIST_LENGTH"], 0 if windows is None else int(windows.length.max(initial=1))
    if length > max(_MANY_POSITIONS, longest) and windows is not None:
        raise UsageError(f"MAX_ITEM_LIST_LENGTH is {length:,}, the longest history trains {longest:,} items: lower it")
    if not issubclass(config.model_class, AttentiveRecommender):
        return
    needed = _parameter_bytes(config, n_items)
    copies = 1 if config["device"].type == "cuda" else config["nproc"] or 1  # each process has its GPU; the CPU has all
    needed = Counter({key: size * copies for key, size in needed.items()})
    if windows is not None:
        needed += _step_bytes(config, windows)
    if copies > 1:
        needed["nproc"] = copies * _PROCESS_BYTES
    largest = max(needed, key=lambda key: needed[key])
    is_deep = config["n_layers"] > _MANY_LAYERS and largest.startswith(("hidden", "inner"))
    cause = f"{'n_layers' if is_deep else largest}, which takes {needed[largest] / _GIB:.1f} GiB"
    _check_free(config, sum(needed.values()), cause)


def check_class(config: Any, dataset: Any) -> None:
    """Refuse one of RecBole's classes whose parameters, gradients and moments exceed the free memory of the device."""
    size = 0
    with contextlib.suppress(Exception), torch.device("meta"):  # some classes compute while they are built
        size = sum(p.numel() * p.element_size() for p in config.model_class(config, dataset).parameters())
    _check_free(config, size * _copies_of_parameters(config), "its sizes, such as hidden_size")


def _check_free(config: Any, needed: int, cause: str) -> None:
    """Refuse more bytes than the device has free; `cause` is what to lower."""
    on_gpu = config["device"].type == "cuda"
    free = torch.cuda.mem_get_info(config["device"])[0] if on_gpu else free_memory()
    if needed > free:
        sizes = f"{needed / _GIB:.1f} GiB of memory and {free / _GIB:.1f} GiB are free"
        raise UsageError(f"{config['model']} needs at least {sizes}: lower {cause}")


def _copies_of_parameters(config: Any) -> int:
    """A parameter itself, its gradient, and two moments of Adam."""
    return 4 if config["learner"] in ("adam", "adamw") else 2


def _parameter_bytes(config: Any, n_items: int) -> Counter[str]:
    """Setting -> bytes of the parameters that it decides, in one process."""
    width, layers, longest = config["hidden_size"], config["n_layers"], config["MAX_ITEM_LIST_LENGTH"]
    inner = inner_width(config["inner_size"], width)
    each = 4 * _copies_of_parameters(config)
    has_table = config["item_codes"] in (None, "learned")  # else codes of a byte or more
    needed = Counter(
        {
            "hidden_size": layers * 4 * width**2 * each,
            "inner_size": layers * 2 * width * inner * each,
            "MAX_ITEM_LIST_LENGTH": longest * width * each,
            f"hidden_size (of {n_items:,} items)": n_items * (width * each if has_table else config["n_codebooks"]),
            "dense_items": (config["dense_items"] or 0) * width * each,
            "n_projected": layers * 2 * longest * (config["n_projected"] or 0) * each,
            "n_top_buckets": layers * 2 * width * (config["n_top_buckets"] or 0) * each,
            "n_hash_planes": layers * 4 * width * (config["n_hash_planes"] or 0),
            "conv_width": layers * width * (config["conv_width"] or 0) * each,
            "local_window": layers * (config["local_heads"] or 1) * (config["local_window"] or 0) * each,
            "shared_negatives": 4 * (config["shared_negatives"] or 0) * width,
            "state_size": layers * 2 * width * (config["state_size"] or 0) * each,
        }
    )
    if config["n_hashes"]:
        needed["n_hashes"] = layers * 4 * config["n_hashes"] * width * -(-longest // (2 * config["bucket_size"]))
    is_lisa = issubclass(config.model_class, LISARecommender)
    if is_lisa or config["quantize_items"]:
        n_codebooks, n_codewords, sets = config["n_codebooks"], config["n_codewords"], layers if is_lisa else 1
        needed["n_codewords or n_codebooks"] = sets * n_codebooks * n_codewords * width * each
        if is_lisa:
            needed["n_codewords or n_codebooks"] += 4 * (layers + 1) * n_codebooks * n_codewords**2
        needed["n_target_codewords"] = n_codebooks * (config["n_target_codewords"] or 0) * width * each
    return needed


def _step_bytes(config: Any, windows: Windows) -> Counter[str]:
    """Setting -> bytes of what a step stores for the largest batch of all processes, of the N longest windows."""
    # Windows of one length group, a sixteenth of the longest length, are in any order: so all N are counted as as long
    # as the shortest of the N longest, less a group.
    whole = config["windows"] == "whole"  # a batch may be one row
    lengths, rows = windows.length.astype(np.int64), 1 if whole else min(len(windows), config["train_batch_size"])
    shortest = int(np.partition(lengths, -rows)[-rows]) - (0 if whole else config["MAX_ITEM_LIST_LENGTH"] // 16)
    n_batches = -(-len(windows) // rows)
    positions = max(rows * shortest, int(lengths.sum()) // n_batches)  # or the mean batch, where that is larger
    layers, width = config["n_layers"], config["hidden_size"]
    inner, largest = 4 * layers * inner_width(config["inner_size"], width), "train_batch_size or MAX_ITEM_LIST_LENGTH"
    needed = Counter({largest: positions * 20 * layers * width})
    needed[largest if inner <= 20 * layers * width else "inner_size"] += positions * inner
    if config["n_hashes"]:  # measured: buckets, order, logits and outputs of each round
        of_round = 400 + 40 * min(config["bucket_size"], max(shortest, 0))
        needed["n_hashes"] = of_round * positions * config["n_hashes"]
    needed["n_projected"] = 4 * layers * positions * (config["n_projected"] or 0)
    needed["n_hash_planes"] = positions * (config["n_hash_planes"] or 0)
    needed["conv_width"] = 4 * rows * width * (config["conv_width"] or 0)  # zeros before each window
    # Measured for D from 8 to 128: b and c in several forms, and the states (2 D, S) between chunks.
    needed["state_size"] = 4 * positions * (config["state_size"] or 0) * (18 + 2 * width // 5)
    sampling = config["train_neg_sample_args"]
    if sampling["distribution"] != "none" and not config["shared_negatives"]:
        targets = positions if config["supervision"] == "all_positions" else rows
        needed["sample_num of train_neg_sample_args"] = 8 * targets * sampling["sample_num"]
    if config["attn_dropout_prob"] and config["device"].type == "cpu":  # then torch stores the weights (N, H, L, L)
        pairs = max(rows * max(shortest, 0) ** 2, int((lengths**2).sum()) // n_batches)
        needed["attn_dropout_prob to 0, or MAX_ITEM_LIST_LENGTH"] = 4 * layers * config["n_heads"] * pairs
    return needed


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
