"""A change leads to the tests of what it touches and of what imports that."""

import subprocess
from pathlib import Path

import pytest

from tools import changed_tests
from tools.figures import House


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with three modules, of which `b` imports `a`."""
    files = {
        "descend/x/a.py": "",
        "descend/x/b.py": "from descend.x.a import f\n",
        "descend/y/c.py": "",
        "tests/x/test_a.py": "",
        "tests/x/test_b.py": "",
        "tests/y/test_c.py": "",
        "tests/test_other.py": "",
        "tests/toys.py": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def test_mirrors_of_a_module_and_of_its_importers(root: Path):
    assert changed_tests.tests_of(House(root), ["descend/x/a.py"]) == ["tests/x/test_a.py", "tests/x/test_b.py"]
    assert changed_tests.tests_of(House(root), ["descend/x/b.py"]) == ["tests/x/test_b.py"]


def test_a_test_that_changed_stands_for_itself_and_helpers_for_nothing(root: Path):
    found = changed_tests.tests_of(House(root), ["tests/test_other.py", "tests/toys.py", "README.md"])
    assert found == ["tests/test_other.py"]


def test_files_that_differ_from_a_revision_and_new_ones(root: Path):
    (root / "descend/x/b.py").write_text("x = 1\n")
    (root / "descend/x/new.py").write_text("")
    assert sorted(changed_tests.changed_files(root, "HEAD")) == ["descend/x/b.py", "descend/x/new.py"]


def test_an_unknown_revision_is_an_error(root: Path):
    with pytest.raises(SystemExit, match="--base must be a revision of this repository, got 'nowhere'"):
        changed_tests.changed_files(root, "nowhere")
