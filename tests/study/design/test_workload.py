"""A workload's text: its form, and what it names."""

from pathlib import Path

import pytest

from descend.errors import ConfigurationError
from descend.study.design import Study
from descend.study.design.workload import RecordedWorkload, check_form, missing


@pytest.mark.parametrize(
    "text", ["task.py:task", "a/b.py:f", "pkg.mod:f", "../my tasks.py:f", "n.prototext", "zoo:MLP"]
)
def test_a_form_that_can_be_opened(text):
    assert check_form(text) == []


@pytest.mark.parametrize("text", ["tt", "a:", ":b", "task.py:", "zoo:", "my mod:f", "task.py:a b", ".py:f", ""])
def test_a_form_that_cannot(text):
    assert "must be of the form" in check_form(text)[0]


def test_what_is_not_there_is_reported_without_running_anything(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.py").write_text("raise SystemExit\nimport os as system\nmade: int = 3\ndef task(): ...\n")
    for name in ("task", "made", "system"):
        assert missing(f"task.py:{name}") is None
    assert missing("task.py:tsk") == "task.py has no 'tsk'; did you mean 'task'?"
    assert missing("none.py:task") == f"there is no file none.py, seen from {Path.cwd()}"
    assert missing("none.prototext") == f"there is no file none.prototext, seen from {Path.cwd()}"
    assert missing("no_such_package.part:f") == "there is no module 'no_such_package'"
    assert missing("json:loads") is None
    (tmp_path / "broken.py").write_text("def (")
    assert "broken.py is not Python" in missing("broken.py:f")


def test_a_name_that_was_recorded_is_a_workload_to_read_and_none_to_write():
    given = {"batch_sizes": 8, "steps": 3, "arms": {"a": "SGD"}}
    name = "__main__:<lambda>"
    assert Study(workload=RecordedWorkload(name), **given).plain()["workload"] == name
    with pytest.raises(ConfigurationError, match="must be of the form"):
        Study(workload=name, **given)


@pytest.mark.parametrize("value", [None, 3, [], {}, b"a.py:f", {1: 2}], ids=repr)
def test_a_workload_is_text_or_a_task_or_a_function(value):
    with pytest.raises(ConfigurationError, match="workload must be a text of the form"):
        Study(workload=value, batch_sizes=8, steps=3, arms={"a": "SGD"})
