"""`import lbann` without an installed LBANN, and scripts that are run with it."""

import subprocess
import sys

import pytest

import descend.lbann

IMPORTS = """
import descend.lbann.as_lbann
import lbann, os
import lbann.contrib.launcher
import lbann.contrib.lc.systems as systems
import lbann.modules.transformer.encoding
import lbann.callbacks_pb2
from lbann.modules import FullyConnectedModule
from lbann import reader_pb2, ops
from lbann.core.training_algorithm import LTFB
from lbann.util import make_iterable
import descend.lbann as same, descend.zoo.modules
assert lbann is same
assert lbann.__name__ == "descend.lbann" and lbann.__spec__.name == "descend.lbann"
assert lbann.contrib.launcher.run is lbann.run
assert FullyConnectedModule is descend.modules.FullyConnectedModule
assert lbann.callbacks_pb2 is same.callbacks_pb2
assert LTFB is lbann.LTFB
assert os.environ["DESCEND_LBANN_IMPORT"] == "1"
for name in ("lbann.nothing", "lbann.nothing_pb2", "lbann.modules.nothing", "lbannx"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{name} was imported")
"""


def python(*arguments, **options):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, **options)


def test_one_line_makes_the_name_and_everything_below_it():
    done = python("-c", IMPORTS)
    assert done.returncode == 0, done.stderr


def test_without_that_line_there_is_no_such_name():
    done = python("-c", "import descend.lbann, lbann")
    assert "No module named 'lbann'" in done.stderr


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "place" / "script.py"
    path.parent.mkdir()
    (path.parent / "beside.py").write_text("import lbann.util\nNUMBER = 7\n")
    path.write_text(
        "import sys, lbann, beside\nassert __name__ == '__main__'\n"
        "print(sys.argv[1:], beside.NUMBER, lbann.Input(data_field='x').name)\nsys.exit(int(sys.argv[2]))\n"
    )
    return path


def test_a_script_is_run_as_python_runs_it(script, tmp_path):
    done = python("-m", "descend.lbann", str(script), "--flag", "5", cwd=tmp_path)
    assert done.stderr == ""
    assert done.stdout == "['--flag', '5'] 7 layer1\n"
    assert done.returncode == 5


def test_errors_of_a_script_keep_their_place(tmp_path):
    (tmp_path / "bad.py").write_text("import lbann\n\nlbann.Relu(name=3)\n")
    done = python("-m", "descend.lbann", "bad.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "line 3, in <module>" in done.stderr
    assert "Relu.name is 3; expected a string" in done.stderr


def test_what_is_no_script_is_said(tmp_path):
    done = python("-m", "descend.lbann", "missing.py", cwd=tmp_path)
    assert (done.returncode, done.stderr.startswith("error: there is no script missing.py")) == (2, True)
    assert python("-m", "descend.lbann").returncode == 2
    assert "python -m descend.lbann script.py" in python("-m", "descend.lbann", "--help").stdout


def test_modules_keep_their_own_specs():
    assert descend.lbann.__spec__.name == "descend.lbann"
