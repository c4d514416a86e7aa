"""Compare packed codes with a dense item table, and sessions with cached keys and values.

`--case=index` compares the index of coded items with scoring all of them, see `benchmarks.index`.
"""

import argparse
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import index
from benchmarks.measure import Call, CheckError, Record, in_fresh_process, peak_of_call, time_calls
from benchmarks.options import add_list, add_machine, add_number, set_up_device
from benchmarks.report import Report, Table, megabytes, ratio, spread
from benchmarks.standin import Catalogue, build_model
from recbole_lisa.attention import FullAttention
from recbole_lisa.layers.item_store import CodedItems, CodedTargets
from recbole_lisa.ops.packing import code_dtype
from recbole_lisa.serving import Bundle, Recommender
from recbole_lisa.serving.bundle import encoder_weights
from recbole_lisa.serving.ids import IdMap
from recbole_lisa.serving.scorer import rank

TOLERANCE = 1e-5  # of a score against that of the reconstructed vectors, relative to the largest score
STEP_TOLERANCE = 1e-4  # of the cached step against attention over the whole history


class Sizes(NamedTuple):
    """V, D, B, W, items of a list, and items of a history."""

    n_items: int
    width: int
    n_codebooks: int
    n_codewords: int
    k: int = 10
    length: int = 50


def add_model(parser: argparse.ArgumentParser, *, items: int) -> None:
    """Options of the model's sizes, for `serving` and `service`."""
    add_number(parser, "items", items, "items V")
    add_number(parser, "width", 128, "D")
    add_number(parser, "codebooks", 8, "B")
    add_number(parser, "codewords", 256, "W")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `serving`."""
    case = "what is compared (default packed)"
    parser.add_argument("--case", choices=("packed", "index"), default="packed", help=case)
    add_number(parser, "queries", 1000, "index: lists that are compared first")
    parser.add_argument("--export", metavar="FOLDER", help="index: also the codes of this export, repeated and changed")
    add_model(parser, items=10**6)
    add_number(parser, "k", 10, "items of a list")
    add_number(parser, "history", 50, "items of a history")
    add_list(parser, "batches", [1, 64], "histories in one call")
    add_list(parser, "lengths", [10, 65536, 10**6], "items of a session")
    add_number(parser, "sessions", 1000, "sessions in a batch")
    add_machine(parser, repeats=9, cuda=False)


@torch.no_grad()
def run(options: argparse.Namespace) -> None:
    """Run `python -m benchmarks serving`."""
    report = Report(options, set_up_device(options))
    if options.case == "index":
        index.run(options, report)
        return
    sizes = Sizes(options.items, options.width, options.codebooks, options.codewords, options.k, options.history)
    recommender = build(sizes)
    ranking = measure_ranking(recommender, sizes, options.batches, options.repeats)
    steps = measure_steps(recommender, options.lengths, options.repeats)
    sessions = recommender.start_many([["1", "2"]] * options.sessions)
    update = partial(sessions.update, [str(i) for i in range(options.sessions)])
    batch = time_calls({"update": update, "to_bytes": sessions.to_bytes}, repeats=options.repeats)
    document = {"sizes": sizes._asdict(), "ranking": ranking, "steps": steps, "batch": batch}
    report.finish(document, tables(ranking, steps, batch, options), {})


def build(sizes: Sizes) -> Recommender:
    """A LISABase with random weights and codes."""
    torch.manual_seed(0)
    shape = {"n_codebooks": sizes.n_codebooks, "n_codewords": sizes.n_codewords, "hidden_size": sizes.width}
    model = build_model("LISABase", catalogue=Catalogue(2), max_length=200, inner_size=sizes.width, **shape).eval()
    codes = torch.randint(sizes.n_codewords, (sizes.n_items, sizes.n_codebooks)).to(code_dtype(sizes.n_codewords))
    items = CodedItems(CodedTargets(codes, model.codebook.codewords.detach()))
    ids, weights = IdMap.from_ids(map(str, range(sizes.n_items))), encoder_weights(model.encoder, items)
    return Recommender(Bundle("LISABase", "random", model.encoder.settings(), weights, items, ids, 1.0))


def reconstructed(recommender: Recommender) -> Tensor:
    """The dense table of the same items (V, D)."""
    targets = recommender.network.items.targets
    return torch.cat([targets.rows(block) for block in torch.split(torch.arange(len(targets)), 2**14)])


def dense_best(table: Tensor, hidden: Tensor, k: int) -> Any:
    """The best items of a model with a dense table."""
    return (hidden @ table.t()).topk(k)


def check_ranking(recommender: Recommender, table: Tensor, hidden: Tensor, k: int) -> None:
    """Compare the best items of packed codes with those of the reconstructed vectors; raises CheckError."""
    actual, expected = rank(recommender.network.items.targets, hidden, k), dense_best(table, hidden, k)
    scores = (table[actual.ids] @ hidden.unsqueeze(2)).squeeze(2)
    error = max(float((x - expected.values).abs().max()) for x in (actual.scores, scores))
    if not error <= TOLERANCE * float(expected.values.abs().max()):
        wrong = "packed codes rank differently from their vectors, nothing was timed"
        raise CheckError(f"{wrong}: scores differ by {error:.2g}")


def measure_ranking(recommender: Recommender, sizes: Sizes, batches: list[int], repeats: int) -> list[Record]:
    """Time and memory of both sides for every number of histories in one call."""
    table, records = reconstructed(recommender), []
    for n in batches:
        hidden = torch.randn(n, sizes.width)
        check_ranking(recommender, table, hidden, sizes.k)
        numbers = np.random.default_rng(1).integers(sizes.n_items, size=(n, sizes.length))
        histories = [list(map(str, row)) for row in numbers.tolist()]
        calls: dict[str, Call] = {
            "packed": partial(recommender.recommend, histories, sizes.k),
            "dense": partial(dense_best, table, hidden, sizes.k),
        }
        memory = {f"{side}_mb": in_fresh_process(memory_of, side, sizes, n) for side in calls}
        records.append({"histories": n, **time_calls(calls, repeats=repeats), **memory})
    return records


@torch.no_grad()
def memory_of(side: str, sizes: Sizes, n: int) -> float:
    """MB of the items and of one call for n histories, in a fresh process."""
    torch.set_num_threads(1)
    few = torch.arange(min(max(1000, sizes.k), sizes.n_items))  # of a first call, which loads libraries
    recommender, hidden = build(sizes), torch.randn(n, sizes.width)
    if side == "dense":
        table = reconstructed(recommender)
        dense_best(table[few], hidden, sizes.k)
        return table.nbytes / 2**20 + peak_of_call(partial(dense_best, table, hidden, sizes.k)).extra_mb
    items = recommender.network.items
    n_bytes = sum({t.data_ptr(): t.nbytes for t in items.buffers()}.values())
    first = items.targets.take(few)
    if isinstance(first, CodedTargets):
        first.build_index()
    rank(first, hidden, sizes.k)
    return n_bytes / 2**20 + peak_of_call(partial(rank, items.targets, hidden, sizes.k)).extra_mb


def cached_step(length: int, width: int) -> Call:
    """One step of the Transformer after L items, with cached keys and values, checked against attention over all."""
    module, x = FullAttention(hidden_size=width).eval(), torch.randn(1, length + 1, width)
    new, keys, values = x[:, -1:].clone(), module.key(x), module.value(x)  # the step writes the last position

    def step() -> Any:
        keys[:, -1:], values[:, -1:] = module.key(new), module.value(new)
        return module.output(scaled_dot_product_attention(module.query(new), keys, values)).squeeze(1)

    expected = module.last(x, torch.ones(1, length + 1, dtype=torch.bool))
    error = float((step() - expected).abs().max() / expected.abs().max())
    if not error <= STEP_TOLERANCE:
        raise CheckError(f"the step with cached keys and values is wrong, nothing was timed: it differs by {error:.2g}")
    return step


def measure_steps(recommender: Recommender, lengths: list[int], repeats: int) -> list[Record]:
    """Time one update after histories of every length, beside a step with cached keys and values."""
    calls: dict[tuple[str, int], Call] = {}
    records: list[Record] = []
    width = recommender.bundle.hidden_size
    for length in lengths:
        items = np.random.default_rng(length).integers(len(recommender.ids), size=length)
        session = recommender.start([str(item) for item in items.tolist()])
        calls["session", length] = partial(session.update, "7")
        calls["cached", length] = cached_step(length, width)
        sizes = {"session_bytes": len(session.to_bytes()), "cached_bytes": 2 * 4 * width * length}
        records.append({"length": length, **sizes})
    for (side, length), timing in time_calls(calls, repeats=repeats).items():
        records[lengths.index(length)][side] = timing
    return records


def tables(
    ranking: list[Record], steps: list[Record], batch: dict[str, Record], options: argparse.Namespace
) -> list[Table]:
    """Ranking, one more item of a session, and many sessions in one batch."""
    time, rows = "ms, median [fastest, slowest]", []
    for r in ranking:
        times = [spread(r["packed"]), spread(r["dense"]), f"{r['packed']['median'] / r['dense']['median']:.3f}"]
        memory = [megabytes(r["packed_mb"]), megabytes(r["dense_mb"]), f"{r['packed_mb'] / r['dense_mb']:.3f}"]
        rows.append([str(r["histories"]), *times, *memory])
    sizes = f"{options.items:,} items, D = {options.width}, B = {options.codebooks}, W = {options.codewords}"
    columns = ["histories", "LISABase, packed codes: recommend()", "dense float32 table: matmul and topk", "ratio"]
    title = f"The {options.k} best of {sizes}: {time}, and MB of items and call"
    result = [Table(title, [*columns, "MB packed", "MB dense", "ratio"], rows)]
    rows = []
    for r in steps:
        times = [spread(r["session"]), spread(r["cached"]), ratio(r["cached"]["median"] / r["session"]["median"])]
        rows.append([f"{r['length']:,}", *times, f"{r['session_bytes']:,}", f"{r['cached_bytes']:,}"])
    columns = ["items in the history", "LISABase session: update()", "Transformer, cache: attention alone"]
    result.append(Table(f"One more item: {time}", [*columns, "times as fast", "bytes", "bytes of the cache"], rows))
    n = options.sessions
    rows = [[name, spread(timing), f"{n / timing['median']:,.0f}"] for name, timing in batch.items()]
    return [*result, Table(f"{n:,} sessions in one batch", ["call", time, "sessions a second"], rows)]
