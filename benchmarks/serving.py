"""Recommendations from packed codes beside a dense item table, and sessions beside kept keys and values."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.errors import GateError
from benchmarks.machine import set_up_device
from benchmarks.measure import Timing, in_fresh_process, peak_of_call, time_in_turns
from benchmarks.report import Output, Table, heading, megabytes, milliseconds, ratio
from benchmarks.sessions import Session, cached_step
from benchmarks.standin import Catalogue, build_model
from recbole_lisa.attention.codebook import Codebook
from recbole_lisa.layers.item_store import CodedItems
from recbole_lisa.ops.packing import code_dtype
from recbole_lisa.serving import Bundle, Recommender, SessionBatch
from recbole_lisa.serving.bundle import encoder_weights
from recbole_lisa.serving.id_map import IdMap
from recbole_lisa.serving.ranking import rank

TOLERANCE = 1e-5
"""Largest difference of a score from that of the reconstructed vectors, relative to the largest score."""
WARM_UP_ITEMS = 1000
"""Of a first call, which loads libraries, before memory is measured."""
PACKED, DENSE = "LISABase, packed codes: recommend()", "dense float32 table: matmul and topk"
STEP, CACHED = "LISABase session: update()", "Transformer, keys and values kept: attention alone"


@dataclass(frozen=True)
class Sizes:
    """V, D, B, W, how many items a list has, and how many items a history has where it is read anew."""

    n_items: int
    width: int
    n_codebooks: int
    n_codewords: int
    k: int
    length: int


def build(sizes: Sizes) -> Recommender:
    """A LISABase with random weights and codes."""
    torch.manual_seed(0)
    shape = {"n_codebooks": sizes.n_codebooks, "n_codewords": sizes.n_codewords, "hidden_size": sizes.width}
    model = build_model("LISABase", catalogue=Catalogue(2), max_length=200, inner_size=sizes.width, **shape).eval()
    codes = torch.randint(sizes.n_codewords, (sizes.n_items, sizes.n_codebooks)).to(code_dtype(sizes.n_codewords))
    items = CodedItems(codes, Codebook(**shape).codewords.detach())
    ids = IdMap.from_ids(map(str, range(sizes.n_items)))
    weights = encoder_weights(model.encoder, items)
    return Recommender(Bundle("LISABase", "random", model.encoder.settings(), weights, items, ids, 1.0))


def reconstructed(recommender: Recommender) -> Tensor:
    """The dense table of the same items (V, D)."""
    targets = recommender.network.items.targets
    table = torch.empty(len(targets), recommender.bundle.hidden_size)
    for block in torch.arange(len(targets)).split(2**14):
        table[block[0] : block[-1] + 1] = targets.rows(block)
    return table


def histories_of(sizes: Sizes, n: int) -> list[list[str]]:
    """n histories of random items, raw ids."""
    numbers = np.random.default_rng(1).integers(sizes.n_items, size=(n, sizes.length))
    return [list(map(str, row)) for row in numbers.tolist()]


def check_ranking(recommender: Recommender, table: Tensor, hidden: Tensor, k: int) -> None:
    """The best items of packed codes are those of the reconstructed vectors.

    Raises:
        GateError: They are not.
    """
    found, wanted = rank(recommender.network.items.targets, hidden, k), (hidden @ table.t()).topk(k)
    allowed = TOLERANCE * float(wanted.values.abs().max())
    error = float((found.scores - wanted.values).abs().max())
    own = (table[found.ids] @ hidden.unsqueeze(2)).squeeze(2)
    error = max(error, float((own - wanted.values).abs().max()))
    if not error <= allowed:
        raise GateError(
            f"packed codes rank otherwise than their vectors, nothing was timed: scores differ by {error:.2g}"
        )


def run(options: argparse.Namespace) -> None:
    """`python -m benchmarks serving`: see its --help."""
    device = set_up_device("cpu", options.threads)
    output, title = Output(options.output, "serving", overwrite=options.overwrite), heading(options.command, device)
    print(title)
    sizes = Sizes(options.items, options.width, options.codebooks, options.codewords, options.k, options.history)
    with torch.no_grad():
        recommender = build(sizes)
        ranking = measure_ranking(recommender, sizes, options.batches, options.repeats)
        for record in ranking:
            for side, name in ((PACKED, "packed"), (DENSE, "dense")):
                record[f"{name}_mb"] = in_fresh_process(memory_of, side, sizes, record["histories"])
        stepping = measure_steps(recommender, options.lengths, options.repeats)
        together = measure_batch(recommender, options.sessions, options.repeats)
    document = {"sizes": vars(sizes), "ranking": ranking, "steps": stepping, "batch": together}
    tables = [ranking_table(ranking, sizes), step_table(stepping), batch_table(together)]
    for table in tables:
        print("\n" + table.markdown(), end="")
    output.tell(output.write(title, document, tables))


def measure_ranking(recommender: Recommender, sizes: Sizes, batches: list[int], repeats: int) -> list[dict[str, Any]]:
    """Time both sides in turns for every number of histories at once."""
    table, records = reconstructed(recommender), []
    for n in batches:
        hidden = torch.randn(n, sizes.width)
        check_ranking(recommender, table, hidden, sizes.k)
        calls = {
            PACKED: partial(recommender.recommend, histories_of(sizes, n), sizes.k),
            DENSE: partial(dense_best, table, hidden, sizes.k),
        }
        times = timed(calls, repeats, f"{n} histories")
        records.append({"histories": n, "packed": times[PACKED]._asdict(), "dense": times[DENSE]._asdict()})
    return records


def dense_best(table: Tensor, hidden: Tensor, k: int) -> Any:
    """What a model with an item table does."""
    return (hidden @ table.t()).topk(k)


def memory_of(side: str, sizes: Sizes, n: int) -> float:
    """MB of the items and of one call, measured in a process of its own that has loaded its libraries."""
    torch.set_num_threads(1)
    few = min(max(WARM_UP_ITEMS, sizes.k), sizes.n_items)
    with torch.no_grad():
        recommender = build(sizes)
        hidden = torch.randn(n, sizes.width)
        call: Callable[[], object]
        if side == DENSE:
            table = reconstructed(recommender)
            held = table.nbytes
            dense_best(table[:few], hidden, sizes.k)
            call = partial(dense_best, table, hidden, sizes.k)
        else:
            items = recommender.network.items
            held = sum({t.data_ptr(): t.nbytes for t in items.buffers()}.values())
            rank(items.targets.take(torch.arange(few)), hidden, sizes.k)
            call = partial(rank, items.targets, hidden, sizes.k)
        return held / 2**20 + peak_of_call(call, torch.device("cpu")).extra_mb


def measure_steps(recommender: Recommender, lengths: list[int], repeats: int) -> list[dict[str, Any]]:
    """Time one update after histories of every length, all in turns, beside a step that keeps keys and values."""
    calls: dict[tuple[str, int], Callable[[], object]] = {}
    sizes: dict[int, int] = {}
    width = recommender.bundle.hidden_size
    for length in lengths:
        items = np.random.default_rng(length).integers(len(recommender.ids), size=length)
        session = recommender.start([str(item) for item in items.tolist()])
        sizes[length] = len(session.to_bytes())
        calls[STEP, length] = partial(session.update, "7")
        calls[CACHED, length] = cached_step(Session(1, length, width, 0.1, torch.device("cpu"))).call
    times = timed(calls, repeats, "steps")
    return [
        {
            "length": length,
            "session": times[STEP, length]._asdict(),
            "cached": times[CACHED, length]._asdict(),
            "session_bytes": sizes[length],
            "cached_bytes": 2 * 4 * width * length,
        }
        for length in lengths
    ]


def measure_batch(recommender: Recommender, n: int, repeats: int) -> dict[str, Any]:
    """Time an update and a recommendation of many sessions at once."""
    batch: SessionBatch = recommender.start_many([["1", "2"]] * n)
    items = [str(i) for i in range(n)]
    calls = {"update": partial(batch.update, items), "to_bytes": batch.to_bytes}
    times = timed(calls, repeats, f"{n} sessions")
    return {"sessions": n, **{name: timing._asdict() for name, timing in times.items()}}


def timed(calls: dict[Any, Callable[[], object]], repeats: int, title: str) -> dict[Any, Timing]:
    """Warm up and time in turns.

    Raises:
        Exception: What a call raises.
    """
    for call in calls.values():
        call()
    found: dict[Any, Timing] = {}
    for name, timing in time_in_turns(
        calls, dict.fromkeys(calls, repeats), device=torch.device("cpu"), title=title
    ).items():
        if isinstance(timing, Exception):
            raise timing
        found[name] = timing
    return found


def _cell(timing: dict[str, Any]) -> str:
    return f"{milliseconds(timing['median'])} [{milliseconds(timing['low'])}, {milliseconds(timing['high'])}]"


def ranking_table(records: list[dict[str, Any]], sizes: Sizes) -> Table:
    """Time and memory of both sides."""
    title = (
        f"The {sizes.k} best of {sizes.n_items:,} items, D = {sizes.width}, B = {sizes.n_codebooks}, W = "
        f"{sizes.n_codewords}: ms, median [fastest, slowest], and MB of items and call"
    )
    columns = ["histories at once", PACKED, DENSE, "packed / dense", "MB packed", "MB dense", "packed / dense"]
    rows = [
        [
            str(r["histories"]),
            _cell(r["packed"]),
            _cell(r["dense"]),
            f"{r['packed']['median'] / r['dense']['median']:.3f}",
            megabytes(r["packed_mb"]),
            megabytes(r["dense_mb"]),
            f"{r['packed_mb'] / r['dense_mb']:.3f}",
        ]
        for r in records
    ]
    return Table(title, columns, rows)


def step_table(records: list[dict[str, Any]]) -> Table:
    """Time of one more item and what is kept between items."""
    columns = [
        "items in the history",
        STEP,
        CACHED,
        "times as fast",
        "bytes of the session",
        "bytes of keys and values",
    ]
    rows = [
        [
            f"{r['length']:,}",
            _cell(r["session"]),
            _cell(r["cached"]),
            ratio(r["cached"]["median"] / r["session"]["median"]),
            f"{r['session_bytes']:,}",
            f"{r['cached_bytes']:,}",
        ]
        for r in records
    ]
    return Table("One more item: ms, median [fastest, slowest]", columns, rows)


def batch_table(record: dict[str, Any]) -> Table:
    """Sessions a second, many at once."""
    columns = [f"{record['sessions']:,} sessions at once", "ms, median [fastest, slowest]", "sessions a second"]
    rows = [
        [name, _cell(record[name]), f"{record['sessions'] / record[name]['median']:,.0f}"]
        for name in ("update", "to_bytes")
    ]
    return Table("A batch of sessions", columns, rows)
