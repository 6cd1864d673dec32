"""The tests that a change is most likely to break: python tools/changed_tests.py [--base REVISION]

Prints the mirrored tests of every module that differs from the revision (`tests/a/test_b.py` for `descend/a/b.py`),
then those of the modules that import one of them, then test files that differ themselves; `make test-changed` runs
them. It is the fast loop while one works, and no substitute for `make test`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.figures import House, imports, twins

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def changed_files(root: Path, base: str) -> list[str]:
    """Files that differ from a revision, those that git does not track yet too."""
    commands = (["diff", "--name-only", "--relative", base], ["ls-files", "--others", "--exclude-standard"])
    found: list[str] = []
    for command in commands:
        done = subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"--base must be a revision of this repository, got {base!r}: {done.stderr.strip()}")
        found += done.stdout.splitlines()
    return found


def tests_of(house: House, changed: Iterable[str]) -> list[str]:
    """The test files for changed files, without repetitions, those of the changed modules first."""
    paths = set(changed)
    modules = [name for name, module in house.modules.items() if str(module.path) in paths]
    importers = [name for name, others in imports(house).items() if others.intersection(modules)]
    tests = [twin for name in (*modules, *importers) for twin in twins(house.modules[name].path)]
    tests += [Path(path) for path in sorted(paths) if path.startswith("tests/") and Path(path).match("test_*.py")]
    return [str(test) for test in dict.fromkeys(tests) if (house.root / test).is_file()]


def main(words: Sequence[str] | None = None) -> int:
    """Print the test files, one per line."""
    parser = argparse.ArgumentParser(description="The tests that a change is most likely to break.")
    parser.add_argument("--base", default="HEAD", help="the revision to compare with; HEAD by default")
    given = parser.parse_args(words)
    house = House()
    sys.stdout.write("".join(f"{test}\n" for test in tests_of(house, changed_files(house.root, given.base))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
