"""Builds the wheel, installs it into a fresh environment in an empty folder, and runs the tasks beside this file there.

    make newcomer                            all of them
    python tests/newcomer/run.py NAME ...    some of them

`--keep FOLDER` works in that folder and leaves it, so that a second call installs the wheel alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TORCH = "torch==2.13.0"  # first, and this one, as README says
EXTRAS = "data,onnx,report,study,tracking"


def do(*command: str | Path, folder: Path) -> int:
    """Run a command without this checkout on its path; its exit status."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run([str(part) for part in command], cwd=folder, env=environment, check=False).returncode


def install(folder: Path) -> Path:
    """The Python of an environment in `folder` that has the wheel of this checkout."""
    python, wheels = folder / "environment" / "bin" / "python", folder / "wheels"
    pip = (python, "-m", "pip", "--disable-pip-version-check", "--quiet")
    shutil.rmtree(wheels, ignore_errors=True)
    if not python.exists() and do(sys.executable, "-m", "venv", python.parent.parent, folder=folder):
        raise SystemExit("no environment could be made")
    if do(*pip, "install", TORCH, folder=folder) or do(*pip, "wheel", "--no-deps", "-w", wheels, ROOT, folder=folder):
        raise SystemExit("torch could not be installed, or the wheel not built")
    (wheel,) = wheels.glob("descend-*.whl")
    if do(*pip, "install", f"{wheel}[{EXTRAS}]", folder=folder) or do(
        *pip, "install", "--no-deps", "--force-reinstall", wheel, folder=folder
    ):
        raise SystemExit("the wheel could not be installed")
    return python


def main() -> int:
    """Install, and run tasks in an empty folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a task; without any, all")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work here, and leave it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="newcomer_") as made:
        folder = (options.keep or Path(made)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        python = install(folder)
        work = folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        shutil.copy(Path(__file__).with_name("tasks.py"), work)
        return do(python, "tasks.py", *options.names, folder=work)


if __name__ == "__main__":
    sys.exit(main())
