"""What is said of the package in several files agrees, and what ships with it is there."""

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
    """Each module of the column `now` can be found; `a.*` names a folder."""
    rows = re.findall(r"^\| `descend\..*\| `(descend\.[\w.]+(?:\.\*)?)` \|$", read("CHANGELOG.md"), re.MULTILINE)
    assert len(rows) > 10
    for name in rows:
        parts = [part for part in name.split(".") if part != "*" and not part[0].isupper()]
        path = ROOT.joinpath(*parts)
        assert path.is_dir() or path.with_suffix(".py").is_file(), name


def test_every_target_of_make_is_a_name_and_each_program_it_runs_is_there():
    text = read("Makefile")
    names = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split()
    assert all(re.search(rf"^{name}:", text, re.MULTILINE) for name in names)
    for program in re.findall(r"\b(?:tools|docs)/\w+\.py|\bhatch_build\.py", text + read(".ci/run")):
        assert (ROOT / program).is_file(), program
