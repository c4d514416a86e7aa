"""Building the wheel of this checkout."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
_SOURCES = ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")


def build_wheel(folder: Path) -> Path:
    """Build from a copy in `folder`, so that nothing is written into the tree.

    Args:
        folder: An empty folder.

    Returns:
        The wheel.
    """
    for name in _SOURCES:
        shutil.copy(ROOT / name, folder)
    for name in ("recbole_lisa", "properties"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", "dist", "."]
    done = subprocess.run(build, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next((folder / "dist").glob("*.whl"))
