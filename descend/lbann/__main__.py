"""Runs a program written for LBANN: python -m descend.lbann script.py [arguments]. In it, `lbann` is this package."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path


def main() -> None:
    """Run the script that the command line names, as Python itself would; its errors keep their tracebacks."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.stdout.write(f"{__doc__}\n")
        sys.exit(0 if len(sys.argv) > 1 else 2)
    script = Path(sys.argv[1])
    if not script.is_file():
        sys.stderr.write(f"error: there is no script {script}: python -m descend.lbann script.py [arguments]\n")
        sys.exit(2)
    del sys.argv[0]
    sys.path[0] = str(script.absolute().parent)
    importlib.import_module("descend.lbann.as_lbann")
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
