"""Options that several benchmarks share."""

import argparse
from collections.abc import Sequence

import torch

from recbole_lisa.cli.arguments import positive, thread_count
from recbole_lisa.environment import make_allocation_cheap
from recbole_lisa.errors import UsageError


def add_number(parser: argparse.ArgumentParser, name: str, default: float, text: str) -> None:
    """An option --name of the type of its default: a float, or a positive whole number."""
    number = float if isinstance(default, float) else positive
    parser.add_argument(f"--{name}", type=number, default=default, help=f"{text} (default {default:g})")


def add_list(parser: argparse.ArgumentParser, name: str, default: Sequence[int], text: str) -> None:
    """An option --name with one or more positive whole numbers."""
    shown = " ".join(map(str, default))
    parser.add_argument(f"--{name}", type=positive, nargs="+", default=list(default), help=f"{text} (default {shown})")


def add_machine(parser: argparse.ArgumentParser, *, repeats: int | None = 5, cuda: bool = True) -> None:
    """Options of device, threads, samples and output."""
    parser.add_argument("--device", choices=("cpu", "cuda") if cuda else ("cpu",), default="cpu", help="default cpu")
    parser.add_argument("--threads", type=thread_count, help="torch threads (default: all cores)")
    parser.add_argument("--output", help="start of the names of a JSON file, a Markdown file and plots")
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist")
    if repeats:
        add_number(parser, "repeats", repeats, "timed samples")


def set_up_device(options: argparse.Namespace) -> torch.device:
    """Read --device, set torch's threads, and keep freed memory as in a run; raises UsageError without a GPU."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device=cuda, but torch sees no CUDA device: write --device=cpu")
    if options.threads:
        torch.set_num_threads(options.threads)
    make_allocation_cheap()
    return torch.device(options.device)
