"""Runs LBANN's driver in this process, as a program would run it: arguments in, exit code and text out."""

import contextlib
import os
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest

from descend.lbann.driver import main as driver


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def run(capsys, monkeypatch, folder: Path, *arguments: str, environment=None) -> Ended:
    """The driver with these arguments, in a folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["lbann", *arguments])
    for name, value in (environment or {}).items():
        monkeypatch.setenv(name, value)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended, _warnings_as_in_a_program():
        driver.main()
    out, err = capsys.readouterr()
    return Ended(ended.value.code, out, err)


@contextlib.contextmanager
def _warnings_as_in_a_program():
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        yield


def write(folder: Path, text: str, name: str = "experiment.prototext") -> str:
    """A file in a folder, and its name."""
    (folder / name).write_text(text)
    return name


def listing(folder: Path) -> set[str]:
    """All files below a folder, but for those in run directories."""
    found = {os.path.relpath(path, folder) for path in folder.rglob("*") if path.is_file()}
    return {name for name in found if not name.startswith("descend_run")}


TRAINER = "trainer { mini_batch_size: 4 random_seed: 1 }"
OPTIMIZER = "optimizer { sgd { learn_rate: 0.1 } }"
READER = """
data_reader {
  reader { name: "synthetic" role: "train" num_samples: 8 synth_dimensions: "5" fraction_of_data_to_use: 1 }
  reader { name: "synthetic" role: "test" num_samples: 4 synth_dimensions: "5" fraction_of_data_to_use: 1 }
}
"""
MODEL = """
model {
  name: "m" num_epochs: 2
  objective_function { layer_term { scale_factor: 1 layer: "z" } }
  metric { layer_metric { layer: "z" name: "size" } }
  layer { name: "x" input { data_field: "samples" } }
  layer { name: "y" parents: "x" fully_connected { num_neurons: 3 } }
  layer { name: "z" parents: "y" l2_norm2 {} }
  callback { print {} }
  MORE
}
"""


def experiment(more: str = "", trainer: str = TRAINER) -> str:
    """A small experiment, with more fields of its model."""
    return "\n".join([trainer, MODEL.replace("MORE", more), OPTIMIZER, READER])
