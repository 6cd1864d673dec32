"""What is said of the package in several files agrees, and what ships with it is there."""

import ast
import importlib.util
import re
import tomllib
from pathlib import Path

import descend

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def read(name):
    return (ROOT / name).read_text()


def test_the_package_is_marked_as_typed():
    assert (ROOT / "descend" / "py.typed").read_bytes() == b""
    assert "Typing :: Typed" in PROJECT["project"]["classifiers"]


def test_the_version_is_the_same_everywhere():
    assert re.search(r"^version: (.*)$", read("CITATION.cff"), re.MULTILINE)[1] == descend.__version__
    released = re.search(r"^## \[(\d.*?)\] - (.*)$", read("CHANGELOG.md"), re.MULTILINE)
    assert released[1] == descend.__version__
    assert f'date-released: "{released[2]}"' in read("CITATION.cff")


def test_the_oldest_and_the_newest_torch_are_those_that_are_tested():
    (needed,) = (line for line in PROJECT["project"]["dependencies"] if line.startswith("torch>"))
    oldest, newest = re.fullmatch(r"torch>=([\d.]+),<=([\d.]+)", needed).groups()
    assert f"torch=={newest}\n" in read("constraints.txt")
    assert f'"torch=={newest}"' in read("Makefile")
    assert f"TORCH_OLDEST         := {oldest}.0\n" in read("Makefile")


def test_new_names_of_the_changelog_are_there():
    """Each module of the column `now` can be imported, by that path or since it moved again; `a.*` names a folder."""
    rows = re.findall(r"^\| `descend\..*\| `(descend\.[\w.]+(?:\.\*)?)` \|$", read("CHANGELOG.md"), re.MULTILINE)
    assert len(rows) > 10
    for name in rows:
        parts = [part for part in name.split(".") if part != "*" and not part[0].isupper()]
        assert importlib.util.find_spec(".".join(parts)), name


def test_every_target_of_make_is_a_name_and_each_program_it_runs_is_there():
    text = read("Makefile")
    names = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split()
    assert all(re.search(rf"^{name}:", text, re.MULTILINE) for name in names)
    for program in re.findall(r"\b(?:tools|docs)/\w+\.py|\bhatch_build\.py", text + read(".ci/run")):
        assert (ROOT / program).is_file(), program


def extras():
    """The packages of each extra, without those of other extras."""
    optional = PROJECT["project"]["optional-dependencies"]
    names = {extra: {re.match(r"[\w-]+", one)[0] for one in needed} for extra, needed in optional.items()}
    return {extra: found - {"descend"} for extra, found in names.items()}


def test_nothing_says_to_install_the_package_by_a_name_that_no_registry_has():
    """An extra of the package is had from a clone alone; what is missing is called by the name of its library."""
    asked = re.compile(r"descend\[[a-z]+[],]|\bpip install[^`\n]*(?<![\w./])descend(?![\w./-])")
    files = [path for folder in ("descend", "docs", "examples", "tests") for path in (ROOT / folder).rglob("*")]
    texts = [path for path in [*files, *ROOT.glob("*.md")] if path.suffix in (".py", ".md", ".ipynb", ".html")]
    found = {str(path.relative_to(ROOT)) for path in texts if asked.search(path.read_text(errors="replace"))}
    assert found - {"CHANGELOG.md", "tests/test_packaging.py"} == set()  # what was, and the pattern above


def test_the_extra_of_all_has_those_of_users():
    (line,) = PROJECT["project"]["optional-dependencies"]["all"]
    assert set(re.search(r"\[(.*)\]", line)[1].split(",")) == set(extras()) - {"all", "docs", "dev"}
    index = read("docs/index.md")
    assert [extra for extra in extras() if f"`{extra}`" not in index and extra != "dev"] == []


def test_the_libraries_that_errors_name_are_those_of_the_extras():
    """Each module that is imported where it is used has the name here that pip installs it by."""
    from descend.errors import missing_library

    found = set()
    for path in (ROOT / "descend").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2:
                place = {"library": 0, "missing_library": 1}.get(node.func.id)
                if place is not None and isinstance(node.args[place], ast.Constant):
                    found.add(node.args[place].value)
    assert {"pyarrow", "PIL.Image", "h5py", "yaml", "onnx", "vl_convert", "tensorboard", "scipy"} <= found
    packages = {missing_library("x", module).rpartition(" ")[2] for module in found}
    assert packages <= set().union(*extras().values())
