"""study.json: which changes are amendments, which make another study, and what is damage."""

import json

import pytest

from descend.errors import ConfigurationError, DirectoryLost, StorageError
from descend.runtime.directory_lock import HeldFolder
from descend.study.design import Arm, Study, log
from descend.study.running import study_file
from descend.study.running.study_file import StudyFile


def study(**fields):
    given = {"arms": {"a": Arm("SGD", {"lr": log(1e-3, 1.0)})}, "trials": 8, "shortlist": 2, **fields}
    return Study(workload="t.py:t", batch_sizes=(32,), steps=(100,), **given)


def write(directory, hashes=(("data", "1"),), **fields):
    StudyFile(directory).write(study(**fields), dict(hashes), HeldFolder(directory))


def test_what_was_written_is_read(tmp_path):
    write(tmp_path)
    assert StudyFile(tmp_path).study() == study()
    assert StudyFile(tmp_path).read()["hashes"] == {"data": "1"}


def test_a_description_that_was_there_is_missed_and_one_that_never_was_is_not(tmp_path):
    file = StudyFile(tmp_path)
    file.require()
    with pytest.raises(ConfigurationError, match="holds no study"):
        file.read()
    file.write(study(), {}, HeldFolder(tmp_path))
    file.require()
    file.file.unlink()
    for act in (file.require, file.read):
        with pytest.raises(DirectoryLost, match=r"study\.json is gone, which describes the study that is running"):
            act()


@pytest.mark.parametrize("text", ["{", "[]", '{"study": {}}', "\xff"])
def test_a_damaged_description_is_an_error(tmp_path, text):
    (tmp_path / "study.json").write_text(text, encoding="latin-1")
    for again in (lambda: StudyFile(tmp_path).read(), lambda: write(tmp_path)):
        with pytest.raises(StorageError, match=r"study\.json is damaged"):
            again()


def test_what_a_trial_needs_may_change(tmp_path):
    write(tmp_path)
    write(tmp_path, needs={"cores": 2}, checkpoint_every=50)
    assert StudyFile(tmp_path).read()["amendments"] == [{"needs": [None, {"cores": 2}], "checkpoint_every": [None, 50]}]
    assert StudyFile(tmp_path).study().needs.cores == 2


def test_extending_is_an_amendment_and_another_study_is_refused(tmp_path):
    write(tmp_path)
    write(tmp_path, trials=16)
    assert StudyFile(tmp_path).read()["amendments"] == [{"trials": [8, 16]}]
    with pytest.raises(ConfigurationError, match=r"whose seed is 0, and now it is 3"):
        write(tmp_path, trials=16, seed=3)
    with pytest.raises(ConfigurationError, match="whose trials is 16, and now it is 8"):
        write(tmp_path)
    with pytest.raises(ConfigurationError, match=r"hashes\.data"):
        write(tmp_path, {"data": "2"}.items(), trials=16)
    write(tmp_path, trials=16, arms={"a": study().arms["a"], "b": Arm("SGD", {}, {"lr": 0.1})})
    with pytest.raises(ConfigurationError, match=r"arms\.a"):
        write(tmp_path, trials=16, arms={"a": Arm("SGD", {}, {"lr": 0.1})})


def test_other_versions_and_other_code_are_amendments(tmp_path, monkeypatch):
    write(tmp_path, {"code": "1", "data": "1"}.items())
    monkeypatch.setattr(study_file, "__version__", "99")
    changed = {"code": "2", "data": "1", "code.helper": "3"}.items()
    write(tmp_path, changed)
    (amendment,) = StudyFile(tmp_path).read()["amendments"]
    assert amendment["hashes.code"] == ["1", "2"]
    assert amendment["hashes.code.helper"] == [None, "3"]
    assert amendment["made_with.descend"][1] == "99"
    write(tmp_path, changed)
    assert len(StudyFile(tmp_path).read()["amendments"]) == 1


@pytest.mark.parametrize("text", ['"study"', '[{"trials": 3}]', "[3]", '[{"trials": [1, 2, 3]}]'])
def test_amendments_that_are_none_are_damage(tmp_path, text):
    write(tmp_path)
    plain = json.loads((tmp_path / "study.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps({**plain, "amendments": json.loads(text)}))
    with pytest.raises(StorageError, match=r"study\.json is damaged"):
        StudyFile(tmp_path).read()


def test_a_study_that_this_version_does_not_know_is_reported_with_its_file(tmp_path):
    write(tmp_path)
    plain = json.loads((tmp_path / "study.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps({**plain, "study": {**plain["study"], "trails": 3}}))
    with pytest.raises(ConfigurationError, match=r"study\.json: there is no 'trails'; did you mean 'trials'"):
        StudyFile(tmp_path).study()


def test_a_directory_that_holds_no_study_is_a_mistake(tmp_path):
    with pytest.raises(ConfigurationError, match="holds no study"):
        StudyFile(tmp_path / "none").read()


@pytest.mark.parametrize("change", [{"made_with": {"arms": 1, "torch": "x"}}, {"study": {"searches": [[1]]}}])
def test_parts_of_another_kind_are_other_settings_and_no_crash(tmp_path, change):
    write(tmp_path)
    plain = json.loads((tmp_path / "study.json").read_text())
    for part, values in change.items():
        plain[part] |= values
    (tmp_path / "study.json").write_text(json.dumps(plain))
    if "study" in change:
        with pytest.raises(ConfigurationError, match=r"holds a study whose searches is \[\[1\]\]"):
            write(tmp_path)
    else:
        write(tmp_path)
        assert StudyFile(tmp_path).study() == study()


def test_what_no_file_can_hold_is_named(tmp_path):
    arms = {"a": Arm("torch.optim:SGD", {}, {"lr": 0.1, "hook": object(), "foreach": None})}
    said = r"arms\.a: fixed\['hook'\] must be a number, a text.*got <object.*: leave directory out"
    with pytest.raises(ConfigurationError, match=said) as error:
        write(tmp_path, arms=arms)
    assert len(error.value.problems) == 1
    assert not (tmp_path / "study.json").exists()


@pytest.mark.parametrize("name", ["__main__:<lambda>", "nb:f.<locals>.g", "functools:partial", "", "\0", "\ud800"])
def test_the_workload_that_was_recorded_need_not_be_one_that_can_be_opened(tmp_path, name):
    write(tmp_path)
    text = json.loads((tmp_path / "study.json").read_text())
    text["study"]["workload"] = name
    (tmp_path / "study.json").write_text(json.dumps(text))
    assert StudyFile(tmp_path).study().workload == name
