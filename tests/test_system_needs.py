"""Tests say in one way what they need of the system, and a run of them says what it skipped."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import system_needs

TESTS = Path(__file__).parent
OWN = {"system_needs.py", "test_system_needs.py"}


def test_no_test_is_skipped_in_another_way():
    other = re.compile(r"\bskipif\b|importorskip|pytest\.skip\(|mark\.skip\b|SkipTest|unittest\.skip")
    found = [path for path in TESTS.rglob("*.py") if path.name not in OWN and other.search(path.read_text())]
    assert [str(path.relative_to(TESTS)) for path in found] == []


def run(folder, text, *options):
    """A run of tests in a folder of its own, with our conftest."""
    (folder / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\nmarkers = slow\n")
    (folder / "test_some.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


NEEDY = """
import pytest
from system_needs import needs, require

@needs("a moon", False, "Debian: moon")
@pytest.mark.parametrize("x", [1, "a b"])
def test_moon(x): raise AssertionError

@needs("a sun", True, "Debian: sun")
def test_sun(): require("two moons", False)
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_skips_are_counted_by_reason_and_those_for_want_of_a_package_are_listed(tmp_path, workers):
    code, said = run(tmp_path, NEEDY, "--skips-to", "skipped", *workers)
    assert code == 0, said
    assert "    2 needs a moon (Debian: moon)\n    1 needs two moons\n" in said
    assert sorted((tmp_path / "skipped").read_text().splitlines()) == [
        "test_some.py::test_moon[1]",
        "test_some.py::test_moon[a b]",
    ]
    again, said = run(tmp_path, NEEDY.replace('moon", False', 'moon", True'), "@skipped")
    assert again == 1
    assert "2 failed" in said


@pytest.mark.slow
def test_a_skip_without_a_need_fails(tmp_path):
    code, said = run(tmp_path, "import pytest\ndef test(): pytest.skip('not today')\n")
    assert code == 1
    assert "test_some.py::test does not say what it needs, see tests/system_needs.py: not today" in said
    code, said = run(tmp_path, "import pytest\npytest.importorskip('no_such_library')\n")
    assert code
    assert "test_some.py does not say what it needs" in said


def test_a_library_that_is_missing_is_named_as_it_is_installed():
    with pytest.raises(pytest.skip.Exception, match=r"^needs the Python library no\.such \(pip install no-such\)$"):
        system_needs.library("no.such", "no-such")
    assert system_needs.library("json").dumps(1) == "1"
