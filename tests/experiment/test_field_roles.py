"""Which fields a module is called with and which the loss."""

import pytest
import torch
from torch import nn

from descend.errors import ConfigurationError, DataError
from descend.experiment.field_roles import TARGET_NAMES, assign_fields, check_fields
from descend.experiment.losses import loss_of

X = torch.zeros(2, 3)


class Named(nn.Module):
    def forward(self, left, right):
        return left - right


class AnyNames(nn.Module):
    def forward(self, **given):
        return given


def roles(*names, module=None, loss="mse", targets=None, **more):
    return assign_fields(dict.fromkeys(names, X), module or nn.Linear(3, 3), loss_of(loss), targets, **more)


@pytest.mark.parametrize(
    ("names", "given", "inputs", "targets"),
    [
        (("0", "1"), {}, ("0",), ("1",)),
        (("0", "1", "2"), {}, ("0", "1"), ("2",)),
        (("0", "1", "2"), {"targets": 2}, ("0",), ("1", "2")),
        (("0",), {}, ("0",), ("0",)),
        (("0",), {"needs_targets": False}, ("0",), ()),
        (("0",), {"targets": 0, "loss": lambda o: o.mean()}, ("0",), ()),
        (("x", "answer"), {"targets": ["answer"]}, ("x",), ("answer",)),
        *((("x", name), {}, ("x",), (name,)) for name in TARGET_NAMES),
        (("x",), {"needs_targets": False}, ("x",), ()),
    ],
)
def test_inputs_and_targets(names, given, inputs, targets):
    found = roles(*names, **given)
    assert (found.inputs, found.targets) == (inputs, targets)


@pytest.mark.parametrize(
    ("names", "module", "by_name"),
    [
        (("0", "1", "2"), Named(), False),
        (("left", "right", "y"), Named(), True),
        (("x", "y"), nn.Linear(3, 3), False),  # a single input may have any name
        (("input", "y"), nn.Linear(3, 3), True),
        (("a", "b", "y"), AnyNames(), True),
    ],
)
def test_inputs_go_by_name_where_forward_has_their_names(names, module, by_name):
    assert roles(*names, module=module).by_name is by_name


def test_the_module_is_called_with_its_inputs():
    fields = {"left": X + 2, "y": X, "right": X + 1}
    found = assign_fields(fields, Named(), loss_of("mse"))
    assert found.call(Named(), found.values(fields)).eq(1).all()


def test_parts_of_nested_samples_are_put_together():
    found = roles("0/a", "0/b", "1")
    assert found.is_nested
    assert found.inputs == ("0",)
    assert found.values({"0/a": X, "0/b": X, "1": X})["0"].keys() == {"a", "b"}


@pytest.mark.parametrize(
    ("names", "given", "message"),
    [
        (("x", "answer"), {}, r"not clear from their names \(x, answer\): pass targets="),
        (("x", "y", "label"), {}, "not clear from their names"),
        (("x", "label"), {"targets": ["labels"]}, "no field 'labels'; it has x, label; did you mean 'label'"),
        (("0", "1"), {"targets": 3}, "the fields 0, 1, and 3 targets are needed"),
        (("0", "1"), {"targets": 2}, r"all fields \(0, 1\) are targets"),
        (
            ("left", "rihgt", "y"),
            {"module": Named()},
            "field 'rihgt' and Named.forward takes left, right; did you",
        ),
    ],
)
def test_ambiguous_fields_are_refused(names, given, message):
    with pytest.raises(ConfigurationError, match=message):
        roles(*names, **given)


@pytest.mark.parametrize(
    ("found", "known", "message"),
    [
        ("0", "0 1", r"samples of the data for 'validate' have the fields 0 .* 0, 1 \(missing: 1\)"),
        ("0 1 2", "0 1", "have the fields 0, 1, 2 and .* 0, 1: all samples need the same"),
        ("x y", "0 1", r"missing: 0, 1"),
        ("x", "x label", r"missing: label"),
        ("0/a 1", "0/a 0/b 1", r"missing: 0/b"),
    ],
)
def test_samples_without_the_fields_of_the_first_are_refused(found, known, message):
    with pytest.raises(DataError, match=message):
        check_fields(found.split(), known.split(), "the data for 'validate'")


@pytest.mark.parametrize(("found", "known"), [("0 1", "0 1"), ("y x", "x y"), ("x y number", "x y")])
def test_samples_with_the_fields_of_the_first_pass(found, known):
    check_fields(found.split(), known.split())
