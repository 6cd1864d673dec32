"""Mutants are made where code can be changed, run with the right code, and counted right."""

import ast
import sys
from pathlib import Path

import pytest

from tools import mutant_runs, mutants


def changed(text):
    """Every mutant of a text, as text."""
    found = []
    tree = ast.parse(text)
    for _, apply, undo in mutants.mutations(tree):
        apply()
        found.append(ast.unparse(ast.fix_missing_locations(tree)))
        undo()
    assert ast.unparse(tree) == ast.unparse(ast.parse(text))
    return found


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("x < y", ["x <= y"]),
        ("x is y", ["x is not y"]),
        ("x in y", ["x not in y"]),
        ("x and y", ["x or y"]),
        ("x + y", ["x - y"]),
        ("x //= y", ["x *= y"]),
        ("x = 2", ["x = 3"]),
        ("x = True", ["x = False"]),
        ("x = 'a'", []),
        ("if x:\n    pass", ["if not x:\n    pass"]),
        ("if not x:\n    pass", ["if x:\n    pass"]),
        ("y = a if x else b", ["y = a if not x else b"]),
        ("f(x)", ["None"]),
        ("def f():\n    return x", ["def f():\n    return None"]),
        ("def f():\n    return 1", ["def f():\n    return 2"]),
        ("def f():\n    '''Doc of 3.'''", []),
        ("def f(x: A[1], y=1) -> A[2]:\n    pass", ["def f(x: A[1], y=2) -> A[2]:\n    pass"]),
        ("@g(1)\ndef f():\n    pass", []),
        ("raise A(f'{x + 1}')", []),
        ("__all__ = ['a'] + 1 * b", []),
        ("if TYPE_CHECKING:\n    x = 1", []),
        ("z: int = 1", ["z: int = 2"]),
        ("x = zip(a, b, strict=True)", []),
    ],
)
def test_what_is_changed(text, made):
    assert changed(text) == made


CODE = """
LIMIT = 3

def small(x):
    return x < LIMIT

def unused():
    return small(1)

def larger(x, y):
    return y if x < y else x
"""
TEST = """
from descend.part import larger, small

def test_small():
    assert small(2)
    assert not small(3)
    assert larger(1, 2) == larger(2, 1) == 2
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of one module, whose tests import it and not the one that is installed."""
    for name, text in {
        "descend/__init__.py": "",
        "descend/part.py": CODE,
        "descend/alone.py": "x = 1\n",
        "tests/test_part.py": TEST,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    run = mutant_runs.run_pytest

    def isolated(*arguments):
        for name in [name for name in sys.modules if name.split(".")[0] == "descend"]:
            del sys.modules[name]
        sys.path.insert(0, str(tmp_path))
        return run(*arguments)

    monkeypatch.setattr(mutant_runs, "run_pytest", isolated)
    return tmp_path


def survivors(package, text, tests):
    """Mutants of a module of this text that pass tests of that text."""
    (package / "descend" / "part.py").write_text(text)
    (package / "tests" / "test_part.py").write_text(tests)
    (package / "mutants.toml").write_text("")
    found = mutants.score("descend/part.py", None, 1, package, package / "mutants.toml")
    return {f"{mutant.before} -> {mutant.after}" for mutant in found.survivors}


@pytest.mark.slow
def test_the_score_of_a_module(package):
    """Killed: the limit, both results and `<` of `small`. Nothing runs `unused`."""
    kept = package / "mutants.toml"
    kept.write_text("")
    found = mutants.score("descend/part.py", None, 1, package, kept)
    alive = [(mutant.line, mutant.before, mutant.after) for mutant in found.survivors]
    assert (8, "return small(1)", "return None") in alive
    assert (8, "1", "2") in alive
    assert (11, "x < y", "x <= y") in alive  # of two that are equal either is the larger
    assert all(line in (8, 11) for line, _, _ in alive)
    assert found.killed == len(mutants.mutants_of(CODE, "")) - len(alive)

    kept.write_text(
        '[[equivalent]]\nmodule = "descend/part.py"\nbefore = "x < y"\nafter = "x <= y"\nreason = "of equals either"\n'
    )
    again = mutants.score("descend/part.py", None, 1, package, kept)
    assert (again.equivalent, again.killed) == (1, found.killed)
    assert len(again.survivors) == len(alive) - 1


def test_without_a_test_every_mutant_survives(package):
    found = mutants.score("descend/alone.py", None, 1, package, package / "none.toml")
    assert (found.killed, len(found.survivors), found.share) == (0, 1, 0.0)


@pytest.mark.slow
def test_tests_that_fail_by_themselves_are_an_error(package):
    (package / "tests" / "test_part.py").write_text("def test():\n    assert False\n")
    with pytest.raises(RuntimeError, match="before anything is changed"):
        mutants.score("descend/part.py", None, 1, package, package / "none.toml")


@pytest.mark.slow
def test_a_mutant_that_never_ends_is_killed(package, monkeypatch):
    """One runs for ever, the other waits for what does not come."""
    monkeypatch.setattr(mutant_runs, "LEAST_SECONDS", 4.0)
    monkeypatch.setattr(mutant_runs, "LEAST_IDLE_SECONDS", 1.0)
    counting = "def f():\n    x = 0\n    while x < 1:\n        x += 1\n    return x\n"
    alive = survivors(package, counting, "from descend.part import f\n\ndef test():\n    assert f() == 1\n")
    assert alive == {"0 -> 1"}  # which ends, with the same

    monkeypatch.setattr(mutant_runs, "LEAST_SECONDS", 600.0)
    waiting = "import threading\n\ndef f(done):\n    if not done:\n        threading.Event().wait()\n"
    alive = survivors(package, waiting, "from descend.part import f\n\ndef test():\n    f(True)\n")
    assert alive == {"threading.Event().wait() -> (no call)"}  # never executed


@pytest.mark.slow
def test_each_mutant_meets_all_tests_that_execute_it(package):
    """A function that runs on import; a fixture of several tests; a closure made on import; a default."""
    text = """
import functools

def twice(x):
    return 2 * x

FOUR = twice(2)

def shared():
    return [1, 2]

def counted(function):
    @functools.wraps(function)
    def inner(*arguments, by=3):
        return by * function(*arguments)

    return inner

@counted
def plain(x, y=5):
    return x + y
"""
    tests = """
import pytest
from descend import part

@pytest.fixture(scope="module")
def values():
    return part.shared()

def test_quick(values):
    assert values

def test_all(values):
    assert values == [1, 2]

def test_the_rest():
    assert part.FOUR == 4
    assert part.plain(1, 2) == 9
"""
    assert survivors(package, text, tests) == {"5 -> 6"}  # no test leaves `y` out


def test_the_page_keeps_rows_of_other_modules():
    page = "a\n<!-- scores -->\n| `b.py` | 1 | 1 | 0 | 100 % |\n| `c.py` | 1 | 1 | 0 | 100 % |\n<!-- end -->\nz\n"
    mutant = mutants.Mutant("b.py", 1, "x", "y", 0)
    text = mutants.written(page, [mutants.Score("b.py", 3, (mutant,))])
    assert "| `b.py` | 4 | 3 | 1 | 75 % |\n| `c.py` | 1 | 1 | 0 | 100 % |\n<!-- end -->\nz\n" in text
    assert text.startswith("a\n<!-- scores -->\n| module ")
    assert mutants.written(text, []) == text


def test_the_core_is_there_and_each_exception_has_a_reason():
    assert all(list(mutants.ROOT.glob(name)) for name in mutants.CORE)
    kinds = ("equivalent", "survivor", "also")
    assert all(row["reason"] for kind in kinds for row in mutants._rows(mutants.EQUIVALENT, kind))
    assert all((mutants.ROOT / row["test"]).is_file() for row in mutants._rows(mutants.EQUIVALENT, "also"))
    assert mutant_runs.dotted("descend/train/step.py") == "descend.train.step"
    assert mutant_runs.dotted(str(Path("descend", "train", "__init__.py"))) == "descend.train"


def test_every_survivor_that_is_listed_is_a_mutant_and_is_printed_with_its_reason(capsys):
    found: dict[str, set[tuple[str, str]]] = {}
    for kind in ("equivalent", "survivor"):
        for row in mutants._rows(mutants.EQUIVALENT, kind):
            module = row["module"]
            if module not in found:
                made = mutants.mutants_of((mutants.ROOT / module).read_text(), module)
                found[module] = {(one.before, one.after) for one in made}
            assert (row["before"], row["after"]) in found[module], row
    assert mutants.main(["descend/train/loop.py", "--survivors"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "descend/train/loop.py: return reason  ->  return None"
    assert lines[1].startswith("    changes no behaviour: the epoch asks")
