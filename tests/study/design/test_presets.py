"""Designs by name."""

import pytest

from descend.errors import ConfigurationError
from descend.study.design import Study, Target, lint, make_study, preset, read_study
from descend.study.design.toml import to_toml


@pytest.mark.parametrize("name", ["table2", "table4", "tunability", "aa"])
def test_presets_are_valid_studies_and_files(name, tmp_path):
    study = preset(name, "task.py:task", batch_size=1024, steps=100, target=Target(value=0.9))
    assert isinstance(study, Study)
    assert make_study(study.plain()) == study
    (tmp_path / "study.toml").write_text(to_toml(study))
    assert read_study(tmp_path / "study.toml") == study


def test_table2_gives_both_arms_the_same_freedom():
    study = preset("table2", "task.py:task", batch_size=1024, steps=100)
    nesterov, lars = study.arms.values()
    assert nesterov.space.keys() == lars.space.keys()
    assert not [remark for remark in lint(study) if remark.kind in ("budget", "freedom")]


def test_table4_has_the_papers_rows():
    study = preset("table4", "task.py:task", batch_size=1024, steps=150)
    pairs = {(one.optimizer, one.fixed.get("roles.vectors.optimizer")) for one in study.arms.values()}
    assert pairs == {("SGD", None), ("LARS", "SGD"), ("LARS", None), ("AdamW", None), ("LAMB", None), ("LAMB", "AdamW")}
    assert len(study.arms) == 8


def test_scaling_counts_steps():
    study = preset("scaling", "t.py:t", batch_sizes=[32, 64], steps={32: 100, 64: 50}, target=0.4)
    assert (study.select, study.lower, study.budgets(64)) == ("steps", True, (50,))


def test_fields_of_the_user_come_first():
    assert preset("table4", "t.py:t", batch_size=8, steps=1, trials=5, shortlist=2).trials == 5


def test_a_misspelt_name_is_answered():
    with pytest.raises(ConfigurationError, match="did you mean 'scaling'"):
        preset("scalling", "t.py:t")
