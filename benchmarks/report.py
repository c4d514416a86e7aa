"""What a benchmark leaves: a heading that says what ran where, tables, a JSON file, a Markdown file, plots."""

import importlib.util
import json
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.plots import Figure, draw
from recbole_lisa import __version__
from recbole_lisa.files import atomic_writer, check_output

NO_PLOTS = "matplotlib is not installed, so no plot is drawn: pip install 'recbole-lisa[bench]'"


class Table(NamedTuple):
    """A title and rows of text under column names."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """The table with its columns aligned, readable on a terminal too."""
        lines = [list(self.columns), *map(list, self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        text = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |" for line in lines]
        text.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
        return f"{self.title}\n\n" + "\n".join(text) + "\n"


class Output:
    """Where the files go.

    Args:
        option: A folder (it exists, or the text ends with a slash), a prefix of file names, or the name of a .json
            file, which is then the only one written; None writes nothing.
        name: File name inside a folder.
        overwrite: Whether existing files may be replaced.

    Raises:
        UsageError: See `check_output`.
    """

    def __init__(self, option: str | None, name: str, *, overwrite: bool = False) -> None:
        self.json_only = option is not None and option.endswith(".json")
        self.prefix: Path | None = None
        if option is None:
            return
        if not option or option.endswith(("/", "\\")) or Path(option).is_dir():
            self.prefix = Path(option, name)
        else:
            self.prefix = Path(option.removesuffix(".json"))
        for ending in (".json",) if self.json_only else (".json", ".md"):
            check_output(self._file(ending), overwrite=overwrite)
        if not self.json_only and importlib.util.find_spec("matplotlib") is None:
            print(NO_PLOTS)

    def _file(self, ending: str) -> Path:
        assert self.prefix is not None
        return self.prefix.with_name(self.prefix.name + ending)

    def write(
        self, heading: str, document: Mapping[str, Any], tables: Sequence[Table], figures: Sequence[Figure] = ()
    ) -> list[Path]:
        """Write all files, over those of an earlier call.

        Args:
            heading: See `heading`.
            document: What else the JSON file holds.
            tables: For the Markdown file.
            figures: One PNG file each, shown in the Markdown file.

        Returns:
            The files.
        """
        if self.prefix is None:
            return []
        files = [self._file(".json")]
        with atomic_writer(files[0]) as stream:
            stream.write((json.dumps({"header": heading, **document}, indent=2) + "\n").encode())
        if self.json_only:
            return files
        pictures = []
        if importlib.util.find_spec("matplotlib") is not None:
            for figure in figures:
                pictures.append((figure.name, self._file(f"-{figure.name}.png")))
                draw(figure, pictures[-1][1])
        files += [self._file(".md"), *(file for _, file in pictures)]
        text = [heading + "\n", *(table.markdown() for table in tables)]
        text += [f"![{name}]({file.name})\n" for name, file in pictures]
        with atomic_writer(files[1]) as stream:
            stream.write("\n".join(text).encode())
        return files

    @staticmethod
    def tell(files: Sequence[Path]) -> None:
        """Print where the files are."""
        for file in files:
            print(f"written: {file}")


def heading(command: str, device: torch.device) -> str:
    """One line: device, threads, versions, commit and command."""
    threads = "" if device.type == "cuda" else f"{torch.get_num_threads()} threads, "
    return (
        f"{device_name(device)}, {threads}torch {torch.__version__}, recbole-lisa {__version__}, "
        f"commit {commit()}, command: {command}"
    )


def device_name(device: torch.device) -> str:
    """The card's name, or the processor's where the system tells it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.is_file():
        found = re.search(r"model name\s*:\s*(.+)", cpu_info.read_text(encoding="utf-8"))
        if found:
            return found.group(1)
    return platform.processor() or platform.machine()


def commit() -> str:
    """The commit of the checkout that this file lies in, with a + when tracked files were changed; or "unknown"."""
    words = ["git", "--no-optional-locks", "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=10"]
    try:
        done = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"


def milliseconds(seconds: float) -> str:
    """Three digits, in ms."""
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def megabytes(value: float) -> str:
    """Whole MB, two digits below ten."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def ratio(value: float) -> str:
    """How many times, three digits at most."""
    return f"{value:,.0f}x" if value >= 100 else f"{value:.3g}x"
