"""Groups that change between steps."""

import pytest
import torch

import descend.optim
from descend.errors import RuleError
from descend.optim.engine import parameter_checks
from descend.optim.engine.gradient_scan import GradientScanner
from descend.optim.engine.parameter_checks import GroupTracker
from descend.optim.engine.settings import GroupSettingsReader


class Reader(GroupSettingsReader):
    forgotten = 0

    def forget_schedules(self):
        self.forgotten += 1
        super().forget_schedules()


def tracker(groups, names):
    made = GroupTracker("Adam", Reader("Adam", {}), names)
    assert made.follow(groups, GradientScanner()) is False  # nothing was remembered yet
    made.remember(groups)
    return made


def parameter():
    return torch.nn.Parameter(torch.zeros(3))


def test_the_same_parameters_in_another_list_are_the_same():
    p, q = parameter(), parameter()
    made = tracker([{"params": [p, q]}], [["p", "q"]])
    assert made.follow([{"params": [p, q]}], GradientScanner())
    assert made.settings.forgotten == 0


def test_a_replaced_parameter_keeps_the_name_of_its_place():
    p, q = parameter(), parameter()
    groups = [{"params": [p, q]}]
    made = tracker(groups, [["p", "q"]])
    groups[0]["params"][1] = parameter()
    assert not made.follow(groups, GradientScanner())
    assert made.names == [["p", "q"]]
    assert made.settings.forgotten == 1
    made.remember(groups)
    assert made.follow(groups, GradientScanner())


def test_names_in_a_group_come_first():
    p = parameter()
    groups = [{"params": [p], "param_names": ["weight"]}]
    made = tracker(groups, [["old"]])
    assert made.names == [["weight"]]


def test_a_group_that_was_taken_out_moves_the_others_up():
    p, q = parameter(), parameter()
    groups = [{"params": [p]}, {"params": [q]}]
    made = tracker(groups, [["p"], ["q"]])
    del groups[0]
    assert not made.follow(groups, GradientScanner())
    assert made.names == [["group 0, weights 0"]]
    made.remember(groups)
    assert [known.tensors for known in made.lists] == [[q]]


def test_a_parameter_in_two_groups_is_refused_and_nothing_changes():
    p, q = parameter(), parameter()
    groups = [{"params": [p]}, {"params": [q]}]
    made = tracker(groups, [["p"], ["q"]])
    groups[1]["params"][0] = p
    with pytest.raises(RuleError, match="appear twice"):
        made.follow(groups, GradientScanner())
    assert made.names == [["p"], ["q"]]


def test_parameters_without_values_are_not_remembered():
    groups = [{"params": [torch.nn.Parameter(torch.zeros(3, device="meta"))]}]
    made = GroupTracker("Adam", Reader("Adam", {}), [["p"]])
    with pytest.raises(RuleError, match="'p' is on the meta device"):
        made.remember(groups)
    assert made.lists == []


def test_many_groups_are_checked_once_and_one_that_comes_later_against_them(monkeypatch):
    looked = []
    plain = parameter_checks.check

    def counted(groups, names, title):
        looked.append(len(groups))
        plain(groups, names, title)

    monkeypatch.setattr(parameter_checks, "check", counted)
    params = [parameter() for _ in range(40)]
    optimizer = descend.optim.Adam([{"params": [p]} for p in params], lr=0.1)
    assert looked == [40]
    with pytest.raises(RuleError, match="the same weights appear twice, group 7, weights 0 and group 40, weights 0"):
        optimizer.add_param_group({"params": [params[7]]})
    assert len(optimizer.param_groups) == 40
    with pytest.raises(RuleError, match="the same weights appear twice"):
        descend.optim.Adam([{"params": [p]} for p in [*params, params[3]]], lr=0.1)
