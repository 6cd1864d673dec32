"""Data sets in Python, and the file in which the driver gets one."""

import hashlib
import hmac
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import descend.lbann as lbann
from descend.data.formats.python_dataset import KEY_VARIABLE
from descend.errors import ConfigurationError
from descend.lbann.util import make_iterable, make_nd_array, str_list
from descend.lbann.util.data import (
    Dataset,
    Sample,
    SampleDims,
    construct_python_dataset_reader,
    dataset_environment,
)

SCRIPT = """
from pathlib import Path
import numpy as np
from descend.lbann.util.data import Dataset, Sample, SampleDims, construct_python_dataset_reader

class Inner:
    value = 3

class Squares(Dataset):
    def __init__(self):
        self.inner = Inner()
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return Sample(sample=np.array([index, self.inner.value]), response=np.array([index**2]))
    def get_sample_dims(self):
        return SampleDims(sample=(2,), response=(1,))

if __name__ == "__main__":
    reader = construct_python_dataset_reader(Squares(), "squares.pkl", role="validate", prefetch_factor=3)
    Path("module_dir").write_text(reader.python_dataset.module_dir)
    assert Squares.__module__ == "__main__"
"""
READ = """
import pickle, sys
from pathlib import Path
sys.path.insert(0, Path("module_dir").read_text())
found = pickle.loads(Path("squares.pkl").read_bytes())
print(len(found), found[3].sample.tolist(), found[3].response.tolist(), found.get_sample_dims())
"""


class Local(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return Sample(np.zeros(2))

    def get_sample_dims(self):
        return SampleDims((2,))


def test_samples_have_the_fields_that_they_were_given():
    sample = Sample(sample=np.ones(2), label=3)
    assert not hasattr(sample, "response")
    assert sample.label == 3
    assert repr(SampleDims(sample=[2, 3])) == "SampleDims(sample=[2, 3])"
    with pytest.raises(TypeError):
        Dataset()


def test_a_data_set_of_a_script_is_read_by_another_process(tmp_path):
    """The class is `__main__.Squares` in the script, and `script.Squares` where the file is imported."""
    folder = tmp_path / "place"
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    subprocess.run([sys.executable, str(folder / "script.py")], cwd=tmp_path, check=True)
    done = subprocess.run([sys.executable, "-c", READ], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "4 [3, 3] [9] SampleDims(sample=(2,), response=(1,))\n"
    assert (tmp_path / "module_dir").read_text() == str(folder)


def test_the_file_is_signed_with_the_key_that_the_driver_gets(tmp_path, monkeypatch):
    monkeypatch.setenv("LBANN_EXPERIMENT_DIR", str(tmp_path))
    reader = construct_python_dataset_reader(Local(), role="tournament", shuffle=False, validation_fraction=0.25)
    path = Path(reader.python_dataset.dataset_path)
    assert path.parent == tmp_path
    key = dataset_environment()[KEY_VARIABLE]
    signature = hmac.new(key.encode(), path.read_bytes(), hashlib.sha256).hexdigest()
    assert path.with_name(path.name + ".signature").read_text() == signature
    assert key not in os.environ.values()
    assert (reader.name, reader.role, reader.shuffle) == ("python_dataset", "tournament", False)
    assert (reader.validation_fraction, reader.fraction_of_data_to_use) == (0.25, 1.0)
    assert reader.python_dataset.prefetch_factor == 1
    assert len(pickle.loads(path.read_bytes())) == 1
    other = construct_python_dataset_reader(Local(), role="tournament", load_module=False)
    assert other.python_dataset.dataset_path != str(path)
    assert other.python_dataset.module_dir == ""
    readers = lbann.reader_pb2.DataReader(reader=[reader, other])
    assert len(readers.reader) == 2


def test_a_data_set_that_no_other_process_can_make_is_refused(tmp_path):
    class Inside(Local):
        pass

    with pytest.raises(ConfigurationError, match=r"Inside cannot be handed to the driver: .*define it at the top"):
        construct_python_dataset_reader(Inside(), tmp_path / "x.pkl")
    held = Local()
    held.file = (tmp_path / "open").open("w")
    with pytest.raises(ConfigurationError, match="open files in its __getitem__"):
        construct_python_dataset_reader(held, tmp_path / "x.pkl")
    held.file.close()


def test_small_things_that_scripts_use():
    assert make_iterable("ab") == ("ab",)
    assert make_iterable(3) == (3,)
    given = [1, 2]
    assert make_iterable(given) is given
    assert str_list([1, "a", 2.5]) == "1 a 2.5"
    assert make_nd_array(2, 3) == [[None, None, None], [None, None, None]]
