"""Codes of items that are fixed before training, so that no item has an embedding (setting `item_codes`).

svd: residual k-means of unit vectors of the items, from the truncated SVD of D_u^(-1/2) M D_i^(-1/2), where M is the
training matrix users x items, and D_u and D_i hold the interactions of each user and item: correspondence analysis. The
vector of item i is the direction of S v_i without the first component, sqrt(D_i), which says only how frequent the item
is. RecJPQ (Petrov and Macdonald, 2024) cuts each of B components of M itself into W quantiles, which ranks worse.

kmeans: residual k-means of another model's items, of the directions of their main components. The small components of
trained vectors are mostly noise, which no codeword can say: with all of them the codebooks after the first collapse.

In residual k-means, codebook b clusters what codebooks 1..b-1 leave of the vectors.
"""

from contextlib import suppress
from hashlib import sha256
from logging import getLogger
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from recbole_lisa.attention.codebook import Codebook
from recbole_lisa.distributed.processes import from_first, is_first
from recbole_lisa.errors import UsageError
from recbole_lisa.files import ARCHIVE_ERRORS, atomic_writer
from recbole_lisa.ops.packing import code_dtype
from recbole_lisa.ops.row_blocks import choose_in_blocks, largest
from recbole_lisa.progress import progress_bar
from recbole_lisa.saved import load_bundle
from recbole_lisa.serving.ids import IdMap

Codes = npt.NDArray[np.integer[Any]]
Vectors = npt.NDArray[np.float32]
KMEANS_BATCH, KMEANS_SAMPLE = 4096, 2**17
POWER_ITERATIONS, OVERSAMPLES = 4, 4
SVD_COMPONENTS, SVD_NUMBERS, MODEL_COMPONENTS = 64, 80_000_000, 32
_BLOCK_IDS = 2**16


def set_item_codes(network: Any, config: Any, dataset: Any) -> None:
    """Set the codes of a new model where `item_codes` is not learned; `dataset` is its training part.

    A UsageError where a file or a checkpoint is wrong, or has no codes for an item of the data set.
    """
    source = config["item_codes"]
    if source is None or source == "learned" or config["resume"] not in (None, "auto"):  # a checkpoint has its codes
        return
    codes: Any = None
    if is_first():
        getLogger().info(f"item codes: {source}, {dataset.item_num - 1:,} items")
        codes = _codes(source, list(network.codebooks().values()), config, dataset)
    codes = from_first(codes)
    with torch.no_grad():
        items = network.item_embedding
        items.weight[1:] = torch.from_numpy(codes)
        if config["dense_items"] >= dataset.item_num:
            getLogger().info(
                f"dense_items is {config['dense_items']:,}, above the {dataset.item_num - 1:,} items: each has a vector"
            )
        if items.dense is not None:  # of the most frequent items of the training data
            frequent = np.argsort(-np.asarray(dataset.item_counts[1:]), kind="stable")[: len(items.dense)] + 1
            items.slots[torch.from_numpy(np.sort(frequent))] = torch.arange(len(frequent), dtype=torch.int32)
    getLogger().info(f"{network.items_with_equal_codes():,} of {len(codes):,} items have the codes of another")


def _codes(source: str, books: list[Codebook], config: Any, dataset: Any) -> Codes:
    """Codes (V - 1, C) of all codebooks."""
    options = {"seed": config["seed"], "show_progress": bool(config["show_progress"])}
    if source == "svd":
        return _kept_svd_codes(books, dataset, **options)
    if source == "kmeans":
        vectors = main_directions(_vectors(config["item_codes_checkpoint"], dataset), MODEL_COMPONENTS)
        return _clusters(vectors, books, **options)
    return _codes_of_file(source, books, dataset)


def _kept_svd_codes(books: list[Codebook], dataset: Any, *, seed: int, show_progress: bool) -> Codes:
    """Codes (V - 1, C) by an SVD; those of a mapped data set are kept in its folder, by what they depend on."""
    sizes = [(book.n_codebooks, book.n_codewords) for book in books]
    trained = dataset.part.count + dataset.part.first
    digest = sha256(f"clusters {dataset.data_fingerprint} {seed} {sizes}".encode())
    digest.update(trained.data)
    path = None if dataset.folder is None else dataset.folder / f"svd-{digest.hexdigest()[:16]}.npz"
    if path is not None:
        with suppress(*ARCHIVE_ERRORS, KeyError, TypeError, IndexError):  # one that is damaged is made anew
            kept: Codes = np.load(path)["codes"]
            if _are_codes(kept, dataset.item_num - 1, books):
                return kept
    known = dataset.item_counts[1:] > 0
    n_components = min(max(SVD_NUMBERS // dataset.item_num, 1), SVD_COMPONENTS)
    vectors = svd_vectors(dataset, n_components, seed)[known]
    codes = of_all_items(_clusters(vectors, books, seed=seed, show_progress=show_progress), known, seed)
    if path is not None:
        with suppress(OSError), atomic_writer(path) as stream:  # a folder that cannot be written keeps none
            np.savez(stream, codes=codes)
    return codes


def svd_vectors(dataset: Any, n_components: int, seed: int) -> Vectors:
    """Unit vectors (V - 1, K) of the items by correspondence analysis; 0 without training interactions."""
    matrix = _training_matrix(dataset)
    users, items = (np.maximum(matrix.sum(axis).A1, 1).astype(np.float32) ** -0.5 for axis in (1, 0))
    matrix.data *= np.repeat(users, np.diff(matrix.indptr))
    matrix.data *= items[matrix.indices]
    components, scale = _truncated_svd(matrix, n_components + 1, seed)
    return _directions((components * scale)[1:, 1:])


def main_directions(vectors: Vectors, n_components: int) -> Vectors:
    """Unit vectors (V, K) of the K main components of the directions of vectors (V, D); K = D where D is smaller."""
    centred = _directions(vectors)
    centred -= centred.mean(0)
    _, axes = np.linalg.eigh(centred.T @ centred)  # in the order of growing variance
    return _directions(centred @ axes[:, -n_components:])


def _directions(vectors: Vectors) -> Vectors:
    """The vectors (V, D) at length 1; 0 stays 0."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    directions: Vectors = vectors / np.where(lengths > 0, lengths, 1)
    return directions


def _truncated_svd(matrix: Any, n_components: int, seed: int) -> tuple[Vectors, Vectors]:
    """Right singular vectors (V, K) and singular values (K,) of a sparse matrix; missing ones are 0."""
    from sklearn.utils.extmath import randomized_svd

    n = min(n_components, *matrix.shape)
    if n < n_components:
        getLogger().warning(f"the SVD of the training data has {n} components, not {n_components}: the others are 0")
    components, scale = np.zeros((matrix.shape[1], n_components), np.float32), np.zeros(n_components, np.float32)
    _, scale[:n], rows = randomized_svd(
        matrix, n, n_oversamples=OVERSAMPLES, n_iter=POWER_ITERATIONS, random_state=seed
    )
    components[:, :n] = rows.T
    return components, scale


def of_all_items(codes: Codes, known: npt.NDArray[np.bool_], seed: int) -> Codes:
    """Codes (V - 1, C) from those of the known items; another item has each code of a random known one."""
    rng, all_codes = np.random.default_rng(seed), np.empty((len(known), codes.shape[1]), codes.dtype)
    all_codes[known] = codes
    for column, of_known in zip(all_codes.T, codes.T, strict=True):
        column[~known] = rng.choice(of_known, len(known) - len(of_known))
    return all_codes


def _training_matrix(dataset: Any) -> Any:
    """The users x items of the training interactions, scipy's csr_matrix of ones, 8 bytes each."""
    from scipy.sparse import csr_matrix

    store, trained = dataset.histories, dataset.part.count + dataset.part.first  # (users,) so many oldest items
    parts = np.column_stack([trained, store.lengths - trained]).ravel()
    items = store.items[np.repeat(np.tile([True, False], len(trained)), parts)]
    starts = np.append(0, np.cumsum(trained))
    matrix = csr_matrix((np.ones(len(items), np.float32), items, starts), shape=(len(trained), dataset.item_num))
    matrix.sum_duplicates()
    matrix.data[:] = 1
    return matrix


def _clusters(vectors: Vectors, books: list[Codebook], *, seed: int, show_progress: bool) -> Codes:
    """Codes (V, C) of vectors (V, D) by residual_kmeans, for each of several sets of codebooks."""
    sets = [(book.n_codebooks, book.n_codewords) for book in books]
    return np.concatenate([residual_kmeans(vectors, n, w, seed, show_progress=show_progress) for n, w in sets], 1)


def residual_kmeans(
    vectors: Vectors, n_codebooks: int, n_codewords: int, seed: int, *, show_progress: bool = False
) -> Codes:
    """Codes (V, B) of vectors (V, D); with fewer vectors than codewords some are not used.

    The centres are those of at most 2^17 random vectors.
    """
    from sklearn.cluster import MiniBatchKMeans

    left, k = vectors.copy(), min(n_codewords, len(vectors))
    sample = np.random.default_rng(seed).permutation(len(left))[:KMEANS_SAMPLE]
    codes = np.empty((len(left), n_codebooks), torch.empty(0, dtype=code_dtype(n_codewords)).numpy().dtype)
    for b in progress_bar(range(n_codebooks), "k-means", unit=" codebooks", show_progress=show_progress):
        clusters = MiniBatchKMeans(k, batch_size=KMEANS_BATCH, n_init=1, random_state=seed + b).fit(left[sample])
        centres = torch.from_numpy(clusters.cluster_centers_).float()
        codes[:, b] = _nearest(torch.from_numpy(left), centres).numpy()
        left -= centres.numpy()[codes[:, b]]
    return codes


def _nearest(vectors: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    """The centre (W, D) nearest to each vector (V, D): (V,) int64."""
    half_square = centres.square().sum(1) / 2
    return choose_in_blocks(lambda rows: largest(torch.addmm(-half_square, rows, centres.t())), vectors, len(centres))


def _vectors(checkpoint: str, dataset: Any) -> Vectors:
    """Target vectors (V - 1, D) of a checkpoint's items, in the order of the items of a data set."""
    bundle = load_bundle(checkpoint)
    rows = _rows(bundle.ids, dataset, checkpoint)
    vectors: Vectors = bundle.items.targets.rows(torch.from_numpy(rows)).float().numpy()
    return vectors


def _codes_of_file(path: str, books: list[Codebook], dataset: Any) -> Codes:
    """Codes (V - 1, C): of a .npy in the order of the data set's items, of a .npz (codes, item_id) by raw id."""
    try:
        content: Any = np.load(path, allow_pickle=False)
        by_id = not isinstance(content, np.ndarray)
        codes: npt.NDArray[Any] = content["codes"] if by_id else content
        known = IdMap.from_ids(map(str, content["item_id"])) if by_id else None
    except (*ARCHIVE_ERRORS, KeyError, TypeError) as error:
        right = "a .npy holds whole numbers, a .npz codes and item_id"
        raise UsageError(f"item_codes: '{path}' cannot be read ({error}): {right}") from error
    n_items = dataset.item_num - 1 if known is None else len(known)
    if not _are_codes(codes, n_items, books):
        counts = " and ".join(f"{book.n_codebooks} below {book.n_codewords}" for book in books)
        raise UsageError(
            f"item_codes: '{path}' has {codes.dtype} {codes.shape}, it must have a row for each of {n_items} items, "
            f"with whole numbers from 0 on: {counts}"
        )
    return codes[slice(None) if known is None else _rows(known, dataset, path)].astype(np.int64)


def _are_codes(codes: npt.NDArray[Any], n_items: int, books: list[Codebook]) -> bool:
    """Whether an array has a row for each item, and in each column whole numbers of its codebook."""
    most = np.repeat([book.n_codewords for book in books], [book.n_codebooks for book in books])
    fits = codes.ndim == 2 and codes.shape == (n_items, len(most)) and codes.dtype.kind in "iu"
    return fits and not bool((codes < 0).any() or (codes >= most).any())


def _rows(known: IdMap, dataset: Any, source: str) -> npt.NDArray[np.int64]:
    """The numbers of all items of a data set in a map, `_BLOCK_IDS` texts at a time."""
    ids, n_items = dataset.field2id_token[dataset.iid_field], dataset.item_num - 1
    numbers = np.concatenate([known.numbers(ids[n : n + _BLOCK_IDS]) for n in range(1, n_items + 1, _BLOCK_IDS)])
    if missing := int((numbers < 0).sum()):
        example = ids[int(np.argmin(numbers)) + 1]
        raise UsageError(f"item_codes: '{source}' lacks {missing} of {n_items} items, such as {example}")
    return numbers
