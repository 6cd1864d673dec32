"""The tables of the pages are those of the code, and the pages' examples run."""

import importlib.util
import re
from pathlib import Path

import pytest

import descend
from descend.zoo import modules

DOCS = Path(__file__).parent.parent / "docs"


def maker():
    spec = importlib.util.spec_from_file_location("make_tables", DOCS / "make_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["layers.md", "zoo.md", "bridges.md", "optimizers.md"])
def test_a_page_has_the_tables_of_the_code(page):
    text = (DOCS / page).read_text()
    assert "<!-- table: " in text
    assert maker().written(text) == text, "run python docs/make_tables.py"


def test_every_kind_operator_and_module_has_a_row():
    text = (DOCS / "layers.md").read_text() + (DOCS / "zoo.md").read_text()
    rows = set(re.findall(r"^(?:\||- \*\*)\s*(\w+)(?:\*\*| \|)", text, re.MULTILINE))
    kinds = {cls.__name__ for name, cls in descend.graph.CLASSES.items() if name.startswith("Layer.")}
    names = kinds | set(descend.ops.__all__) - {"Operator"} | set(modules.__all__) - {"Module"}
    networks = {
        name
        for name in descend.zoo.__all__
        if isinstance(cls := getattr(descend.zoo, name), type) and issubclass(cls, modules.Module)
    }
    assert names | networks <= rows


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", (DOCS / "zoo.md").read_text(), re.DOTALL))
def test_the_examples_run(code, monkeypatch):
    monkeypatch.setattr(modules.FullyConnectedModule, "global_count", 0)
    exec(compile(code, "zoo.md", "exec", dont_inherit=True), {})
