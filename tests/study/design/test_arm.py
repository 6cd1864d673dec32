"""Arms: their short forms, their settings, and what is wrong with them."""

import contextlib
import datetime
import functools
import math
from types import MappingProxyType

import numpy as np
import pytest
import torch

from descend.errors import ConfigurationError
from descend.study.design import Arm, arm, log
from descend.study.design.arm import flat


def test_short_forms_of_an_arm():
    assert arm("nesterov") == Arm("SGD", {"lr": log(0.001, 10.0)}, {"momentum": 0.9, "nesterov": True})
    assert arm("lamb").optimizer == "LAMB"
    assert arm("torch.optim:AdamW").title == "torch.optim:AdamW"
    assert arm(arm("SGD")) == arm("SGD")
    with pytest.raises(ConfigurationError, match="did you mean 'nesterov'"):
        arm("nestrov")
    with pytest.raises(ConfigurationError, match="did you mean 'space'"):
        arm({"optimizer": "SGD", "spce": {}})
    with pytest.raises(ConfigurationError, match="and not an object of int"):
        arm(3)


def test_a_class_is_an_arm():
    class Mine:
        pass

    assert arm(Mine).title.endswith(":test_a_class_is_an_arm.<locals>.Mine")
    assert arm(torch.optim.Adam).title == "torch.optim.adam:Adam"


def test_tables_within_tables_are_dotted_names():
    space = {"lr": {"log": [0.1, 1]}, "schedule": {"warmup_power": {"choice": [1, 2]}}}
    assert flat(space) == {"lr": {"log": [0.1, 1]}, "schedule.warmup_power": {"choice": [1, 2]}}
    made = arm({"optimizer": "SGD", "space": space, "fixed": {"roles": {"bias": {"lr_mult": 0.5}}}})
    assert made.fixed == {"roles.bias.lr_mult": 0.5}
    assert arm(made.plain()) == made


def test_a_configuration_has_a_point_over_fixed_settings():
    made = Arm("SGD", {"lr": log(0.1, 1)}, {"momentum": 0.9}, {"kind": "cosine", "warmup_fraction": 0.1})
    assert made.configuration({"lr": 0.3}) == {
        "optimizer": "SGD",
        "schedule": "cosine",
        "momentum": 0.9,
        "schedule.warmup_fraction": 0.1,
        "lr": 0.3,
    }


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (Arm("SDG", {"lr": log(0.1, 1)}), "there is no optimizer 'SDG'; did you mean 'SGD'"),
        (Arm("SGD", {"lr": log(0.1, 1)}, {"momentun": 0.9}), "SGD has no option 'momentun'; did you mean 'momentum'"),
        (Arm("SGD", {"lr": log(0.1, 1)}, {"lr": 1.0}), "'lr' is both fixed and searched over"),
        (Arm("SGD"), "'lr' is neither fixed nor searched over"),
        (Arm("SGD", {}, {"lr": "fast"}), "'lr' is 'fast'; expected a number of at least 0"),
        (Arm("SGD", {}, {"lr": 1.0, "weight_decay": -1.0}), "'weight_decay' is -1.0; expected a number of at least 0"),
        (
            Arm("SGD", {}, {"lr": 1.0, "shedule.x": 1}),
            "begins with none of schedule, roles, workload, phases; did you mean",
        ),
        (Arm("SGD", {}, {"lr": 1.0, "roles.vectrs.lr_mult": 1}), "did you mean 'vectors'"),
        (Arm("SGD", {}, {"lr": 1.0, "momentum": math.nan}), "'momentum' is nan; expected a setting"),
        (Arm("Adam", {}, {"lr": 1.0, "eps": [0.9, datetime.date(2020, 1, 1)]}), "expected a setting"),
        (Arm("SGD", {}, {"lr": 1.0}, "constant", 0), "trials must be an integer >= 1, got 0"),
    ],
)
def test_what_is_wrong_with_an_arm(made, said):
    (problem,) = made.problems()
    assert said in problem


def test_options_of_other_libraries_are_not_known_here():
    assert Arm("torch.optim:SGD", {}, {"lr": 1.0, "anything": 1}).problems() == []


def test_a_partial_sets_the_middle_of_the_learning_rates_and_what_is_fixed():
    one = arm(functools.partial(torch.optim.SGD, lr=0.5, momentum=0.9))
    assert one == Arm(torch.optim.SGD, {"lr": log(0.005, 50.0)}, {"momentum": 0.9})
    assert arm(functools.partial(torch.optim.Adam)).space == arm(torch.optim.Adam).space


@pytest.mark.parametrize(
    "space",
    [
        {"lr": {"log": [1, 3]}},
        {"lr": {"log": (1, 3)}},
        {"lr": log(1, 3)},
        {"lr": {"log": [np.float32(1), torch.tensor(3)]}},
        MappingProxyType({"lr": {"log": [1, 3]}}),
    ],
    ids=repr,
)
def test_a_space_is_written_as_in_a_file_or_in_python(space):
    assert Arm("SGD", space) == Arm("SGD", {"lr": log(1, 3)})
    assert arm({"optimizer": "SGD", "space": space}) == Arm("SGD", {"lr": log(1, 3)})


def test_tables_within_tables_are_dotted_names_in_python_too():
    space = {"lr": log(1, 2), "schedule": {"warmup_power": {"choice": [1, 2]}}}
    made = Arm("SGD", space, {"roles": {"bias": {"x": 1}}})
    assert list(made.space) == ["lr", "schedule.warmup_power"]
    assert made.fixed == {"roles.bias.x": 1}


NO_DIMENSIONS = [
    *(3, None, "log", [1, 3], {}, {"log": 3}, {"log": None}, {"log": [3, 1]}, {"log": ["a", "b"]}, {"lgo": [1, 3]}),
    *({"log": [1, 10**400]}, {"log": [5e-324, 1e308]}, {"linear": [-1e308, 1e308]}, {"log": [1, 3], "linear": [1, 3]}),
    *({"integer": [1, math.inf]}, {"choice": []}, Ellipsis),
]


@pytest.mark.parametrize("value", NO_DIMENSIONS, ids=lambda value: f"{value!r:.30}")
def test_a_dimension_that_is_none_is_named_with_its_value_and_the_remedy(value):
    with pytest.raises(ConfigurationError) as error:
        Arm("SGD", {"lr": value})
    (problem,) = error.value.problems
    assert problem.startswith("space['lr'] must be a range such as descend.study.log(1e-3, 1) or {'log': [1e-3, 1]}")
    assert ", got " in problem


class Odd:
    """Has no repr."""

    def __repr__(self):
        raise RuntimeError("no repr")


ODD = [
    *(None, True, 3, math.nan, 10**400, "", b"x", [], [1], (), {1: 2}, {None: 1}, {1, 2}, Odd(), 1j, "\ud800"),
    *(np.zeros((2, 2)), torch.zeros(3), functools.partial(torch.optim.SGD), datetime.date(2020, 1, 1), iter([1])),
]


@pytest.mark.parametrize("name", ["optimizer", "space", "fixed", "schedule", "trials"])
@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
def test_arguments_of_any_type_are_taken_or_refused_in_our_words(name, value):
    given = {"optimizer": "SGD", "space": {"lr": log(0.1, 1)}, name: value}
    for make in (lambda: Arm(**given), lambda: arm(given), lambda: arm(value)):
        with contextlib.suppress(ConfigurationError):
            made = make()
            made.problems()
            made.plain()


@pytest.mark.parametrize("name", ["lr", "momentum", "schedule.warmup_fraction", "phases.x.lr", "roles.bias.lr_mult"])
@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
def test_settings_of_any_type_are_taken_or_refused_in_our_words(name, value):
    with contextlib.suppress(ConfigurationError):
        Arm("SGD", {}, {"lr": 0.1, name: value}, "polynomial").problems()


def test_everything_that_is_wrong_with_an_arm_is_said_at_once():
    with pytest.raises(ConfigurationError) as error:
        Arm(3, [1], "x", 4)
    assert [problem.partition(" must be ")[0] for problem in error.value.problems] == [
        "optimizer",
        "space",
        "schedule",
        "fixed",
    ]
