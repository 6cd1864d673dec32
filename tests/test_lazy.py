"""Packages import what is used: their tables are true, and a plain `fit` leaves out what it does not need."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from descend import lazy
from descend.lazy import instance_check, lazy_names
from descend.old_paths import OLD_PATHS

PACKAGE = Path(__file__).parent.parent / "descend"


def table_of(tree: ast.Module) -> dict[str, tuple[str, ...]] | None:
    """The table that a package gives to `lazy_names`."""
    for node in tree.body:
        call = node.value if isinstance(node, ast.Assign) else None
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "lazy_names":
            return ast.literal_eval(call.args[1])
    return None


TABLES = {
    ".".join(path.parent.relative_to(PACKAGE.parent).parts): (tree, table)
    for path in sorted(PACKAGE.rglob("__init__.py"))
    if (table := table_of(tree := ast.parse(path.read_text()))) is not None
}


@pytest.mark.parametrize("package", TABLES)
def test_the_table_and_the_imports_for_the_type_checker_are_equal(package: str):
    tree, table = TABLES[package]
    shown: dict[str, list[str]] = {}
    for block in tree.body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for node in block.body:
                assert isinstance(node, ast.ImportFrom)
                annexed = {name for name, at in lazy._OFFERED.get(package, {}).items() if at == node.module}
                names = [written for alias in node.names if (written := ast.unparse(alias)) not in annexed]
                shown.setdefault((node.module or "").removeprefix(f"{package}."), []).extend(names)
    assert {module: sorted(names) for module, names in table.items()} == {
        m: sorted(names) for m, names in shown.items() if names
    }


@pytest.mark.parametrize("package", TABLES)
def test_every_listed_name_is_there_and_stays_when_a_module_of_its_name_is_imported(package: str):
    _, table = TABLES[package]
    here = importlib.import_module(package)
    offered = [name.partition(" as ")[2] or name for names in table.values() for name in names]
    folder = PACKAGE.parent / package.replace(".", "/")
    assert len(set(offered)) == len(offered)
    for name in offered:
        if (folder / f"{name}.py").exists() or (folder / name).is_dir():
            importlib.import_module(f"{package}.{name}")
            assert not isinstance(getattr(here, name), ModuleType)
    assert [name for name in (*offered, *here.__all__) if name not in dir(here) or not hasattr(here, name)] == []
    assert set(offered) <= set(here.__all__)


def test_an_unknown_name_of_a_package_is_refused_as_python_does():
    with pytest.raises(AttributeError, match=r"module 'descend\.data' has no attribute 'raed'"):
        _ = importlib.import_module("descend.data").raed


def test_a_name_is_fetched_once_and_may_be_offered_under_another_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "made", type(sys)("made"))
    monkeypatch.setitem(sys.modules, "made.part", part := type(sys)("made.part"))
    vars(part).update(one=1)
    fetch, listed = lazy_names("made", {"part": ("one as first",)})
    assert "first" in listed()
    assert fetch("first") == 1
    assert vars(sys.modules["made"])["first"] == 1  # Python asks no more
    with pytest.raises(AttributeError):
        fetch("one")


def test_nothing_is_an_instance_of_a_class_that_was_not_imported(monkeypatch: pytest.MonkeyPatch):
    check = instance_check("made_later", "Kind")
    assert not check(1)
    monkeypatch.setitem(sys.modules, "made_later", later := type(sys)("made_later"))
    assert not check(1)  # the module is being imported
    vars(later).update(Kind=int)
    assert check(True)
    assert not check("1")


# What only other runs need: graphs and their text, optimizers of ours, readers of files, pages, populations.
LEFT_OUT = """
descend.graph descend.lower descend.optim descend.pages descend.experiment.text descend.experiment.check
descend.pages.run descend.data.files descend.data.readers descend.data.description descend.data.transforms
descend.train.population.runner descend.train.strategies.zero descend.train.optimizers.phased
descend.train.strategies.data_parallel descend.data.loading.file_pipeline descend.callbacks.loggers
descend.runtime.checkpoint descend.runtime.checkpoint_manager descend.runtime.run_directory
descend.experiment.checkpoint descend.experiment.population descend.experiment.resume descend.experiment.run_store
descend.experiment.phases descend.experiment.saved_weights descend.data.file_format descend.data.expansion
descend.launch.cost_model
jinja2 google.protobuf safetensors.torch typer rich pyarrow pydantic
"""


def test_fit_evaluate_and_predict_of_a_torch_module_import_only_what_they_need():
    code = """
import sys, functools, torch, descend
x, y = torch.randn(16, 4), torch.randint(0, 3, (16,))
how = {"optimizer": functools.partial(torch.optim.SGD, lr=0.1), "batch_size": 4, "stop": descend.Epochs(2)}
module, loss = torch.nn.Linear(4, 3), torch.nn.CrossEntropyLoss()
descend.fit(module, loss, (x, y), valid=(x, y), **how)
descend.evaluate(module, loss, (x, y))
descend.predict(module, x)
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.splitlines()[-1].split()
    assert "descend.experiment.build_fit" in loaded
    assert [name for name in LEFT_OUT.split() if name in loaded] == []


def test_a_function_is_imported_when_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(lazy, "_PROVIDED", {})
    lazy.provide("parse", "ast", "parse")
    assert lazy.hook("parse") is ast.parse
    assert lazy.registered("parse") is ast.parse
    assert lazy.registered("thrice") is None
    with pytest.raises(KeyError, match="thrice"):
        lazy.hook("thrice")


def test_what_an_annex_has_that_is_not_installed_is_none(monkeypatch):
    monkeypatch.setattr(lazy, "_PROVIDED", {})
    lazy.provide("page", "descend.no_such_annex.write", "page")
    assert lazy.registered("page") is None


def test_an_error_within_an_annex_is_not_hidden(monkeypatch):
    monkeypatch.setattr(lazy, "_PROVIDED", {})
    lazy.provide("page", "descend.pages.no_such_module", "page")
    with pytest.raises(ModuleNotFoundError):
        lazy.registered("page")


@pytest.mark.slow
def test_the_room_of_graphs_alone_finds_what_its_methods_need():
    """Importing a room imports the package first, which registers them and imports no room."""
    code = """
import sys, descend
assert not [name for name in sys.modules if name.startswith("descend.graph")]
from descend.graph import Input, Model, Relu, from_text, to_text
model = Model(layers=[Relu(Input(data_field="x", name="x"), name="y")])
assert from_text(to_text(model)) == model
assert "torch" not in sys.modules
assert model.to_torch(fields={"x": (2,)}, outputs="y").training is not None
assert "torch" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_annex_offers_names_in_a_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "core_room", type(sys)("core_room"))
    monkeypatch.setitem(sys.modules, "annex", annex := type(sys)("annex"))
    vars(annex).update(extra=2)
    monkeypatch.setattr(lazy, "_OFFERED", {})
    fetch, listed = lazy_names("core_room", {})
    lazy.offer("core_room", {"extra": "annex"})
    assert fetch("extra") == 2
    assert "extra" in listed()


def test_an_old_path_is_the_module_of_today(monkeypatch, tmp_path):
    (tmp_path / "place_of_today").mkdir()
    (tmp_path / "place_of_today" / "__init__.py").write_text("value = 3\n")
    (tmp_path / "place_of_today" / "part.py").write_text("value = 4\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    lazy.moved({"place_before": "place_of_today"})
    part = importlib.import_module("place_before.part")
    assert part is importlib.import_module("place_of_today.part")
    assert part.__name__ == part.__spec__.name == "place_of_today.part"
    assert importlib.import_module("place_before") is importlib.import_module("place_of_today")


@pytest.mark.parametrize("old", OLD_PATHS)
def test_a_module_is_found_by_the_path_that_it_had(old):
    assert importlib.import_module(f"descend.{old}") is importlib.import_module(f"descend.{OLD_PATHS[old]}")
