"""On a device without float64 the numbers of a step are computed on the host, to the same weights."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

START = """
import functools, sys
import torch
sys.path.insert(0, sys.argv[1])
from device_without_double import OnSingle, REFUSED, Single
import descend, descend.optim

def on(device, module):
    for part in module.modules():
        for name, p in list(part._parameters.items()):
            if p is not None:
                part._parameters[name] = torch.nn.Parameter(p.detach().to(device))
    return module
"""

STEPS = """
from descend.optim.optimizer import Optimizer
from descend.optim.rules import ALL_RULES

def trained(rule, runner, device):
    draw = torch.Generator().manual_seed(1)
    shapes = ((4, 3), (70,), (), (2, 3, 2))
    params = [torch.nn.Parameter(torch.randn(shape, generator=draw).to(device)) for shape in shapes]
    settings = dict(lr=1e-2, weight_decay=0.1, clip_value=1.5, runner=runner, seed=3)
    for step in range(6):
        if step % 3 == 0:  # the second one continues from the state of the first
            last, optimizer = step and optimizer.state_dict(), Optimizer(params, rule, **settings)
            if step:
                optimizer.load_state_dict(last)
        for p in params:
            p.grad = torch.randn(p.shape, generator=draw).to(device)
        optimizer.step()
    numbers = [x for entry in optimizer.state.values() for x in entry.values() if x.dtype == torch.float64]
    assert all(x.device.type == "cpu" and not x.ndim for x in numbers)
    return [p.detach().cpu() for p in params]

with OnSingle():
    for rule in {type(rule): rule for rule in ALL_RULES}.values():
        for runner in ("auto", "plain", "blocks"):
            for found, wanted in zip(trained(rule, runner, "single"), trained(rule, runner, "cpu"), strict=True):
                torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6, msg=f"{rule} by {runner}")
"""

EVALUATED = """
x = torch.randn(60, 4)
classes, numbers = (x[:, 0] > 0).long(), x @ torch.randn(4, 2)
torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.ReLU(), torch.nn.Linear(8, 2))
CASES = [
    ("cross_entropy", classes, ["accuracy", "precision", "recall", "f1", "auroc", "perplexity"]),
    ("mse", numbers, ["rmse", "r2"]),
]
given = [(loss, (x, y), dict(metrics=metrics, batch_size=16)) for loss, y, metrics in CASES]
wanted = [descend.evaluate(module, loss, data, **options) for loss, data, options in given]
with OnSingle():
    on("single", module)
    for (loss, data, options), expected in zip(given, wanted, strict=True):
        found = descend.evaluate(module, loss, data, **options)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert abs(found[name] - value) < 1e-4, (name, found, expected)
"""

REFUSES = """
with OnSingle():
    x = torch.ones(3, device="single")
    assert type(x) is Single and (2 * x).cpu().tolist() == [2, 2, 2]
    zeros = functools.partial(torch.zeros, 2, dtype=torch.float64, device="single")
    for make in (x.double, zeros, lambda: x + torch.ones(3)):
        try:
            make()
        except (TypeError, RuntimeError):
            continue
        raise AssertionError(make)
"""


@pytest.mark.slow(seconds=30)
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("code", [REFUSES, STEPS, EVALUATED], ids=["the stand-in", "steps", "evaluation"])
def test_without_double_precision(code, tmp_path):
    command = [sys.executable, "-c", START + code, str(TESTS)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
