"""The k best of many coded items, one query at a time: with the index, and by scoring all items.

Codes are of four kinds. No trained model of a million items is at hand, so two kinds are made to be like trained ones:
vectors of a mixture of clusters, whose sizes follow a power law, are quantised by residual or by product k-means, and a
query is a vector of the same mixture. `model` takes codes and codewords of an export, repeats its items, changes a
tenth of the codes, and encodes random histories. `random` has flat scores: no item is far from the others.
"""

import argparse
import time
from collections.abc import Iterator
from functools import partial
from itertools import cycle

import torch
from torch import Tensor

from benchmarks.measure import CheckError, Record, time_calls
from benchmarks.report import Report, Table, spread
from recbole_lisa.errors import UsageError
from recbole_lisa.layers.item_store import CodedTargets
from recbole_lisa.serving import Recommender
from recbole_lisa.serving.inputs import History
from recbole_lisa.serving.scorer import rank

KINDS = ("random", "residual", "product")
CLUSTERS, SPREAD = 2000, 0.5  # of the mixture: centres have variance 1 in each direction, items around them SPREAD^2
TRAINED_ON, ROUNDS = 2**15, 8  # vectors and rounds of k-means
BLOCK = 2**14  # vectors that exist at once
CHANGED = 0.1  # codes of a repeated item that differ from those of the model's item


class Mixture:
    """Vectors of clusters; cluster i has a weight of 1 / (i + 1)."""

    def __init__(self, width: int) -> None:
        self.centres = torch.randn(CLUSTERS, width)
        self.weights = 1 / torch.arange(1, CLUSTERS + 1)

    def draw(self, n: int) -> Tensor:
        """Vectors (n, D)."""
        centres = self.centres[torch.multinomial(self.weights, n, replacement=True)]
        return centres + SPREAD * torch.randn(centres.shape)


def nearest_codewords(x: Tensor, book: Tensor) -> Tensor:
    """The codeword (W, D) at the smallest distance to each x (M, D)."""
    return (x @ book.t() - book.square().sum(dim=1) / 2).argmax(dim=1)


def train_codebook(x: Tensor, n_codewords: int) -> Tensor:
    """Means (W, D) of the clusters of x (M, D) by k-means."""
    book = x[torch.randperm(len(x))[:n_codewords]]
    for _ in range(ROUNDS):
        codes = nearest_codewords(x, book)
        counts = torch.bincount(codes, minlength=n_codewords).unsqueeze(1)
        book = torch.where(counts > 0, torch.zeros_like(book).index_add_(0, codes, x) / counts, book)
    return book


def quantise(x: Tensor, codewords: Tensor, *, residual: bool) -> tuple[Tensor, Tensor]:
    """Codes (M, B) of x (M, D), and what codewords (B, W, D) leave of x; product codewords are 0 outside their part."""
    codes, left = [], x
    for book in codewords:
        codes.append(nearest_codewords(left if residual else x, book))
        left = left - book[codes[-1]]
    return torch.stack(codes, dim=1), left


def codes_like_trained(kind: str, n_items: int, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor, Mixture]:
    """Codes (V, B), codewords of shape (B, W, D), and the mixture from which items and queries are drawn."""
    n_books, n_codewords, width = shape
    mixture, codewords = Mixture(width), torch.zeros(shape)
    sample, parts = mixture.draw(max(TRAINED_ON, n_codewords)), torch.arange(width).chunk(n_books)
    for b in range(n_books):
        if kind == "residual":
            left = quantise(sample, codewords[:b], residual=True)[1] if b else sample
            codewords[b] = train_codebook(left, n_codewords)
        elif b < len(parts):
            codewords[b][:, parts[b]] = train_codebook(sample[:, parts[b]], n_codewords)
    codes = torch.empty(n_items, n_books, dtype=torch.uint8)
    for start in range(0, n_items, BLOCK):
        block = codes[start : start + BLOCK]
        block.copy_(quantise(mixture.draw(len(block)), codewords, residual=kind == "residual")[0])
    return codes, codewords, mixture


def catalogues(options: argparse.Namespace) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
    """Kind, codes (V, B), codewords (B, W, D) and queries (Q, D) of each catalogue."""
    shape, n, n_queries = (options.codebooks, options.codewords, options.width), options.items, options.queries
    for kind in KINDS:
        torch.manual_seed(0)
        if kind == "random":
            codes = torch.empty(n, shape[0], dtype=torch.uint8).random_(shape[1])
            yield kind, codes, torch.randn(shape), torch.randn(n_queries, shape[2])
        else:
            codes, codewords, mixture = codes_like_trained(kind, n, shape)
            yield kind, codes, codewords, mixture.draw(n_queries)
    if options.export is not None:
        torch.manual_seed(0)
        recommender = Recommender.load(options.export)
        targets = recommender.network.items.targets
        if not isinstance(targets, CodedTargets):
            raise UsageError(f"the export '{options.export}' has vectors: name one of a model with codes")
        codes = targets.codes[torch.randint(len(targets), (n,))]
        n_codewords = targets.codewords.shape[1]
        for block in torch.split(codes, BLOCK):
            changed = torch.rand(block.shape) < CHANGED
            block[changed] = torch.randint(n_codewords, (int(changed.sum()),)).to(block.dtype)
        items = torch.randint(len(targets), (n_queries, options.history)).numpy()
        yield "model", codes, targets.codewords, recommender.encode([History(row, None) for row in items])


def measure(kind: str, codes: Tensor, codewords: Tensor, queries: Tensor, options: argparse.Namespace) -> Record:
    """Compare the lists of all queries, else a CheckError, then time one query at a time."""
    plain, indexed = CodedTargets(codes, codewords), CodedTargets(codes, codewords)
    start = time.perf_counter()
    indexed.build_index()
    seconds = time.perf_counter() - start
    if indexed.blocks is None:
        raise CheckError(f"codes {codes.dtype} and codewords {codewords.dtype} have no index")
    for n, query in enumerate(torch.split(queries, 1)):
        expected, actual = rank(plain, query, options.k), rank(indexed, query, options.k)
        if not (torch.equal(actual.ids, expected.ids) and torch.equal(actual.scores, expected.scores)):
            raise CheckError(f"{kind} codes, query {n}: the list with the index differs, nothing was timed")
    turns = {"all": cycle(torch.split(queries, 1)), "index": cycle(torch.split(queries, 1))}
    sides = {"all": plain, "index": indexed}
    calls = {name: partial(lambda name: rank(sides[name], next(turns[name]), options.k), name) for name in sides}
    record = {"codes": kind, "lists": len(queries), "seconds": seconds}
    record["bytes_an_item"] = indexed.blocks.nbytes / len(codes)
    return {**record, **time_calls(calls, repeats=options.repeats)}


@torch.no_grad()
def run(options: argparse.Namespace, report: Report) -> None:
    """Run `python -m benchmarks serving --case=index`."""
    records = [measure(*catalogue, options) for catalogue in catalogues(options)]
    rows = []
    for r in records:
        times = [spread(r["all"]), spread(r["index"])]
        times += [f"{r['index'][which] / r['all'][which]:.3f}" for which in ("median", "low")]
        rows.append([r["codes"], f"{r['lists']:,}", *times, f"{r['bytes_an_item']:.1f}", f"{r['seconds']:.3f}"])
    columns = ["codes", "equal lists", "scoring all items", "with the index", "ratio of medians", "of the fastest"]
    title = f"The {options.k} best of {options.items:,} coded items, one query at a time: ms, median [fastest, slowest]"
    report.finish({"index": records}, [Table(title, [*columns, "bytes an item", "s to build"], rows)], {})
