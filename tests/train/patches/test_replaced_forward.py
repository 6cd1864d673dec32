"""Copies of a layer whose forward is replaced, taken while it is: they are layers of their own."""

import copy
import functools
import io

import pytest
import torch
from torch import nn

import descend
from descend.train.patches import ReplacedForward


def saved_and_loaded(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = [copy.deepcopy, saved_and_loaded]


@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_has_the_forward_of_its_class(copied):
    module = nn.Sequential(nn.Linear(2, 2))
    module[0].forward = ReplacedForward(module[0], lambda x: x + 1)
    x = torch.randn(3, 2)
    assert torch.equal(module(x), x + 1)
    other = copied(module)
    with torch.no_grad():
        module[0].weight.zero_()
    assert torch.equal(other(x), nn.functional.linear(x, other[0].weight, other[0].bias))
    assert torch.count_nonzero(other[0].weight)
    assert copied(other)(x).equal(other(x))


@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_that_a_callback_takes_of_a_module_in_training_is_evaluated_by_itself(copied):
    """Dropout in a copy is off in evaluation mode and drawn by torch in training mode, and groups of norms are not."""

    class Keeper(descend.Callback):
        def after_step(self, step):
            kept.append(copied(step.run.module))

    kept = []
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1)).double()
    x = torch.randn(8, 4, dtype=torch.float64)
    descend.fit(
        module,
        "mse",
        (x, x[:, :1]),
        optimizer=functools.partial(torch.optim.SGD, lr=0.1),
        batch_size=8,
        batch_norm_group_size=4,
        stop=descend.Steps(1),
        callbacks=[Keeper()],
        verbose=False,
    )
    (other,) = kept
    assert torch.equal(other.eval()(x), module.eval()(x))
    other.train()
    plain = nn.BatchNorm1d(8).double()
    plain.load_state_dict(other[1].state_dict())
    assert torch.equal(other[:2](x), plain(other[0](x)))
    assert not torch.equal(other[2](torch.ones(8, 4)), other[2](torch.ones(8, 4)))


def test_a_compiled_module_draws_and_groups_as_one_that_is_not():
    def trained(compiled):
        torch.manual_seed(0)
        layers = nn.Linear(4, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 1)
        module = nn.Sequential(*layers).double()
        x = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        descend.fit(
            torch.compile(module, backend="eager") if compiled else module,
            "mse",
            (x, x[:, :1]),
            optimizer=functools.partial(torch.optim.SGD, lr=0.1),
            batch_size=8,
            batch_norm_group_size=4,
            stop=descend.Steps(3),
            verbose=False,
        )
        return module[0].weight.detach()

    torch.testing.assert_close(trained(compiled=True), trained(compiled=False), rtol=1e-12, atol=0)
