"""Where the yaml files with every default are: in a checkout, an editable install or a wheel."""

from pathlib import Path


def properties_path() -> Path:
    """The folder that holds `overall.yaml`, `model/`, `dataset/`, `protocol/`, `recipe/` and `tuning/`.

    It is inside the package in a wheel, and beside the package in a checkout; a FileNotFoundError where neither is.
    """
    package = Path(__file__).resolve().parents[1]
    folders = (package / "_properties", package.parent / "properties")
    for folder in folders:
        if (folder / "overall.yaml").is_file():
            return folder
    raise FileNotFoundError(f"overall.yaml is neither in {folders[0]} nor in {folders[1]}: install recbole-lisa again")
