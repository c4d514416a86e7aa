"""The commands, one file each: `main(arguments)` returns the exit status; a mistake of the user raises UsageError."""

import os
import signal
from importlib import import_module
from types import ModuleType


class EndingAtOnce:
    """Inside, Ctrl+C and SIGTERM print a line and end the process: C code of an import may lose an exception."""

    def __enter__(self) -> None:
        """Set the handlers, in the main thread only; a signal that is ignored stays so."""
        self._before = {}
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, _end)
        except ValueError:  # another thread
            pass

    def __exit__(self, *_: object) -> None:
        """Restore the handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)


def imported(name: str) -> ModuleType:
    """A module of this package, imported late: a mistake in the arguments should not wait for torch."""
    with EndingAtOnce():
        return import_module(f"recbole_lisa.{name}")


def _end(number: int, _: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(128 + number)
