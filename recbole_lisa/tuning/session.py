"""Import Ray, start it or connect to it, and check that its nodes have the resources of a trial."""

import contextlib
import importlib
import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recbole_lisa.errors import UsageError, install_extra
from recbole_lisa.files import Termination

_STORE_BYTES = 2**27
_AGAIN_SECONDS = 5.0  # after which an interruption that was dropped comes again
_PACKAGE_ROOT = str(Path(__file__).parents[2])


def import_tune() -> Any:
    """Import `ray.tune`; a UsageError if it or pyarrow is missing. Ray 2.6 misses pyarrow only after the search."""
    warnings.filterwarnings("ignore", message="pkg_resources is deprecated")  # of Ray 2.6
    try:
        importlib.import_module("pyarrow")
        return importlib.import_module("ray.tune")
    except ImportError as error:
        raise UsageError(f"a search needs Ray Tune ({error}): {install_extra('tune')}") from error


def check_address(address: str | None) -> None:
    """Raise a `UsageError` for an address that is none, or where nothing answers: Ray would try without an end."""
    if address in (None, "auto", "local"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) < 2**16:
        raise UsageError(f"--address is '{address}', it must be auto, local or HOST:PORT of a Ray cluster")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError) as error:  # a host that is no host name is a ValueError
        raise _no_cluster(address, error) from error


def _no_cluster(address: str | None, error: Exception) -> UsageError:
    reason = " ".join(str(error).split())
    advice = "start one by `ray start --head`, or leave --address out"
    return UsageError(f"--address is '{address}': no Ray cluster answers there ({reason}); {advice}")


@contextlib.contextmanager
def ray_session(address: str | None) -> Iterator[None]:
    """Connect to a Ray cluster, or start one with the cores and GPUs of this machine, until the block ends.

    `address` is auto for the cluster on this machine, HOST:PORT of another one, None or local to start one.

    Raises:
        UsageError: There is no cluster at the address.
        Termination: The process received SIGTERM.
    """
    init_options: dict[str, Any] = {"address": address}
    if address in (None, "local"):
        init_options = {"address": "local", "include_dashboard": False, "object_store_memory": _STORE_BYTES}
        # The processes of trials import the package that this process runs.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_PACKAGE_ROOT, os.environ.get("PYTHONPATH")]))
    in_main = threading.current_thread() is threading.main_thread()
    numbers = [signal.SIGTERM, *([signal.SIGALRM] if hasattr(signal, "SIGALRM") else [])] if in_main else []
    before = [signal.getsignal(number) for number in numbers]  # Ray sets its own
    import ray

    try:
        ray.init(log_to_driver=False, logging_level="ERROR", **init_options)
    except (OSError, ValueError, RuntimeError) as error:
        raise _no_cluster(address, error) from error
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # the table at the end names failed trials
    signals = []

    def interrupt(number: int, _: object) -> None:
        signals.append(number)
        _repeat_in(_AGAIN_SECONDS)
        raise KeyboardInterrupt  # Ray would end the process at a SystemExit, without a message

    try:
        for number in numbers:
            signal.signal(number, interrupt)
        yield
    except KeyboardInterrupt:
        _repeat_in(0)
        if signals:
            raise Termination(128 + signals[0]) from None
        raise
    finally:
        _repeat_in(0)
        ray.shutdown()
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _repeat_in(seconds: float) -> None:
    """Send SIGALRM later, or with 0 never: Python drops an exception that a signal raises in a weakref's callback."""
    if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():  # Windows has none
        signal.setitimer(signal.ITIMER_REAL, seconds)


def check_resources(cpus: float, gpus: float | None) -> float:
    """The number of GPUs of a trial; None means 1 if Ray has a GPU, else 0. A UsageError if no node has enough."""
    import ray

    if gpus is None:
        gpus = float(ray.cluster_resources().get("GPU", 0) >= 1)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        sizes = "; ".join(f"{node.get('CPU', 0):g} cores and {node.get('GPU', 0):g} GPUs" for node in nodes)
        needed = f"--cpus_per_trial={cpus:g} and --gpus_per_trial={gpus:g}"
        raise UsageError(f"{needed} are more than any node of Ray has ({sizes}): lower them")
    return gpus
