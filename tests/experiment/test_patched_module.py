"""A user's module while it is trained: what is patched, what its training must keep to, and that nothing is left."""

import copy
import functools
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import descend
from descend.data import ArrayReader, Batch, Batches
from descend.errors import ConfigurationError, Unsupported
from descend.experiment.losses import loss_of
from descend.experiment.metrics import build_metrics
from descend.experiment.module_task import ModuleTask
from descend.experiment.patched_module import device_of, patched_for_training
from descend.train.micro_batch import MicroBatch

X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)


def network(*layers):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), *layers, nn.Linear(4, 1))


def made(module):
    task = ModuleTask(module, loss_of("mse"), build_metrics((), "mse"))
    return task, Batches(ArrayReader({"x": X, "y": X[:, :1]}), 8, seed=0, shuffle=False)


def part(first, end, step=0):
    batch = Batch({}, np.arange(8), 0, step, 8, True)
    return MicroBatch({"x": torch.from_numpy(X[first:end])}, batch, step, first, end - first, first)


def test_the_device_is_that_of_all_parameters():
    assert device_of(network()) == torch.device("cpu")
    assert device_of(nn.ReLU()) == torch.device("cpu")
    torn = network()
    torn[0].to("meta")
    with pytest.raises(Unsupported, match=r"weights of Sequential are on several devices \(cpu, meta\); move them"):
        device_of(torn)
    with pytest.raises(Unsupported, match="the weights of Linear are on the device 'meta', which holds no numbers"):
        device_of(nn.Linear(2, 2, device="meta"))
    with pytest.raises(ConfigurationError, match=r"module must be a torch\.nn\.Module"):
        device_of(nn.Linear)


def masks(seed, parts, step=0):
    task, feed = made(network(nn.Dropout(0.5)))
    module = task.module.train()
    with patched_for_training(task, seed, feed) as patches, torch.no_grad():
        outputs = []
        for first, end in parts:
            one = part(first, end, step)
            patches.begin(one)
            outputs.append(module(one.fields["x"]))
        assert patches.unit == 1
    return torch.cat(outputs)


def test_random_layers_draw_by_sample_whatever_the_micro_batches():
    whole = masks(3, [(0, 8)])
    torch.testing.assert_close(masks(3, [(0, 3), (3, 4), (4, 8)]), whole)
    assert not torch.allclose(masks(4, [(0, 8)]), whole)
    assert not torch.allclose(masks(3, [(0, 8)], step=1), whole)


@pytest.mark.parametrize("fails", [False, True])
def test_every_part_of_the_module_is_left_as_it_was(fails):
    module = network(nn.BatchNorm1d(4), nn.Dropout(0.5))
    module.eval()
    module[2].train()
    before, modes = copy.deepcopy(module.state_dict()), [one.training for one in module.modules()]
    draws = torch.get_rng_state()

    def use():
        task, feed = made(module)
        with patched_for_training(task, 0, feed, 8):
            module.train()
            if fails:
                raise ZeroDivisionError

    if fails:
        with pytest.raises(ZeroDivisionError):
            use()
    else:
        use()
    assert [one.training for one in module.modules()] == modes
    assert all(torch.equal(values, before[name]) for name, values in module.state_dict().items())
    assert torch.equal(draws, torch.get_rng_state())
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in module.modules())


def test_groups_of_batch_norm_are_normalized_by_themselves():
    module = network(nn.BatchNorm1d(4))
    module.train()
    reference = copy.deepcopy(module)
    expected = torch.cat([reference(torch.from_numpy(X[i : i + 2])) for i in range(0, 8, 2)])
    task, feed = made(module)
    with patched_for_training(task, 0, feed, 8, batch_norm_group_size=2) as patches:
        module.train()
        one = part(0, 8)
        patches.begin(one)
        found = module(one.fields["x"])
        assert patches.unit == 2
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(module[1].running_mean, reference[1].running_mean)
    torch.testing.assert_close(module[1].running_var, reference[1].running_var)


def test_one_process_has_no_lockstep():
    task, feed = made(network(nn.BatchNorm1d(4)))
    with patched_for_training(task, 0, feed, 8) as patches:
        assert not patches.in_turns


class _Frozen(nn.Sequential):
    def train(self, mode=True):
        super().train(mode)
        self[1].eval()
        return self


def test_layers_in_evaluation_mode_within_a_module_in_training_mode_are_warned_of(recwarn):
    def warned(module):
        modes = [part.training for part in module.modules()]
        task, feed = made(module)
        with patched_for_training(task, 0, feed):
            pass
        assert [part.training for part in module.modules()] == modes
        return [str(w.message) for w in (recwarn.pop() for _ in range(len(recwarn)))]

    frozen = network(nn.BatchNorm1d(4), nn.Dropout(0.1), nn.ReLU())
    frozen[1].eval()
    assert [text[:41] for text in warned(frozen)] == ["'1' (BatchNorm1d) is in evaluation mode, "]
    frozen[2].eval()
    assert [text[:43] for text in warned(frozen)] == ["'1' (BatchNorm1d) and 1 more are in evaluat"]
    assert warned(frozen.eval()) == []
    frozen.train()[3].eval()
    assert warned(frozen) == []
    assert warned(_Frozen(*network(nn.BatchNorm1d(4))).train()) == []


class TimeFirst(torch.nn.Module):
    """(samples, time, 5) to (samples, 3), with a dropout of (time, samples, 8) or of (samples, time, 8)."""

    def __init__(self, swapped):
        super().__init__()
        self.inner, self.drop, self.outer = torch.nn.Linear(5, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3)
        self.swapped = swapped

    def forward(self, x):
        x = self.inner(x)
        x = self.drop(x.transpose(0, 1)).transpose(0, 1) if self.swapped else self.drop(x)
        return self.outer(x).mean(1)


@pytest.mark.parametrize("micro_batch_size", [None, 2])
@pytest.mark.parametrize("swapped", [False, True])
def test_dropout_of_time_first_is_named_where_a_batch_is_cut(swapped, micro_batch_size):
    data = torch.randn(16, 4, 5), torch.randint(0, 3, (16,))  # 4 is divisible by the 2 samples of a micro-batch
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        descend.fit(
            TimeFirst(swapped),
            "cross_entropy",
            data,
            optimizer=functools.partial(torch.optim.SGD, lr=0.1),
            batch_size=8,
            micro_batch_size=micro_batch_size,
            stop=descend.Steps(2),
            verbose=False,
        )
    lines = [str(one.message) for one in caught if "what 'drop' (Dropout) drops depends" in str(one.message)]
    assert len(lines) == (swapped and micro_batch_size is not None)
