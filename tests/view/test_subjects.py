"""What is viewed: directories that hold runs and studies, and the page that compares runs."""

import json

import pytest
from system_needs import library

from descend.errors import ConfigurationError
from descend.pages.html import Live
from descend.view import subjects as module
from descend.view.subjects import home_page, subjects

LIVE = Live("1", "stamp")


def run(folder, objective=1.0, steps=(10, 20)):
    folder.mkdir(parents=True)
    facts = {"end": {"exit_code": 0}, "settings": {"batch_size": 8, "optimizer.rule": "SGD(momentum=0.9)"}}
    (folder / "run.json").write_text(json.dumps(facts))
    rows = [{"mode": "train", "epoch": 1, "step": step, "objective": objective} for step in steps]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


def test_a_folder_stands_for_the_runs_and_studies_in_it(tmp_path):
    run(tmp_path / "b")
    run(tmp_path / "a")
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "study.json").write_text("{}")
    (tmp_path / "neither").mkdir()
    found = subjects([tmp_path])
    assert [(one.name, one.is_study) for one in found] == [("a", False), ("b", False), ("study", True)]
    assert [one.name for one in subjects([tmp_path / "a", tmp_path / "a"])] == ["a"]


def test_runs_of_one_name_are_named_with_their_folders(tmp_path):
    run(tmp_path / "x" / "run")
    run(tmp_path / "y" / "run")
    assert [one.name for one in subjects([tmp_path / "x", tmp_path / "y" / "run"])] == ["x/run", "y/run"]


def test_everything_that_is_wrong_is_said_at_once(tmp_path, monkeypatch):
    with pytest.raises(ConfigurationError) as error:
        subjects([tmp_path, tmp_path / "none"])
    assert len(error.value.problems) == 2
    assert "no run and no study is in it" in error.value.problems[0]
    assert "there is no such directory" in error.value.problems[1]
    monkeypatch.setattr(module, "_MAX_SUBJECTS", 1)
    run(tmp_path / "a")
    run(tmp_path / "b")
    with pytest.raises(ConfigurationError, match="at most 1 are shown at once"):
        subjects([tmp_path])


def test_runs_are_compared_in_one_table_and_one_figure_a_quantity(tmp_path):
    library("vl_convert", "vl-convert-python")
    run(tmp_path / "fast<b>", 0.25)
    run(tmp_path / "slow", 0.75)
    text = home_page(subjects([tmp_path]), LIVE)
    assert text.count("<figure") == 1
    assert "fast&lt;b&gt;" in text
    assert "fast<b>" not in text
    assert '<a href="item/1/">slow: run, finished, 20 updates</a>' in text
    for cell in ("0.25", "0.75", "SGD", "8"):
        assert f"<td>{cell}</td>" in text


def test_a_study_that_cannot_be_read_is_a_page_with_the_reason(tmp_path):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "study.json").write_text("{")
    (one,) = subjects([tmp_path / "study"])
    assert "cannot be shown" in one.page(LIVE)
    before = one.stamp
    (tmp_path / "study" / "records").mkdir()
    (tmp_path / "study" / "records" / "a.jsonl").write_text("x")
    assert one.stamp != before
