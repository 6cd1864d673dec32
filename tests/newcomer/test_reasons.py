"""Reasons to switch and to leave, from an installed wheel in an empty folder, without a network or this checkout.

Everything but the package itself is that of the environment of the tests, so nothing is downloaded.
"""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
NO_NETWORK = """
import socket
_connect = socket.socket.connect
def connect(self, address):
    if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost", socket.gethostname()):
        raise OSError(f"this test has no network, and {address} was asked for")
    return _connect(self, address)
socket.socket.connect = connect
"""


def do(*command, folder, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**kept, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def python(tmp_path):
    """That of an environment with the wheel of this checkout."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    wheels = tmp_path / "wheels"
    built = do(*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", wheels, ROOT, folder=tmp_path)
    assert built.returncode == 0, built.stderr
    venv.create(tmp_path / "environment", with_pip=False, symlinks=True)
    python = tmp_path / "environment" / "bin" / "python"
    (packages,) = (tmp_path / "environment").glob("lib/python*/site-packages")
    # A path in such a file is searched, and the files like it that lie there are not read: the checkout stays unknown.
    others = [path for path in sys.path if Path(path).name == "site-packages"]
    (packages / "others.pth").write_text("\n".join(others))
    (packages / "sitecustomize.py").write_text(NO_NETWORK)
    (wheel,) = wheels.glob("descend-*.whl")
    put = do(
        *pip, "--python", python, "install", "--no-deps", "--no-index", "--ignore-installed", wheel, folder=tmp_path
    )
    assert put.returncode == 0, put.stderr
    where = do(python, "-c", "import descend; print(descend.__file__)", folder=tmp_path)
    assert str(packages) in where.stdout, where.stderr
    return python


@pytest.mark.slow(seconds=30)
def test_ten_reasons_to_switch_and_ten_to_leave(python, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    for name in ("tasks.py", "reasons.py"):
        shutil.copy(HERE / name, work)
    done = do(python, "reasons.py", folder=work)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" ok ") == 20
