"""Files and names of the package that comments, docstrings and documents mention are there."""

import importlib
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("descend", "tests", "docs", "tools", "examples", "benchmarks")
FILES = {str(path.relative_to(ROOT)) for top in FOLDERS for path in (ROOT / top).rglob("*.*")}
_PATH = re.compile(r"(?<![\w/.~$*<>{}-])((?:[\w.-]+/)+[\w-]+\.(?:py|h|proto))(?![\w/])")
_NAME = re.compile(r"(?<![\w.\"'/])descend((?:\.[A-Za-z_]\w*)+)")
OTHERS = ("google/protobuf/",)  # files of other projects
SAMPLES = ("NAME", "examples/studies/", "tests/test_optim.py")  # a placeholder, records of runs, a reader's own file


def texts() -> dict[str, str]:
    """Comments and docstrings of the package by file, and documents."""
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    found = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in documents}
    del found["CHANGELOG.md"]
    for path in (ROOT / "descend").rglob("*.*"):
        if path.suffix in (".py", ".h", ".proto"):
            text = path.read_text(encoding="utf-8")
            found[str(path.relative_to(ROOT))] = "\n".join(words(text)) if path.suffix == ".py" else text
    return found


def words(source: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [
        one.string
        for one in tokens
        if one.type == tokenize.COMMENT or (one.type == tokenize.STRING and one.string.startswith(('"""', 'r"""')))
    ]


def is_there(path: str) -> bool:
    """Whether a file of the repository is meant, from its root, from any room, or from the document's folder."""
    path = re.sub(r"^(\.\./)+", "", path)
    return path.startswith(OTHERS) or path in FILES or any(name.endswith("/" + path) for name in FILES)


def resolves(dotted: str) -> bool:
    """Whether `descend.a.b` is a module, or a name of one; what follows a class or a function is not looked at."""
    thing: object = importlib.import_module("descend")
    place = "descend"
    for part in dotted.split(".")[1:]:
        place = f"{place}.{part}"
        try:
            thing = getattr(thing, part)
        except AttributeError:
            try:
                thing = importlib.import_module(place)
            except ImportError:
                return False
        if not isinstance(thing, type(re)):
            return True
    return True


@pytest.fixture(scope="module")
def every_text() -> dict[str, str]:
    return texts()


def test_files_that_are_named_exist(every_text):
    wrong = [
        f"{name}: {path}"
        for name, text in every_text.items()
        for path in sorted(set(_PATH.findall(text)))
        if not is_there(path) and not any(sample in f"{name} {path}" for sample in SAMPLES)
    ]
    assert wrong == []


def test_names_that_are_named_exist(every_text):
    wrong = [
        f"{name}: descend{dotted}"
        for name, text in every_text.items()
        for dotted in sorted(set(_NAME.findall(text)))
        if not resolves(f"descend{dotted}") and not dotted.endswith(".NAME")
    ]
    assert wrong == []


@pytest.mark.parametrize(("path", "there"), [("descend/errors.py", True), ("engine/plain.py", True), ("a/b.py", False)])
def test_a_path_may_be_given_from_any_room(path, there):
    assert is_there(path) is there


@pytest.mark.parametrize(
    ("dotted", "there"),
    [("descend.errors.DataError", True), ("descend.fit.anything", True), ("descend.lower.nothing", False)],
)
def test_a_name_is_looked_up_as_a_user_would(dotted, there):
    assert resolves(dotted) is there
