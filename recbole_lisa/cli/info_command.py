"""The command `recbole-lisa info`."""

import os
import platform
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np
import torch

from recbole_lisa import __version__
from recbole_lisa.cli.arguments import UsageParser
from recbole_lisa.environment import free_memory
from recbole_lisa.errors import INSTALL_RECBOLE, install_extra

_PACKAGE = Path(__file__).parents[1]
_ABSENT = {
    "recbole": f"not installed: {INSTALL_RECBOLE}",
    "numba": "not installed: operations of LISA on the CPU run on torch and take longer",
    "triton": "not installed: operations of LISA on a GPU run on torch and take longer",
    "ray": f"not installed: `recbole-lisa tune` needs it, {install_extra('tune')}",
}


def main(arguments: Sequence[str]) -> int:
    """Print versions, devices, kernels and the folders that hold files of this package; return 0."""
    UsageParser("recbole-lisa info", "Print versions, devices, kernels and caches, for a report.").parse_args(arguments)
    for name, text in [*_versions(), *_devices(), *_folders()]:
        print(f"{name:<16}{text}")
    return 0


def _versions() -> Iterator[tuple[str, str]]:
    yield "recbole-lisa", f"{__version__} in {_PACKAGE}"
    yield "python", f"{platform.python_version()}, {platform.platform()}"
    for package in ("recbole", "torch", "numpy", "pandas", "numba", "triton", "ray"):
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            yield package, _ABSENT.get(package, "not installed")


def _devices() -> Iterator[tuple[str, str]]:
    cores = f"{os.cpu_count()} cores, torch threads: {torch.get_num_threads()}"
    yield "cpu", f"{cores}, free memory: {free_memory() / 2**30:.1f} GiB"
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        yield f"gpu {index}", f"{device.name}, {device.total_memory / 2**30:.1f} GiB, CUDA {torch.version.cuda}"
    if not torch.cuda.is_available():
        yield "gpu", f"none that torch can use (built for CUDA: {torch.version.cuda or 'no'})"


def _folders() -> Iterator[tuple[str, str]]:
    """Files of compiled kernels, and what runs in this folder leave behind: number and size."""
    numba = Path(os.environ.get("NUMBA_CACHE_DIR") or _PACKAGE)
    triton = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")
    for name, folder, pattern in (
        ("numba cache", numba, "*.nb[ic]"), ("triton cache", triton, "*"),
        ("data sets", Path("dataset"), "*"), ("checkpoints", Path("saved"), "*"), ("logs", Path("log"), "*"),
    ):  # fmt: skip
        sizes = [file.stat().st_size for file in folder.rglob(pattern) if file.is_file()]
        yield name, f"{folder.absolute()}: files: {len(sizes):,}, {np.sum(sizes) / 2**20:,.1f} MiB"
