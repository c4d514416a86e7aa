"""Where the yaml files with every default lie: in a checkout, an editable install or a wheel."""

from pathlib import Path


def properties_path() -> Path:
    """Find the folder that holds `overall.yaml`, `model/`, `dataset/` and `protocol/`.

    Returns:
        The folder inside the installed package if there is one (a wheel carries a copy), else `properties/`
        beside the package (a checkout, or an editable install of one).

    Raises:
        FileNotFoundError: Neither place holds `overall.yaml`.
    """
    package = Path(__file__).resolve().parents[1]
    places = (package / "_properties", package.parent / "properties")
    for place in places:
        if (place / "overall.yaml").is_file():
            return place
    raise FileNotFoundError(
        f"overall.yaml is neither in {places[0]} nor in {places[1]}: the installation is incomplete, "
        "install recbole-lisa again"
    )
