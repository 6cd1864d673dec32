"""Arms: their short forms, their settings, and what is wrong with them."""

import datetime
import functools
import math

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
