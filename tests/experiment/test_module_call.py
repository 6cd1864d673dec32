"""Calls of a user's module: where an error was raised, inputs of another dtype, and random numbers of functions."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from descend.data import Batch
from descend.errors import DataError
from descend.experiment.field_roles import FieldRoles
from descend.experiment.module_task import ModuleCall
from descend.train.micro_batch import MicroBatch

ROLES = FieldRoles(("x",), (), by_name=False, is_nested=False)
X = torch.ones(4, 3)


class Broken(nn.Module):
    def forward(self, x):
        raise ValueError("of the module")


def test_the_output_is_that_of_the_module():
    module = nn.Linear(3, 2)
    assert torch.equal(ModuleCall(module)(ROLES, {"x": X}), module(X))


def test_an_error_keeps_its_type_and_names_the_innermost_layer_and_the_inputs():
    module = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), Broken()))
    with pytest.raises(ValueError, match="of the module") as caught:
        ModuleCall(module)(ROLES, {"x": X})
    assert caught.value.__notes__ == ["Raised in '1.1', a Broken; inputs of the module: x (4, 3) float32"]


def test_an_error_of_the_module_itself_and_inputs_that_are_no_tensors():
    roles = FieldRoles(("x", "more"), (), by_name=False, is_nested=True)
    with pytest.raises(TypeError) as caught:
        ModuleCall(Broken())(roles, {"x": X.double(), "more": (X, X)})
    assert caught.value.__notes__ == [
        "Raised in the module, a Broken; inputs of the module: x (4, 3) float64, more tuple"
    ]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), DataError("of the data")])
def test_errors_that_others_explain_get_no_note(error):
    class Raises(nn.Module):
        def forward(self, x):
            raise error

    with pytest.raises(type(error)) as caught:
        ModuleCall(Raises())(ROLES, {"x": X})
    assert not getattr(caught.value, "__notes__", [])


def test_an_input_of_another_dtype_is_named_with_the_remedy():
    with pytest.raises(DataError) as caught:
        ModuleCall(nn.Linear(3, 2))(ROLES, {"x": X.double()})
    text = str(caught.value)
    assert "field 'x' is float64 and the weights of Linear are float32: convert the data" in text
    assert ".to(torch.float32)" in text
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_an_error_about_dtypes_with_inputs_that_fit_is_the_module_s_own():
    class Casts(nn.Linear):
        def forward(self, x):
            return super().forward(x.double())

    with pytest.raises(RuntimeError, match="dtype") as caught:
        ModuleCall(Casts(3, 2))(ROLES, {"x": X})
    assert caught.value.__notes__[0].startswith("Raised in the module, a Casts")


@pytest.mark.parametrize(("autocast", "dtype"), [(torch.bfloat16, torch.bfloat16), (None, torch.float32)])
def test_autocast_computes_in_its_dtype(autocast, dtype):
    call = ModuleCall(nn.Linear(3, 2), autocast)
    with call.precision({"x": X}):
        assert call(ROLES, {"x": X}).dtype == dtype


class Draws(nn.Module):
    def forward(self, x):
        return x * torch.rand(())


def part(count, size=4):
    batch = Batch({}, np.arange(size), 0, 0, size, False)
    return MicroBatch({"x": X[:count]}, batch, 0, 0, count, 0)


def seen(call, some):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call.of_micro_batch(some, ROLES, some.fields)
    return [str(one.message) for one in found]


def test_random_numbers_of_functions_are_reported_once_where_a_mini_batch_is_split():
    call = ModuleCall(Draws())
    assert seen(call, part(4)) == []  # the whole mini-batch at once
    [text] = seen(call, part(2))
    assert text.startswith("Draws draws random numbers with functions, such as")
    assert "use layers such as nn.Dropout" in text
    assert seen(call, part(2)) == []


def test_evaluation_is_not_looked_at_and_does_not_use_up_the_report():
    call = ModuleCall(Draws().eval())
    assert seen(call, part(2)) == []
    call.module.train()
    assert len(seen(call, part(2))) == 1


def test_modules_that_draw_nothing_are_not_reported():
    assert seen(ModuleCall(nn.Linear(3, 3)), part(2)) == []


def test_buffers_that_each_call_changes_are_reported_and_statistics_of_norms_are_not():
    norm = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    assert seen(ModuleCall(norm), part(2)) == []
    powers = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)))
    [text] = seen(ModuleCall(powers), part(2))
    assert text.startswith("'0.parametrizations.weight.0._u' of Sequential is a buffer that each forward pass changes")
    assert seen(ModuleCall(powers), part(4)) == []
