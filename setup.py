"""What setup.cfg cannot say: the top-level `properties/` travels in the wheel, as do files beside the modules."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["recbole_lisa*"]), "recbole_lisa._properties"],
    package_dir={"recbole_lisa._properties": "properties"},
    package_data={
        "recbole_lisa": ["py.typed"],
        "recbole_lisa._properties": ["*.yaml", "*/*.yaml"],
        "recbole_lisa.cli": ["completion.sh", "report.html"],
        "recbole_lisa.serving.http": ["page.html"],
    },
)
