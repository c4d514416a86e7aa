"""Parts of the docs site that are made from the code: HTTP API, error messages, examples, checks of the API pages."""

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from error_messages import messages_of
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.logging import getLogger

ROOT = Path(__file__).parents[2]
MARK = re.compile(r"<!-- from the code: (.+?) -->")
PUBLIC_MODULES = ("", ".attention", ".errors", ".ops", ".serving", ".tuning")
logger = getLogger(__name__)


def fill_marks(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace `<!-- from the code: X -->`, X being `http api`, `messages of FILE ...` or `example NAME`, in a page."""
    source[0] = MARK.sub(lambda mark: _made(mark[1]), source[0])


def _made(what: str) -> str:
    if what == "http api":
        return str(import_module("http_api").describe_api())
    if what.startswith("example "):
        return example(what.removeprefix("example "))
    files = what.removeprefix("messages of ").split()
    messages = [message for file in files for message in messages_of(ROOT / "recbole_lisa" / file)]
    return "Messages:\n\n" + "\n".join(f"- `` {message} ``" for message in messages)


def example(name: str) -> str:
    """The notebook of an example as Markdown, its title one level lower: text, code, printed lines and plots."""
    parts = []
    for cell in json.loads((ROOT / f"examples/{name}.ipynb").read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(f"#{text}" if cell["cell_type"] == "markdown" and text.startswith("# ") else text)
        if cell["cell_type"] == "code":
            parts[-1] = f"```python\n{text}\n```"
        for output in cell.get("outputs", []):
            if "text" in output:
                parts.append("```text\n{}\n```".format("".join(output["text"]).rstrip()))
            else:
                source = f"data:image/png;base64,{output['data']['image/png']}"
                parts.append(f'<img alt="plot of the example {name}" src="{source}">')
    return "\n\n".join(parts)


def clean_docstring(app: Sphinx, what: str, name: str, item: Any, options: Any, lines: list[str]) -> None:
    """Report a public name without docstring; keep |x| as it is, which reStructuredText would replace."""
    if not "".join(lines).strip() and not name.rpartition(".")[2].startswith("_"):
        logger.warning("%s has no docstring", name)
    lines[:] = [line.replace("|", r"\|") for line in lines]


def check_public_names(app: Sphinx, env: BuildEnvironment) -> None:
    """Report a public name that no page describes."""
    described = {name for name, *_ in env.get_domain("py").get_objects()}
    for place in PUBLIC_MODULES:
        module = import_module(f"recbole_lisa{place}")
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        for name in getattr(module, "__all__", own):
            places = {f"{module.__name__}.{name}", f"recbole_lisa.{name}"}
            if not name.startswith("_") and not places & described:
                logger.warning("%s.%s is on no API page", module.__name__, name)


def write_start_page(app: Sphinx, error: Exception | None) -> None:
    """Lead from the root of the site to its first page."""
    if error is None:
        first = f"{app.config.root_doc}.html"
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={first}"><a href="{first}">{first}</a>\n'
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the functions above to the steps of the build."""
    app.connect("source-read", fill_marks)
    app.connect("autodoc-process-docstring", clean_docstring)
    app.connect("env-check-consistency", check_public_names)
    app.connect("build-finished", write_start_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
