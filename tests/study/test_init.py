"""The public names of the room, fetched when they are first used."""

import subprocess
import sys

import pytest

import descend
from descend import study


def test_every_public_name_is_there_and_is_that_of_its_module():
    for name in study.__all__:
        found = getattr(study, name)
        assert getattr(found, "__name__", name).rpartition(".")[2] == (name if name != "Task" else "StudyTask")
    assert set(study._NAMES) | set(study._ROOMS) == set(study.__all__)
    assert descend.compare is study.compare


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'studdy'"):
        study.studdy  # noqa: B018


@pytest.mark.parametrize("code", ["descend.study.log(0.1, 1)", "descend.study.analysis.median([1.0])"])
def test_describing_and_counting_need_no_torch(code):
    script = f"import sys, descend.study; {code}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
