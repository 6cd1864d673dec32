"""A user's module as a task: which fields are inputs and which are targets, and what the loss is called with."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import descend
from descend.data import Batch
from descend.errors import ConfigurationError, DataError
from descend.experiment.losses import loss_of
from descend.experiment.metrics import build_metrics
from descend.experiment.module_task import ModuleTask

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(12) % 3


def task(loss="mse", metrics=(), module=None, **settings):
    module = module or nn.Linear(4, 4, dtype=torch.float64)
    return ModuleTask(module, loss_of(loss), build_metrics(metrics, loss), **settings)


def part_of(fields):
    """A micro-batch that is the whole mini-batch, with what a task reads of it."""
    size = len(next(iter(fields.values())))
    batch = Batch(fields, np.arange(size), epoch=0, step=0, size=size, last=False)
    return SimpleNamespace(fields=fields, batch=batch, start=0, count=size)


def losses(task, **fields):
    part = part_of(fields)
    return task.losses(part)


def value(ratio):
    return float(ratio.numerator.detach()) / float(ratio.denominator)


class Mse(nn.Module):
    def forward(self, output, target):
        return (output - target).square().mean()


def squares(output, target):
    return (output - target).square().sum(), output.numel()


@pytest.mark.parametrize(
    "loss", ["mse", squares, Mse(), nn.functional.mse_loss, lambda o, t, weight=1.0: ((o - t) ** 2).mean()]
)
def test_a_single_tensor_is_its_own_target(loss):
    """Whatever form the loss has, it is ‖f(x) − x‖² / entries."""
    made = task(loss)
    found = losses(made, **{"0": X}).objective
    expected = (made.module(X) - X).square().mean()
    assert value(found) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("loss", [squares, lambda o, t: ((o - t) ** 2).mean()])
def test_fit_of_a_single_tensor_by_a_function_is_fit_of_it_by_name(loss):
    def trained(loss):
        torch.manual_seed(0)
        module = nn.Linear(4, 4, dtype=torch.float64)
        make = partial(torch.optim.SGD, lr=0.1)
        return descend.fit(module, loss, X, optimizer=make, batch_size=5, stop=descend.Epochs(2)).weights

    by_name, by_function = trained("mse"), trained(loss)
    for name, tensor in by_name.items():
        torch.testing.assert_close(by_function[name], tensor, rtol=1e-12, atol=0)


def test_a_function_of_the_output_alone_gets_no_target():
    found = losses(task(lambda output: output.square().mean()), **{"0": X})
    assert found.objective.denominator == 12


def test_targets_that_are_said_to_be_none_are_none():
    seen = []
    losses(task(lambda output, *targets: seen.append(len(targets)) or output.mean(), targets=0), **{"0": X})
    assert seen == [0]


def test_of_a_tuple_the_last_entry_is_the_target_and_of_a_dictionary_the_one_called_so():
    module = nn.Linear(4, 3, dtype=torch.float64)
    expected = nn.functional.cross_entropy(module(X), Y).item()
    by_place = losses(task("cross_entropy", ["accuracy"], module), **{"0": X, "1": Y})
    by_name = losses(task("cross_entropy", ["accuracy"], module), label=Y, x=X)
    said = losses(task("cross_entropy", ["accuracy"], module, targets=["answer"]), x=X, answer=Y)
    for found in (by_place, by_name, said):
        assert value(found.objective) == pytest.approx(expected, rel=1e-12)
        assert value(found.metrics["accuracy"]) == float((module(X).argmax(1) == Y).double().mean())


class TwoInputs(nn.Module):
    def forward(self, left, right):
        return 10 * left + right


def test_inputs_go_by_name_to_a_forward_that_has_their_names():
    found = losses(task(lambda o, y: (o - y).mean(), module=TwoInputs()), right=X, y=torch.zeros_like(X), left=2 * X)
    assert value(found.objective) == pytest.approx(float((21 * X).mean()))


@pytest.mark.parametrize(
    ("fields", "settings", "message"),
    [
        ({"x": X, "answer": Y}, {}, r"which fields are targets is not clear .*\(x, answer\)"),
        ({"x": X, "label": Y}, {"targets": ["labels"]}, "no field 'labels'; it has x, label; did you mean 'label'"),
        ({"0": X, "1": Y}, {"targets": 3}, "3 targets"),
        ({"0": X, "1": Y}, {"targets": 2}, "all fields .* are targets"),
        ({"left": X, "rihgt": X, "y": X}, {"module": TwoInputs()}, "field 'rihgt'.*did you mean 'right'"),
    ],
)
def test_ambiguous_fields_are_refused(fields, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        losses(task(**settings), **fields)


def test_an_input_of_another_type_than_the_weights_is_named_with_the_remedy():
    with pytest.raises(DataError, match=r"field '0' is float32 and the weights of Linear are float64.*\.to\(torch"):
        losses(task(), **{"0": X.float(), "1": X})


def test_an_error_of_the_module_says_where_it_arose():
    module = nn.Sequential(nn.Linear(4, 5), nn.Linear(4, 2)).double()
    with pytest.raises(RuntimeError) as error:
        losses(task(module=module), **{"0": X, "1": X})
    assert "Raised in '1', a Linear; inputs of the module: 0 (12, 4) float64" in (error.value.__notes__[0])


def test_prediction_needs_no_target():
    made = task("cross_entropy")
    torch.testing.assert_close(made.predict(part_of({"0": X})), made.module(X))
    made = task("cross_entropy")
    torch.testing.assert_close(made.predict(part_of({"x": X, "label": Y})), made.module(X))


@pytest.mark.parametrize("shape", [(12, 4), (12, 4, 2)])
def test_targets_that_were_looked_at_are_counted_on_the_host(shape):
    """As on a GPU, where counting on the device would take launches; the value is the same."""
    output = torch.randn(shape, dtype=torch.float64)
    y = Y if len(shape) == 2 else torch.stack([Y, Y], 1)
    made = task("cross_entropy", module=nn.Identity())
    for targets in (y, y, torch.where(y == 1, -100, y)):
        if made._labels:
            made._labels._refused_by_torch = False
        found = losses(made, x=output, y=targets).objective
        assert isinstance(found.denominator, float) == bool((targets >= 0).all())
        assert value(found) == pytest.approx(float(nn.functional.cross_entropy(output, targets)), rel=1e-12)
