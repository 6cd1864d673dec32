"""The text of the error about a gradient that is not finite."""

import numpy as np
import pytest
import torch

from descend.data import Batch
from descend.train.nonfinite_report import diagnose_batch, has_nonfinite_input, nonfinite_message


def batch(**fields):
    count = len(next(iter(fields.values())))
    return Batch(fields, np.arange(count) + 100, 3, 7, count, False)


def test_the_message_has_step_parameters_loss_causes_and_remedies():
    first, cause, last = nonfinite_message(1234, ["fc.weight", "fc.bias"], float("nan"), ["a cause"], 1)
    assert first == "step 1,234: the gradient of 'fc.weight', 'fc.bias' is not finite; the loss is nan"
    assert cause == "a cause"
    assert "on_nonfinite='skip'" in last


def test_steps_in_a_row_are_counted():
    assert nonfinite_message(5, ["w"], 1.5, [], 3)[0].startswith("step 5, the last of 3 steps in a row: the gradient")


@pytest.mark.parametrize(("count", "end"), [(16, "'w15' is not finite"), (17, "'w15' and 1 more is not finite")])
def test_of_many_parameters_sixteen_are_named(count, end):
    first = nonfinite_message(1, [f"w{i}" for i in range(count)], 0.5, [], 1)[0]
    assert first.endswith(f"{end}; the loss is 0.5")


def test_samples_with_nan_or_infinity_are_named_with_their_field():
    x = np.zeros((4, 2, 2))
    x[1, 0, 1], x[3, 1, 1] = np.nan, -np.inf
    y = torch.zeros(4)
    y[3] = float("inf")
    found = batch(x=x, y=y, label=np.arange(4))
    assert has_nonfinite_input(found)
    assert diagnose_batch(found) == (
        "epoch 4, mini-batch 8: the values of these samples are not finite: "
        "sample 101 (field 'x'); sample 103 (field 'x'); sample 103 (field 'y')"
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_tensors_of_any_float_are_looked_at(dtype):
    assert has_nonfinite_input(batch(x=torch.tensor([[1.0], [float("nan")]]).to(dtype)))
    assert not has_nonfinite_input(batch(x=torch.ones(2, 1).to(dtype)))


def test_a_tensor_is_looked_at_in_its_own_type():
    assert not has_nonfinite_input(batch(x=torch.full((2, 1), 1e300, dtype=torch.float64)))
    assert has_nonfinite_input(batch(x=torch.tensor([1 + 1j, complex(0, float("nan"))])))


def test_complex_values_are_looked_at_and_texts_and_integers_are_not():
    assert has_nonfinite_input(batch(x=np.array([1 + 1j, complex(0, np.inf)])))
    assert not has_nonfinite_input(batch(x=np.array(["nan", "inf"]), y=np.array([2**62, -1])))


def test_finite_samples_are_listed_by_number():
    assert diagnose_batch(batch(x=np.zeros(3))) == (
        "epoch 4, mini-batch 8: the values of its samples are finite; their numbers are 100, 101, 102"
    )
    assert diagnose_batch(batch(x=np.zeros(20))).endswith("114, 115 and 4 more")


def test_of_many_samples_that_are_not_finite_sixteen_are_named():
    line = diagnose_batch(batch(x=np.full(40, np.nan)))
    assert line.count("field 'x'") == 16
    assert line.endswith("sample 115 (field 'x')")


def test_a_share_without_samples_has_nothing_to_name():
    assert not has_nonfinite_input(batch(x=np.zeros((0, 3))))
