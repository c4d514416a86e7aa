"""What a result depends on besides its settings: library versions, and the memory that the process used."""

import contextlib
import ctypes
import os
import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import psutil
import torch

from recbole_lisa import __version__

try:
    import resource
except ImportError:  # Windows has no such module
    resource = None  # type: ignore[assignment]

_PACKAGES = ("recbole", "torch", "numpy", "pandas")
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of mallopt in glibc's malloc.h


def make_allocation_cheap() -> None:
    """Let this process reuse the memory of freed tensors, in huge pages; on other systems than Linux nothing changes.

    By default glibc returns the memory of a training step to the system and asks for it again, page by page, in the
    next step, which takes a fifth of the time. The peak stays the same; between steps the process holds nearly as much.
    Tensors above 32 MB are reused only at the end of the heap, so the heap grows by 256 MB of address space.

    Pages of 2 MB instead of 4 KB save another 5 to 15% of a training step. torch asks for them from its first
    allocation on, if the variable is set by then; whoever sets it to 0 keeps small ones.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    libc = glibc()
    if libc is not None:
        for setting, value in ((_MMAP_THRESHOLD, 2**25), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 2**28)):
            libc.mallopt(setting, value)


def glibc() -> ctypes.CDLL | None:
    """The C library of this process, where it is glibc."""
    return ctypes.CDLL(None) if sys.platform == "linux" and platform.libc_ver()[0] == "glibc" else None


def versions() -> dict[str, str]:
    """Versions of Python and of each package that can change a result ("unknown" without its metadata)."""
    by_package = {"python": platform.python_version(), "recbole-lisa": __version__}
    for package in _PACKAGES:
        try:
            by_package[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            by_package[package] = "unknown"
    return by_package


def peak_memory_mb() -> float:
    """Largest resident memory of this process since it started, in MiB (earlier runs in it included)."""
    status = Path("/proc/self/status")  # of Linux, where ru_maxrss of a child would start at its parent's peak
    if peak_kb := re.search(r"VmHWM:\s*(\d+) kB", status.read_text(encoding="utf-8") if status.is_file() else ""):
        return int(peak_kb[1]) / 2**10
    if resource is None:
        return psutil.Process().memory_info().rss / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def free_memory(system: Path = Path("/")) -> int:
    """Bytes that this process may still take, by its machine and its container; `system` has `proc` and `sys`."""
    free: list[int] = [psutil.virtual_memory().available]
    with contextlib.suppress(OSError):
        for line in (system / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers in ("", "memory"):  # version 2, or 1
                free += _left_by_groups(system / "sys/fs/cgroup" / controllers, group.strip("/"), controllers)
    return max(min(free), 0)


def _left_by_groups(root: Path, group: str, controllers: str) -> Iterator[int]:
    """Limit less use of a group and of all above it; files that the system can drop are no use."""
    names = ("limit_in_bytes", "usage_in_bytes") if controllers else ("max", "current")
    limit, used = (f"memory.{name}" for name in names)
    own = root / group
    for folder in (own, *own.parents):  # in a container only the root may exist
        cached = 0
        with contextlib.suppress(OSError):
            dropped = re.search(r"^(?:total_)?inactive_file (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE)
            cached = int(dropped[1]) if dropped else 0
        with contextlib.suppress(OSError, ValueError):  # `max` is no number
            yield int((folder / limit).read_text()) - int((folder / used).read_text()) + cached
        if folder == root:
            return


def peak_gpu_memory_mb(device: torch.device) -> float | None:
    """Largest memory that tensors took on `device` since the process started, in MiB; None for the CPU."""
    if device.type != "cuda":
        return None
    return torch.cuda.max_memory_allocated(device) / 2**20
