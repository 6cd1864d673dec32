"""Hashes of code: whatever of one's own a workload is made of changes them, and nothing else does."""

import functools
from pathlib import Path

import pytest
import torch

from descend.study.code import code_hashes
from descend.study.task import open_task

FILES = {
    "task.py": "import torch, helper\nfrom folder import inner\nfrom folder.deep import thing\n\ndef task(): ...\n",
    "helper.py": "def late():\n    import later\n",
    "later.py": "import task, descend, this_is_nowhere\n",
    "folder/__init__.py": "",
    "folder/inner.py": "from . import sibling\nfrom .deep import thing\n",
    "folder/sibling.py": "from .. import nothing\n",
    "folder/deep.py": "thing = 1\n",
    "unused.py": "",
    "net.prototext": "model {}",
}
NAMES = {"code", "code.helper", "code.later", "code.folder", "code.folder.inner", "code.folder.deep", "code.sibling"}


@pytest.fixture
def place(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_every_file_that_is_imported_from_beside_counts(place):
    before = code_hashes(f"{place / 'task.py'}:task")
    assert set(before) == NAMES
    for name in FILES:
        (place / name).write_text(FILES[name] + "# more\n")
        after = code_hashes(f"{place / 'task.py'}:task")
        changed = {key for key in before if before[key] != after[key]}
        assert len(changed) == (name not in ("unused.py", "net.prototext")), name
        (place / name).write_text(FILES[name])


def test_a_module_by_its_name_is_found_as_python_finds_it(place, monkeypatch):
    monkeypatch.syspath_prepend(place)
    by_name, by_file = code_hashes("helper:late"), code_hashes(f"{place / 'helper.py'}:late")
    assert by_name == by_file
    assert {"code", "code.later"} <= set(by_name)
    assert set(code_hashes("folder.inner:thing")) == {"code", "code.sibling", "code.deep"}
    assert code_hashes("this_is_nowhere.at_all:task") == {}


def test_texts_and_objects(place):
    assert set(code_hashes(str(place / "net.prototext"))) == {"code"}
    assert code_hashes("zoo:lenet") == {}
    here = code_hashes(test_texts_and_objects)["code"]
    assert code_hashes(functools.partial(functools.partial(test_texts_and_objects), 1))["code"] == here
    assert code_hashes(Own())["code"] == here
    assert set(code_hashes(len)) == set()
    assert set(code_hashes(torch.nn.Linear(1, 1))) == {"code"}  # and nothing of what is installed


class Own(torch.nn.Module):
    pass


def test_a_workload_imports_what_lies_beside_it(tmp_path, monkeypatch):
    (tmp_path / "beside_the_workload.py").write_text("WIDTH = 3\n")
    (tmp_path / "work.py").write_text(
        "import torch, beside_the_workload, descend.study\n"
        "def task():\n"
        "    x = torch.zeros(10, beside_the_workload.WIDTH)\n"
        "    return descend.study.Task(lambda: torch.nn.Linear(3, 3), torch.nn.MSELoss(), (x, x), metrics={})\n"
    )
    monkeypatch.chdir(Path(__file__).parent)
    assert open_task(f"{tmp_path / 'work.py'}:task").train[0].shape == (8, 3)
