"""Builds the wheel, installs it into a fresh environment in an empty folder, and runs what is beside this file there.

    make newcomer                                 forty tasks, and the reasons to switch and to leave
    python tests/newcomer/run.py tasks NAME ...   some of the tasks; also `reasons`, and all of either without a name

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
    parser.add_argument("which", nargs="?", choices=("tasks", "reasons"), help="without it, both")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of them; without any, all")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work here, and leave it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="newcomer_") as made:
        folder = (options.keep or Path(made)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        python = install(folder)
        failed = 0
        for which in [options.which] if options.which else ["tasks", "reasons"]:
            work = folder / which
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            for script in ("tasks.py", "reasons.py"):
                shutil.copy(Path(__file__).with_name(script), work)
            failed += do(python, f"{which}.py", *options.names, folder=work)
        return failed


if __name__ == "__main__":
    sys.exit(main())
