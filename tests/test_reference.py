"""Every public name, every command and every exit code stands in the reference once."""

import importlib
import inspect
import re
from types import SimpleNamespace

import pytest

import descend
from descend import errors
from tools import api_pages, command_pages, site_extension

DIRECTIVE = re.compile(r"^\.\. auto(?:class|function|data):: ([\w.]+)", re.MULTILINE)
ALIAS = re.compile(r"^   \* - ``([\w.]+)``$", re.MULTILINE)

OTHER_NAMES = {"descend.lbann"}  # LBANN's, which docs/lbann.md is about


@pytest.fixture(scope="module")
def text():
    return "\n".join(api_pages.pages().values())


def public():
    """Public names, found without the code that writes the pages: lists of the rooms, and of modules in these lists."""
    names = {f"descend.{name}" for name in dir(descend) if f"descend.{name}" not in OTHER_NAMES}
    ahead = sorted(name for name in names if inspect.ismodule(getattr(descend, name.partition(".")[2])))
    seen = set()
    while ahead:
        name = ahead.pop(0)  # the shortest name of a module that has two
        module = descend.ops if name == "descend.ops" else importlib.import_module(name)
        if module in seen:
            continue
        seen.add(module)
        for last in module.__all__:
            names.add(f"{name}.{last}")
            if inspect.ismodule(getattr(module, last)) and getattr(module, last).__name__ == f"{name}.{last}":
                ahead.append(f"{name}.{last}")
    return {name for name in names if not inspect.ismodule(api_pages.fetched(name))}


def test_every_public_name_stands_once(text):
    written = DIRECTIVE.findall(text) + ALIAS.findall(text)
    assert len(written) == len(set(written))
    assert set(written) == public()


def test_no_object_is_documented_twice(text):
    things = [api_pages.fetched(name) for name in DIRECTIVE.findall(text)]
    ids = [id(thing) for thing in things if inspect.isclass(thing) or inspect.isroutine(thing)]
    assert len(set(ids)) == len(ids)


def test_every_public_module_is_listed():
    rooms = {f"descend.{name}" for name in dir(descend) if inspect.ismodule(getattr(descend, name))}
    assert rooms - OTHER_NAMES <= set(api_pages.MODULES)
    for name in api_pages.MODULES[1:]:
        assert name == "descend.ops" or importlib.import_module(name).__all__


def test_layers_show_their_fields():
    signatures = {one.name: api_pages.signature(one) for one in api_pages.public_names(["descend"])}
    assert signatures["descend.LeakyRelu"] == "(*parents, negative_slope=0.01)"
    assert signatures["descend.EarlyStopping"].startswith("(monitor='validation/objective', mode=None")


def test_every_command_and_exit_code_has_a_place():
    page = command_pages.command_page()
    headings = re.findall(r"^descend (.+)\n-+$", page, re.MULTILINE)
    assert headings == list(command_pages.commands())
    assert {"run", "resume", "fit", "study run", "optimizers"} - set(headings) == {"fit"}
    codes = {cls.exit_code for cls in vars(errors).values() if inspect.isclass(cls) and hasattr(cls, "exit_code")}
    assert codes | {0, 1, 130} == set(command_pages.exit_codes())


def test_pages_are_written_where_they_differ_and_old_ones_removed(tmp_path):
    (tmp_path / "old.rst").write_text("old")
    (tmp_path / "kept.txt").write_text("not ours")
    api_pages.write(tmp_path, {"a": "A"})
    stamp = (tmp_path / "a.rst").stat().st_mtime_ns
    api_pages.write(tmp_path, {"a": "A"})
    assert (tmp_path / "a.rst").stat().st_mtime_ns == stamp
    assert {path.name for path in tmp_path.iterdir()} == {"a.rst", "index.rst", "kept.txt"}


def test_options_in_a_help_text_are_code():
    assert "The same as ``--args`` NAME=VALUE." in command_pages.command_page()


def test_the_build_reads_docstrings_and_points_links_into_the_site(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "README.md").write_text("[a](a.py) [s](studies/README.md)")
    connected = {}
    app = SimpleNamespace(srcdir=docs, connect=lambda event, function, **options: connected.update({event: function}))
    site_extension.setup(app, docs)
    assert (docs / "reference" / "api" / "commands.rst").is_file()

    lines = ["Sums `x`.", "", "Runs:  never."]
    connected["autodoc-process-docstring"](app, "class", "X", descend.Sum, None, lines)
    assert lines[:3] == ["Sums ``x``.", "", ":Runs: never."]
    lines = [dict.__doc__]
    connected["autodoc-process-docstring"](app, "data", "X", {}, None, lines)
    assert lines == []

    assert connected["autodoc-skip-member"](app, "class", "X", descend.Sum, False, None)
    assert connected["autodoc-skip-member"](app, "class", "fit", descend.fit, False, None) is None

    source = ["[c](../CONTRIBUTING.md#how)"]
    connected["source-read"](app, "layers", source)
    assert source == ["[c](/contributing.md#how)"]
    connected["source-read"](app, "examples", source)
    assert source == ["[a](../examples/a.py) [s](studies.md#studies-that-ship)"]
