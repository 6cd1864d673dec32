"""How often a step reads a tensor on the host: each such reading waits for a device where the tensor is on one.

What is done with tensors in the memory of the host alone is not to be seen here: all tensors say that they lie
elsewhere.
"""

import functools
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import descend
from descend.experiment.labels import LabelCheck

READINGS = ("aten::_local_scalar_dense", "aten::is_nonzero", "aten::item", "aten::equal", "aten::nonzero")
METHODS = ("item", "tolist", "cpu", "__bool__", "__float__", "__int__", "__index__")


class Reads(TorchDispatchMode):
    """Counts operations that give a number to the host."""

    def __init__(self):
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().partition(".")[0]
        if name in READINGS:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def readings(steps, monkeypatch, **settings):
    """Readings of a run of so many steps, by torch's operations and by methods of tensors."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(512, 5, generator=draw), torch.randint(0, 3, (512,), generator=draw)
    module = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 3))
    calls: Counter[str] = Counter()

    def counting(name, method):
        def call(*args, **kwargs):
            calls[name] += 1
            return method(*args, **kwargs)

        return call

    given = {"optimizer": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), "batch_size": 8, **settings}
    with monkeypatch.context() as patch, Reads() as reads:
        patch.setattr(torch.Tensor, "is_cpu", property(lambda self: False), raising=False)
        patch.setattr(LabelCheck, "check", lambda self, batch: None)  # targets are looked at before they leave the host
        for name in METHODS:
            patch.setattr(torch.Tensor, name, counting(name, getattr(torch.Tensor, name)))
        descend.fit(module, given.pop("loss", "cross_entropy"), (x, y), stop=descend.Steps(steps), **given)
    return reads.counts + calls


def of_each_step(monkeypatch, **settings):
    """What 32 more steps of the same epoch add."""
    few, many = (readings(steps, monkeypatch, **settings) for steps in (16, 48))
    assert many  # the end of an epoch reads what was gathered in it
    return {name: (many[name] - few[name]) / 32 for name in many if many[name] != few[name]}


SETTINGS = {
    "defaults": {},
    "micro-batches": {"micro_batch_size": 4, "batch_norm_group_size": 4},
    "clipping": {"clip_value": 1.0, "clip_norm": 2.0, "clip_global_norm": 1.0},
    "metrics": {"metrics": ["accuracy"]},
    "ignored labels": {"loss": nn.CrossEntropyLoss(ignore_index=2)},
    "weights of classes": {"loss": nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 2.0]))},
    "a function": {"loss": lambda output, y: (nn.functional.cross_entropy(output, y, reduction="sum"), len(y))},
    "our rule": {"optimizer": functools.partial(descend.optim.SGD, lr=0.1, momentum=0.9)},
}


ONE = {"item": 1.0, "aten::_local_scalar_dense": 1.0}
# These leave an update out by themselves, by a flag on the device; kernels of a CPU, which ours are here, read it.
FUSED = {"optimizer": functools.partial(torch.optim.AdamW, lr=0.1, fused=True)}
FLAGGED = {
    "torch's fused": FUSED,
    **{name: {**FUSED, **SETTINGS[name]} for name in ("micro-batches", "clipping", "metrics", "ignored labels")},
}


@pytest.mark.parametrize("case", SETTINGS)
def test_no_step_reads_a_tensor(case, monkeypatch):
    assert of_each_step(monkeypatch, on_nonfinite="allow", **SETTINGS[case]) == {}


@pytest.mark.parametrize(("on_nonfinite", "case"), [("skip", "defaults"), *(("stop", case) for case in SETTINGS)])
def test_a_look_at_all_gradients_reads_one_number(on_nonfinite, case, monkeypatch):
    expected = {"__bool__": 1.0, "aten::_local_scalar_dense": 1.0} if case == "our rule" else ONE
    assert of_each_step(monkeypatch, on_nonfinite=on_nonfinite, **SETTINGS[case]) == expected


@pytest.mark.parametrize("case", FLAGGED)
def test_a_look_whose_flag_the_optimizer_reads_on_the_device_is_not_waited_for(case, monkeypatch):
    """The flag is read from page-locked memory a step later."""
    assert of_each_step(monkeypatch, **FLAGGED[case]) == {}


def test_a_callback_that_sees_each_step_is_shown_one_that_is_known_to_be_good(monkeypatch):
    per_step = of_each_step(monkeypatch, callbacks=[Logged(1000)], **FUSED)
    assert per_step == ONE


class Logged(descend.Callback):
    """Reads the loss every so many steps."""

    def __init__(self, every_steps):
        self.every_steps = every_steps

    def after_step(self, step):
        if step.step % self.every_steps == 0:
            assert step.loss > 0


@pytest.mark.parametrize("every_steps", [1, 4])
def test_logging_reads_as_often_as_it_logs(every_steps, monkeypatch):
    per_step = of_each_step(monkeypatch, on_nonfinite="allow", callbacks=[Logged(every_steps)])
    assert per_step == {"__float__": 1 / every_steps, "aten::_local_scalar_dense": 1 / every_steps}
