"""Where the yaml files with every default are: in a checkout, an editable install or a wheel."""

from pathlib import Path


def properties_path() -> Path:
    """The folder that holds `overall.yaml`, `model/`, `dataset/`, `protocol/` and `tuning/`.

    It is inside the package in a wheel, and beside the package in a checkout.

    Raises:
        FileNotFoundError: Neither place holds `overall.yaml`.
    """
    package = Path(__file__).resolve().parents[1]
    places = (package / "_properties", package.parent / "properties")
    for place in places:
        if (place / "overall.yaml").is_file():
            return place
    raise FileNotFoundError(f"overall.yaml is neither in {places[0]} nor in {places[1]}: install recbole-lisa again")
