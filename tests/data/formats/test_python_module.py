"""LBANN's reader "python": samples are what functions of a module return."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from descend.arguments.leniency import lenient
from descend.data import DataReader, Reader, open_readers
from descend.data.description import PythonDataReader
from descend.data.formats.python_module import SampleTaker, imported, shape_of
from descend.errors import ConfigurationError, DataError

MODULE = """
import numpy as np
data = np.arange(24.0).reshape(4, 6) / SCALE
def get_sample(i): return data[i]
def short_sample(i): return data[i][:4]
def bad_sample(i): raise KeyError("lost")
def num_samples(): return len(data)
def sample_dims(): return (2, 3)
"""


@pytest.fixture
def module(tmp_path, monkeypatch, request):
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    monkeypatch.setattr("sys.modules", dict(__import__("sys").modules))
    (tmp_path / "helper_of_a_test.py").write_text(MODULE.replace("SCALE", "1"))
    return tmp_path


def opened(folder, **settings):
    given = {
        "module": "helper_of_a_test",
        "module_dir": str(folder),
        "sample_function": "get_sample",
        "num_samples_function": "num_samples",
        "sample_dims_function": "sample_dims",
        **settings,
    }
    reader = Reader(name="python", role="train", python=PythonDataReader(**given), fraction_of_data_to_use=1.0)
    return open_readers(DataReader([reader]))["train"]


def test_samples_are_what_the_function_returns_in_the_declared_shape(module):
    with lenient():
        reader = opened(module)
    assert len(reader) == 4
    assert reader.fields["samples"].shape == (2, 3)
    batch = reader.read(np.array([3, 0]))
    assert batch["samples"].dtype == np.float32
    assert batch["samples"].tolist() == [[[18, 19, 20], [21, 22, 23]], [[0, 1, 2], [3, 4, 5]]]
    assert batch["labels"].tolist() == [[0], [0]]
    assert reader.read(np.zeros(0, np.int64))["samples"].shape == (0, 2, 3)


def test_the_rest_of_a_short_sample_is_0_with_one_warning(module):
    with lenient():
        reader = opened(module, sample_function="short_sample")
    with pytest.warns(UserWarning, match="a sample has 4 numbers, fewer than the 6 that are declared") as caught:
        assert reader.read(np.array([1, 1]))["samples"][0].tolist() == [[6, 7, 8], [9, 0, 0]]
    assert len({str(one.message) for one in caught}) == 1


def test_no_other_door_runs_the_module(module, tmp_path):
    (tmp_path / "helper_of_a_test.py").write_text("raise SystemExit('this was run')")
    with pytest.raises(
        ConfigurationError, match=r"the reader 'python' runs code of its own.*start it by descend-lbann"
    ):
        opened(module)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"module": "no_such_module"}, "module 'no_such_module' cannot be imported .*ModuleNotFoundError"),
        ({"sample_function": "get_samples"}, "has no function 'get_samples'"),
        ({"sample_dims_function": ""}, "python needs sample_dims_function"),
        ({"num_samples_function": "bad_sample"}, "bad_sample raises TypeError"),
        ({"sample_dims_function": "num_samples"}, None),
    ],
)
def test_what_is_wrong_with_the_description_is_said_at_the_start(module, settings, message):
    with lenient():
        if message is None:  # a number is one dimension
            assert opened(module, **settings).fields["samples"].shape == (4,)
            return
        with pytest.raises((DataError, ConfigurationError), match=message):
            opened(module, **settings)


def test_errors_of_the_users_code_name_the_sample(module):
    with lenient():
        reader = opened(module, sample_function="bad_sample")
    with pytest.raises(DataError, match="module 'helper_of_a_test', sample 2 raises KeyError: 'lost'"):
        reader.read(np.array([2]))


def test_a_sample_that_is_too_long_is_an_error(module):
    (module / "helper_of_a_test.py").write_text(MODULE.replace("SCALE", "1").replace("(2, 3)", "(5,)"))
    with lenient():
        reader = opened(module)
    with pytest.raises(DataError, match=r"sample 1 has 6 numbers; expected 5, as the dimensions \(5,\) say"):
        reader.read(np.array([1]))


def test_a_module_of_the_same_name_from_another_folder_is_another_one(module, tmp_path):
    first = imported("helper_of_a_test", str(module))
    other = tmp_path / "other"
    other.mkdir()
    (other / "helper_of_a_test.py").write_text(MODULE.replace("SCALE", "2"))
    assert imported("helper_of_a_test", str(module)) is first
    assert imported("helper_of_a_test", str(other)).get_sample(0)[1] == 0.5


@pytest.mark.parametrize("dims", [(), (0,), (2, -1), "many", None, [[1], [2, 3]]])
def test_dimensions_that_are_none_are_refused(dims):
    with pytest.raises(DataError, match="dims must be sizes of at least 1"):
        shape_of(dims, "dims")


# ---- user code for samples in processes of its own: the same samples, and errors that say where

PROCESS_MODULE = """
import os, signal
import numpy as np

def take(number):
    if number == 90:
        raise KeyError("lost")
    if number == 91:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"samples": [number, os.getpid()]}

def source():
    return take
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "takes_of_a_test", raising=False)
    (tmp_path / "takes_of_a_test.py").write_text(PROCESS_MODULE)
    yield imported("takes_of_a_test", str(tmp_path)).source
    del sys.modules["takes_of_a_test"]


def test_without_workers_samples_are_made_here(source):
    rows = SampleTaker(source, 1, "reader").take(np.array([3, 1]))
    assert [row["samples"] for row in rows] == [[3, os.getpid()], [1, os.getpid()]]
    with pytest.raises(DataError, match="reader, sample 90 raises KeyError: 'lost'"):
        SampleTaker(source, 0, "reader").take(np.array([90]))


@pytest.mark.slow
def test_processes_make_the_same_samples_and_say_where_they_fail(source):
    taker = SampleTaker(source, 2, "reader")
    assert taker.take(np.zeros(0, np.int64)) == []
    for _ in range(2):
        rows = taker.take(np.array([5, 2, 7, 7, 0]))
        assert [row["samples"][0] for row in rows] == [5, 2, 7, 7, 0]
    makers = {int(row["samples"][1]) for row in taker.take(np.arange(40))}
    assert os.getpid() not in makers
    with pytest.raises(DataError, match="reader, sample 90 raises KeyError: 'lost'"):
        taker.take(np.array([1, 90, 2]))
    with pytest.raises(DataError, match="a process that reads samples has died, near samples 4 to 91"):
        taker.take(np.array([4, 91]))


@pytest.mark.slow
def test_no_process_outlives_a_driver_that_is_killed(tmp_path):
    (tmp_path / "takes_of_a_test.py").write_text(PROCESS_MODULE)
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, numpy as np, takes_of_a_test\n"
        "from descend.data.formats.python_module import SampleTaker\n"
        "if __name__ == '__main__':\n"
        "    rows = SampleTaker(takes_of_a_test.source, 2, 'reader').take(np.arange(2))\n"
        "    print(*{int(row['samples'][1]) for row in rows}, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, check=False)
    pids = [int(word) for word in ended.stdout.split()]
    assert pids
    until = time.monotonic() + 30
    while any(_runs(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in pids)


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
