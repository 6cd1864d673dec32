"""Study files: what is read, and every mistake at once."""

import contextlib
import datetime
import json
import math
import tomllib

import numpy as np
import pytest

from descend.errors import ConfigurationError
from descend.study.design import (
    Arm,
    Dimension,
    Study,
    Target,
    arm,
    choice,
    integer,
    linear,
    lint,
    log,
    make_study,
    one_minus_log,
    preset,
    read_study,
)
from descend.study.design.toml import to_toml

FILE = """
name = "nesterov-against-lars"
workload = "task.py:task"
batch_sizes = 1024
steps = [100, 400]
trials = 8
confirmation_seeds = 20

[target]
value = 0.855

[arms.nesterov]
optimizer = "SGD"
fixed = { nesterov = true, roles.vectors.weight_decay = 0.0 }
schedule = { kind = "polynomial", warmup_fraction = 0.28 }
[arms.nesterov.space]
lr = { log = [0.01, 10] }
momentum = { one_minus_log = [5e-3, 0.3] }
schedule.warmup_power = { choice = [1, 2] }

[arms.lars]
optimizer = "LARS"
fixed = { lr = 29.0 }
"""


def written(tmp_path, text):
    file = tmp_path / "study.toml"
    file.write_text(text)
    return file


def test_a_file_is_read(tmp_path):
    study = read_study(written(tmp_path, FILE))
    assert study.batch_sizes == (1024,)
    assert study.budgets(1024) == (100, 400)
    assert study.target.value == 0.855
    nesterov = study.arms["nesterov"]
    assert nesterov.space["lr"] == log(0.01, 10)
    assert nesterov.configuration({"lr": 1.0}) == {
        "optimizer": "SGD",
        "schedule": "polynomial",
        "nesterov": True,
        "roles.vectors.weight_decay": 0.0,
        "schedule.warmup_fraction": 0.28,
        "lr": 1.0,
    }
    assert not study.lower
    assert study.lower_is_better is None


def test_the_plain_form_is_the_same_study(tmp_path):
    study = read_study(written(tmp_path, FILE))
    again = make_study(study.plain())
    assert again == study
    assert again.plain() == study.plain()
    assert make_study({**study.plain(), "seed": 3}).plain() != study.plain()


def test_infinite_settings_are_written_as_toml_has_them():
    study = Study(
        workload="t.py:t",
        workload_options={"longest": math.inf, "bounds": [-math.inf, 1.0]},
        batch_sizes=(8,),
        steps=(2,),
        trials=4,
        arms={"a": Arm("SGD", {"lr": log(0.1, 1)}, {"clip_value": math.inf})},
    )
    assert "clip_value = inf" in to_toml(study)
    assert make_study(tomllib.loads(to_toml(study))) == study
    assert make_study(json.loads(json.dumps(study.plain()))) == study  # as the directory of a study holds it


STUDY = {"workload": "t.py:t", "batch_sizes": 8, "steps": 2, "arms": {"a": Arm("SGD", {"lr": log(0.1, 1)})}}


@pytest.mark.parametrize(
    "value", [datetime.date(1979, 5, 27), [datetime.time(7)], {"at": datetime.datetime(1979, 5, 27)}, math.nan]
)
def test_options_of_a_workload_that_would_come_back_as_something_else_are_refused(value):
    """A worker reads them from the records of a study: a date would be a text there, and NaN is not even itself."""
    with pytest.raises(ConfigurationError, match=r"workload_options: 'x' is .*, which no record of a study can hold"):
        make_study({**STUDY, "workload_options": {"x": value}})


def test_a_setting_that_is_none_is_not_written_as_a_word_that_toml_lacks():
    study = make_study({**STUDY, "workload_options": {"x": None}})
    with pytest.raises(ConfigurationError, match="None, which no TOML file can hold"):
        to_toml(study)


def test_every_mistake_is_reported_at_once(tmp_path):
    text = FILE.replace("trials = 8", "trails = 8\nseed = -1").replace("momentum =", "momentun =")
    text = text.replace('optimizer = "LARS"', 'optimizer = "LARRS"').replace("warmup_fraction", "warmup_frction")
    with pytest.raises(ConfigurationError) as wrong:
        read_study(written(tmp_path, text))
    said = "\n".join(wrong.value.problems)
    for part in (
        "did you mean 'trials'",
        "seed is -1",
        "did you mean 'momentum'",
        "did you mean 'LARS'",
        "did you mean 'warmup_fraction'",
    ):
        assert part in said
    assert all(problem.startswith(str(tmp_path)) for problem in wrong.value.problems)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("steps = [100, 400]", "steps = { 512 = 3 }"), "steps has the batch sizes"),
        (("trials = 8", 'sampler = "sobl"'), "did you mean 'sobol'"),
        (("[target]\nvalue = 0.855", 'select = "steps"'), r"give one in \[target\]"),
        (("trials = 8", "trials = 2"), "shortlist is 3"),
        (("lr = 29.0", "momentum = 0.9"), "'lr' is neither fixed nor searched"),
        (("roles.vectors", "roles.vectrs"), "did you mean 'vectors'"),
        (("value = 0.855", "valu = 0.855"), "did you mean 'value'"),
        (('name = "nest', 'name "nest'), "at line 2"),
    ],
)
def test_mistakes(tmp_path, change, said):
    with pytest.raises(ConfigurationError, match=said):
        read_study(written(tmp_path, FILE.replace(*change)))


def test_a_missing_file_is_a_mistake(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_study(tmp_path / "none.toml")


def test_published_results_are_kept_as_they_are_written(tmp_path):
    table = {
        "workload": "t.py:t",
        "batch_sizes": 8,
        "steps": 5,
        "arms": {"a": "SGD"},
        "reference": {"a": 75.97, "paper": "a paper, 50 seeds"},
    }
    study = make_study(table)
    assert study.plain()["reference"] == table["reference"]
    (tmp_path / "study.toml").write_text(to_toml(study))
    assert read_study(tmp_path / "study.toml").reference == table["reference"]


def test_mistakes_of_all_kinds_are_reported_in_one_pass(tmp_path):
    """Of fields, of several fields together, and of arms whose ranges are wrong too."""
    text = """
workload = "tt"
batch_sizes = [64, 64]
steps = [100, 0]
trials = 2
sampler = "sobl"
select = "steps"
[arms.a]
optimizer = "SDG"
schedule = { kind = "cosine", warmup_fraction = 1.5 }
space = { lr = { lg = [0.1, 1] } }
[arms.b]
optimizer = "SGD"
fixed = { lr = "fast", shedule.warmup_power = 2, weight_decay = -1.0 }
[arms.c]
optimizer = 3
[arms.d]
optimizer = "SGD"
fixed = 0.1
[arms.e]
optimizer = "torch.optim:SGD"
trials = "many"
space = { lr = { linear = [-0.1, 0.5] } }
"""
    with pytest.raises(ConfigurationError) as error:
        read_study(written(tmp_path, text))
    said = [
        "workload 'tt' must be of the form file.py:function",
        "batch_sizes has 64 more than once",
        "steps is [100, 0]; expected numbers of at least 1",
        "there is no sampler 'sobl'; did you mean 'sobol'?",
        "select = 'steps' counts steps to a target",
        "shortlist is 3 and a search has 2 trials",
        "arms.a: there is no optimizer 'SDG'; did you mean 'SGD'?",
        "arms.a: space['lr'] must be a range such as descend.study.log(1e-3, 1) or {'log': [1e-3, 1]}, got {'lg': ",
        "arms.a: schedule 'cosine': warmup_fraction is 1.5; expected a part from 0 to 1",
        "arms.b: 'lr' is 'fast'; expected a number of at least 0",
        "arms.b: 'weight_decay' is -1.0; expected a number of at least 0",
        "arms.b: 'shedule.warmup_power' begins with none of schedule, roles, workload, phases; did you",
        "arms.c: optimizer must be a rule's name",
        "arms.d: fixed must be a table, got 0.1",
        "arms.e: trials must be an integer >= 1, got 'many'",
        "arms.e: 'lr' is -0.1; expected a number of at least 0",
    ]
    problems = error.value.problems
    assert [sentence for sentence in said if not any(sentence in one for one in problems)] == []
    assert len(problems) == len(said)


def test_a_study_made_in_python_is_refused_in_our_words():
    with pytest.raises(ConfigurationError) as error:
        Study(workload="t.py:t", batch_sizes=(0,), steps=(5,), arms={"a": arm("SGD")}, trails=3)
    assert [line.partition(";")[0] for line in error.value.problems] == [
        "batch_sizes is (0,)",
        "there is no 'trails'",
    ]


@pytest.mark.parametrize(
    ("fields", "reported"),
    [
        ({"value": float("nan")}, r"target\.value is nan"),
        ({"value": 1, "valu": 1}, r"there is no 'target\.valu'; did you mean 'value'"),
        ({}, r"'target\.value' is missing"),
    ],
)
def test_a_target_says_what_is_wrong_with_it(fields, reported):
    with pytest.raises(ConfigurationError, match=reported):
        Target(**fields)


@pytest.mark.parametrize("fields", [{"searches": 2**31}, {"trials": 10**12}, {"confirmation_seeds": 10**9}])
def test_a_study_of_more_trials_than_can_be_planned_is_refused(fields):
    with pytest.raises(ConfigurationError, match=r"trials with those that are repeated; at most 200,000"):
        Study(workload="t.py:t", batch_sizes=(8,), steps=(2,), arms={"a": Arm("SGD", {"lr": log(0.1, 1)})}, **fields)


def test_rulesets_say_who_may_tune():
    arms = {"a": Arm("SGD", {"lr": log(0.1, 1)}, trials=3), "b": Arm("SGD", {}, {"lr": 0.1})}
    fields = {"workload": "m:f", "batch_sizes": 8, "steps": 10, "arms": arms, "shortlist": 1}
    with pytest.raises(ConfigurationError, match=r"same trials, and they have \[3, 16\]"):
        Study(**fields, ruleset="external")
    with pytest.raises(ConfigurationError) as refused:
        Study(**fields, ruleset="self-tuning", trials=1)
    assert "arms.a: ruleset = 'self-tuning' searches over nothing, and this arm over lr" in refused.value.problems
    alike = {"arms": {"b": arms["b"]}, "trials": 1}
    assert Study(**{**fields, **alike}, ruleset="self-tuning").plain()["ruleset"] == "self-tuning"


def test_what_is_known_at_the_end_has_no_steps_to_it():
    fields = {"workload": "m:f", "batch_sizes": 8, "steps": 10, "arms": {"b": Arm("SGD", {}, {"lr": 0.1})}}
    steps = {"select": "steps", "target": {"value": 0.5}}
    for other in ({"judge": "test"}, {"split": "finetuned"}):
        with pytest.raises(ConfigurationError, match="select = 'steps' counts steps"):
            Study(**fields, **steps, **other)


FIELDS = (
    *("name", "workload_options", "batch_sizes", "steps", "arms", "trials", "searches", "seed", "sampler", "metric"),
    *("common_random_numbers", "lower_is_better", "select", "evaluations", "shortlist", "shortlist_seeds", "target"),
    *("confirmation_seeds", "margin", "reference", "needs", "checkpoint_every", "split", "judge", "ruleset", "rounds"),
)


class Odd:
    """Has neither a repr nor an answer to ==."""

    __hash__ = None

    def __repr__(self):
        raise RuntimeError("no repr")

    def __eq__(self, other):
        raise RuntimeError("no answer")


DEEP: list = [1]
for _ in range(300):
    DEEP = [DEEP]
ODD = [
    *(None, True, -1, 3, 2.5, float("nan"), 1e308, 10**400, "", "x", "\ud800", b"x", [], [1], [[1]], {}, {1: 2}),
    *({"a": None}, {None: 1}, {1, 2}, Odd(), object, lambda: 1, range(3), iter([1]), DEEP, {"a": DEEP}, 1j),
    *(np.float32(3), np.array([1, 2]), np.zeros((2, 2)), log(1, 2), arm("SGD"), {"lr": 10**400}, {"a": Odd()}),
]


@pytest.mark.parametrize("name", FIELDS)
def test_fields_of_any_type_are_taken_or_refused_in_our_words(name):
    given = {"workload": "t.py:t", "batch_sizes": [8], "steps": [3], "arms": {"a": "SGD"}, "trials": 3}
    for value in ODD:
        with contextlib.suppress(ConfigurationError):
            made = Study(**{**given, name: value})
            lint(made)
            json.dumps(made.plain())
        with contextlib.suppress(ConfigurationError):
            Target(**{"value": 0.5, name: value})


@pytest.mark.parametrize("make", [log, linear, one_minus_log, integer, choice, Dimension, preset, arm, read_study])
def test_constructors_take_any_value_or_refuse_it_in_our_words(make):
    usual = {Dimension: ("log", (1, 2)), preset: ("aa", "t.py:t"), arm: ("SGD",), read_study: ("none.toml",)}
    given, named = usual.get(make, (1, 2)), {"batch_size": 8, "steps": 3} if make is preset else {}
    for value in ODD:
        for place in range(len(given)):
            with contextlib.suppress(ConfigurationError):
                make(*given[:place], value, *given[place + 1 :], **named)
