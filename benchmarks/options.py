"""The options of every benchmark; nothing here imports torch, so that a mistake is told at once."""

import argparse
import contextlib
from collections.abc import Callable
from typing import NamedTuple

from recbole_lisa.cli.arguments import positive

PARTS = ("sublayer", "core")
GPU_PARTS = ("tests", "attention", "memory", "online", "step", "training")
AMP = ("no", "bf16", "fp16")
DTYPES = ("float32", "bfloat16", "float16", "float64")


class Verb(NamedTuple):
    """One benchmark: what --help says of it, how its options are added, and `module:function` that runs it."""

    description: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: str


def items(text: str) -> int:
    """A number of items: the padding, and one to draw at least."""
    if positive(text) > 1:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be at least 2, the padding and an item, got {text}")


def not_negative(text: str) -> float:
    """A finite number of at least 0."""
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"must be a number of at least 0, got {text}")


def _add_common(parser: argparse.ArgumentParser, *, repeats: int | None = 5) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default cpu")
    parser.add_argument("--threads", type=positive, help="torch threads (default: all cores)")
    if repeats:
        parser.add_argument("--repeats", type=positive, default=repeats, help=f"timed samples (default {repeats})")
    _add_output(parser)


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", help="a folder or the beginning of file names: JSON, Markdown table and plots; x.json: JSON alone"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist")


def _add_problem(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="default float32")
    parser.add_argument("--backward", action="store_true", help="forward and backward, not forward alone")
    parser.add_argument("--decay", type=not_negative, default=0.0, help="of LISA's histogram (default 0, the paper)")
    parser.add_argument("--items", type=items, default=3417, help="items V, padding included (default: ML-1M's 3417)")
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="only these rows (default: all)")


def _add_limits(parser: argparse.ArgumentParser, *, seconds: float) -> None:
    parser.add_argument(
        "--row_seconds",
        type=not_negative,
        default=seconds,
        help=f"skip a row at a length where one call takes longer; timed samples take a fifth (default {seconds:g})",
    )
    parser.add_argument(
        "--memory_mb", type=positive, help="what a row may take on the CPU (default: 70%% of what is free now)"
    )


def add_attention(parser: argparse.ArgumentParser) -> None:
    """Options of `benchmark attention`."""
    parser.add_argument(
        "--lengths", type=positive, nargs="+", default=[128, 1024, 8192, 16384, 65536], help="default 128 ... 65536"
    )
    parser.add_argument(
        "--widths", type=positive, nargs="+", default=[128], help="D (default 128; the paper: 128 1024)"
    )
    parser.add_argument("--tokens", type=positive, default=65536, help="N * L, kept fixed (default 65536)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default both")
    parser.add_argument("--cuda_graph", action="store_true", help="on a GPU, time the replay of the recorded call")
    _add_problem(parser)
    _add_limits(parser, seconds=30)
    _add_common(parser)


def add_memory(parser: argparse.ArgumentParser) -> None:
    """Options of `benchmark memory`."""
    parser.add_argument(
        "--lengths",
        type=positive,
        nargs="+",
        default=[512, 1024, 2048, 4096, 8192, 16384],
        help="L (default 512 ... 16384)",
    )
    parser.add_argument("--width", type=positive, default=128, help="D (default 128)")
    parser.add_argument("--part", choices=PARTS, default="sublayer", help="default sublayer")
    parser.add_argument("--budget_mb", type=positive, default=4096, help="memory that the batch is made for (4096)")
    _add_problem(parser)
    _add_limits(parser, seconds=120)
    _add_common(parser, repeats=None)


def add_online(parser: argparse.ArgumentParser) -> None:
    """Options of `benchmark online`."""
    parser.add_argument(
        "--lengths",
        type=positive,
        nargs="+",
        default=[128, 2048, 16384, 65536, 1048576],
        help="items in the history (default 128 ... 1048576)",
    )
    parser.add_argument("--width", type=positive, default=128, help="D (default 128)")
    parser.add_argument("--users", type=positive, default=1, help="users that go on together (default 1)")
    parser.add_argument("--decay", type=not_negative, default=0.1, help="of LISA's histogram (default 0.1)")
    _add_limits(parser, seconds=20)
    _add_common(parser, repeats=25)


def add_data(parser: argparse.ArgumentParser) -> None:
    """Options of `benchmark data`."""
    parser.add_argument(
        "--lengths",
        type=positive,
        nargs="+",
        default=[50, 200, 1000],
        help="MAX_ITEM_LIST_LENGTH: 50 200 1000",
    )
    parser.add_argument("--dataset", default="ml-100k", help="default ml-100k, which comes with RecBole")
    parser.add_argument("--data_path", help="folder that holds <dataset>/<dataset>.inter")
    parser.add_argument("--generated", type=positive, metavar="N", help="a made-up set of about N interactions instead")
    parser.add_argument("--sides", nargs="+", choices=("windows", "recbole"), default=["windows", "recbole"])
    _add_limits(parser, seconds=120)
    _add_common(parser, repeats=3)


def add_step(parser: argparse.ArgumentParser) -> None:
    """Options of `benchmark step`."""
    parser.add_argument("--models", nargs="+", default=["LISASoft", "LISAMini", "LISABase"])
    parser.add_argument("--batch", type=positive, default=128, help="sequences N (default 128)")
    parser.add_argument("--length", type=positive, default=200, help="positions L (default 200)")
    parser.add_argument("--items", type=items, default=3417, help="items V, padding included (default: ML-1M's 3417)")
    parser.add_argument("--amp", choices=AMP, default="no", help="our side under autocast, as in a run (default no)")
    parser.add_argument("--compile", action="store_true", help="our side with a compiled encoder, as in a run")
    _add_common(parser)


def add_serving(parser: argparse.ArgumentParser) -> None:
    """Options of `benchmark serving`."""
    parser.add_argument("--items", type=positive, default=10**6, help="items V (default 1000000)")
    parser.add_argument("--width", type=positive, default=128, help="D (default 128)")
    parser.add_argument("--codebooks", type=positive, default=8, help="B (default 8)")
    parser.add_argument("--codewords", type=positive, default=256, help="W (default 256)")
    parser.add_argument("--k", type=positive, default=10, help="items of a list (default 10)")
    parser.add_argument("--history", type=positive, default=50, help="items of a history that is read (default 50)")
    parser.add_argument("--batches", type=positive, nargs="+", default=[1, 64], help="histories at once (1 64)")
    parser.add_argument(
        "--lengths", type=positive, nargs="+", default=[10, 65536, 10**6], help="items of a session (10 65536 1000000)"
    )
    parser.add_argument("--sessions", type=positive, default=1000, help="sessions in a batch (default 1000)")
    parser.add_argument("--threads", type=positive, help="torch threads (default: all cores)")
    parser.add_argument("--repeats", type=positive, default=9, help="timed samples (default 9)")
    _add_output(parser)


def add_service(parser: argparse.ArgumentParser) -> None:
    """Options of `benchmark service`."""
    parser.add_argument("--minutes", type=not_negative, default=10.0, help="of load (default 10)")
    parser.add_argument("--clients", type=positive, default=8, help="callers at once (default 8)")
    parser.add_argument("--redis", metavar="URL", help="keep sessions in Redis, not in memory")
    parser.add_argument("--items", type=positive, default=10**5, help="items V (default 100000)")
    parser.add_argument("--width", type=positive, default=128, help="D (default 128)")
    parser.add_argument("--codebooks", type=positive, default=8, help="B (default 8)")
    parser.add_argument("--codewords", type=positive, default=256, help="W (default 256)")
    parser.add_argument("--threads", type=positive, help="torch threads of the service (default 1)")
    _add_output(parser)


def add_gpu(parser: argparse.ArgumentParser) -> None:
    """Options of `benchmark gpu`."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="default cuda; cpu tries the script")
    parser.add_argument("--output", required=True, help="folder for every table, plot and log")
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist")
    parser.add_argument("--budget_s", type=positive, default=540, help="seconds for everything (default 540)")
    parser.add_argument("--parts", nargs="+", choices=GPU_PARTS, default=list(GPU_PARTS), help="default all")
    parser.add_argument("--tests", default="tests", help="folder whose tests marked gpu are run, where it exists")
    parser.add_argument("--dataset", default="ml-1m", help="what the models train on (default ml-1m)")
    parser.add_argument("--data_path", default="dataset", help="folder that holds <dataset>/<dataset>.inter")
    parser.add_argument("--models", nargs="+", default=["LISASoft", "LISABase", "Transformer"], help="models to train")
    parser.add_argument("--epochs", type=positive, default=5, help="of each training (default 5)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes everywhere, to try the script itself")


VERBS = {
    "attention": Verb(
        "Time and memory of every attention mechanism over lengths, forward or with backward.",
        add_attention,
        "benchmarks.attention:run",
    ),
    "step": Verb(
        "A training step of the LISA models beside the same mathematics written naively.",
        add_step,
        "benchmarks.step:run",
    ),
    "memory": Verb(
        "Peak memory of every mechanism at the largest batch that all fit, and ratios to the Transformer.",
        add_memory,
        "benchmarks.memory:run",
    ),
    "online": Verb(
        "One step of a user's session at growing histories: LISA's state, kept keys and values, nothing kept.",
        add_online,
        "benchmarks.online:run",
    ),
    "serving": Verb(
        "Recommendations from packed codes beside a dense table, sessions beside kept keys and values, on the CPU.",
        add_serving,
        "benchmarks.serving:run",
    ),
    "service": Verb(
        "The HTTP service under mixed load, hostile requests among it: wrong answers, times, memory over time.",
        add_service,
        "benchmarks.service:run",
    ),
    "data": Verb(
        "Time and memory of preparing a data set at growing MAX_ITEM_LIST_LENGTH.",
        add_data,
        "benchmarks.data:run",
    ),
    "gpu": Verb(
        "Everything a GPU is needed for, within a budget: tests, benchmarks and a short training.",
        add_gpu,
        "benchmarks.gpu:run",
    ),
}
"""Name -> benchmark."""
