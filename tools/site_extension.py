"""What the site's build does beyond Sphinx: writes the pages of public names and commands, and reads our docstrings."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from tools import api_pages, command_pages
from tools.docstrings import rst

__all__ = ["setup"]


def setup(app: Any, docs: Path) -> dict[str, Any]:
    """Connect to Sphinx, whose source folder is `docs`."""
    pages = {**api_pages.pages(), "commands": command_pages.command_page()}
    api_pages.write(docs / "reference" / "api", pages)
    app.connect("autodoc-process-docstring", _docstring, priority=100)  # before napoleon, which reads the sections
    app.connect("autodoc-skip-member", _skip)
    app.connect("source-read", _source)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Turn a docstring into reStructuredText, in place. A constant has none but that of its type."""
    of_type = what == "data" and getattr(thing, "__doc__", None) == type(thing).__doc__
    lines[:] = [] if of_type else rst(inspect.cleandoc("\n".join(lines)))


def _skip(app: Any, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leave out members without a docstring, and classes, which have a place of their own."""
    return True if inspect.isclass(thing) or not getattr(thing, "__doc__", None) else None


def _source(app: Any, name: str, source: list[str]) -> None:
    """Point links to pages outside of `docs/`, which readers of the repository follow, to their copies in the site."""
    text = source[0]
    if name == "examples":  # the list beside the examples, with links from here
        text = (Path(app.srcdir).parent / "examples" / "README.md").read_text(encoding="utf-8")
        text = text.replace("](studies/README.md)", "](studies.md#studies-that-ship)")
        text = re.sub(r"\]\((\w+\.(?:py|ipynb))\)", r"](../examples/\1)", text)
    source[0] = text.replace("](../CONTRIBUTING.md", "](/contributing.md")
