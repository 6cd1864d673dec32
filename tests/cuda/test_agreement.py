"""A GPU computes what the CPU does: rules, layers, optimizers, precisions. Nothing is measured: they run at once."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import descend
import descend.optim
from descend.lower.forward_context import ForwardContext
from descend.optim import named_optimizers
from descend.optim.rules import LAMB, LANS, LARS, SGLD, Adafactor, Rule
from descend.optim.rules.matrices import factorize_each
from tests.cuda.runs import DEVICES, fitted, samples, weights
from tests.cuda.steps import MATRICES, OF_WHOLE_TENSORS, ONE_OF_EACH, SIZES, trained
from tests.lower.single import Single, random
from tests.lower.test_every_kind import TABLE, drawn

OPTIMIZERS = [name for name in named_optimizers.__all__ if name[0].isupper()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rule", ONE_OF_EACH, ids=lambda rule: type(rule).__name__)
def test_03_runners_agree(rule: Rule, dtype: torch.dtype) -> None:
    expected = trained(rule, "plain", dtype, "cpu")
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    for runner in ("plain", "blocks", "compiled"):
        for found, value in zip(trained(rule, runner, dtype), expected, strict=True):
            torch.testing.assert_close(found, value, rtol=tolerance, atol=tolerance, msg=f"{runner} of {rule}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rule", OF_WHOLE_TENSORS, ids=lambda rule: type(rule).__name__)
def test_03_stacks_agree(rule: Rule, dtype: torch.dtype) -> None:
    """Tensors of one shape are stacked, and each is updated as it would be alone."""
    expected = trained(rule, "plain", dtype, "cpu", copies=3)
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    for found, value in zip(trained(rule, "compiled", dtype, copies=3), expected, strict=True):
        torch.testing.assert_close(found, value, rtol=tolerance, atol=tolerance, msg=f"{rule}")


@pytest.mark.parametrize("runner", ["blocks", "compiled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_03_means_agree(runner: str, dtype: torch.dtype) -> None:
    """Adafactor by stacks and by kernels, which give the same bits each time."""
    sizes = [*SIZES, *MATRICES]
    expected = trained(Adafactor(), "plain", dtype, "cpu", sizes=sizes)
    found, again = (trained(Adafactor(), runner, dtype, sizes=sizes) for _ in range(2))
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    for x, other, value in zip(found, again, expected, strict=True):
        torch.testing.assert_close(x, value, rtol=tolerance, atol=tolerance)
        assert torch.equal(x, other)


@pytest.mark.parametrize("name", ["qr", "eigh"])
def test_12_factorizations(name: str) -> None:
    """On several streams: what each matrix gives alone, of values that come later, in memory that changes soon."""
    factorize = getattr(torch.linalg, name)
    draw = torch.Generator(device="cuda").manual_seed(0)
    for _ in range(3):
        for shape in ((5, 160, 160), (20, 130, 130), (40, 16, 16), (300, 300)):
            x = torch.randn(shape, device="cuda", dtype=torch.float64, generator=draw)
            turn = torch.linalg.qr(x)[0]
            for _ in range(20):  # the host is ahead of them
                x = x @ turn
            expected = [made.clone() for made in factorize(x)]
            given = torch.zeros_like(x).copy_(x)
            found = factorize_each(factorize, given)
            given.zero_()
            for y, value in zip(found, expected, strict=True):
                torch.testing.assert_close(y, value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rule", [LAMB(), LARS(), LANS(), SGLD()], ids=lambda rule: type(rule).__name__)
def test_11_norms_and_noise(rule: Rule) -> None:
    """The same bits each time; and noise is that of the CPU."""
    first, again = (trained(rule, "compiled", torch.float32) for _ in range(2))
    assert all(map(torch.equal, first, again))
    for found, value in zip(first, trained(rule, "plain", torch.float32, "cpu"), strict=True):
        torch.testing.assert_close(found, value, rtol=2e-5, atol=2e-5)


def forward(row: Any, device: str) -> list[Tensor]:
    """Output of a layer and gradients of the sum of its squares, on the CPU again."""
    layer = drawn(row.layer)
    trained = [layer.plan.weights[name].trainable for name in layer.weights]
    xs = [x.detach().to(device).requires_grad_(x.is_floating_point()) for x in row.xs]
    weights = [w.detach().to(device).requires_grad_(t) for w, t in zip(layer.weights.values(), trained, strict=True)]
    samples = len(xs[0]) if xs else row.samples
    at = ForwardContext(not row.evaluation, 0, 0, samples, samples, torch.float64, torch.device(device))
    given = (*xs, *weights)
    y = layer.forward(at, *given) if layer.with_pass else layer.forward(*given)
    outputs = list(y) if isinstance(y, tuple) else [y]
    assert all(one.device.type == device for one in outputs)
    wanted = [t for t in given if t.requires_grad]
    total = sum((one.square().sum() for one in outputs if one.requires_grad), torch.zeros((), device=device))
    found = torch.autograd.grad(total, wanted, allow_unused=True) if total.requires_grad else ()
    return [one.detach().cpu() for one in (*outputs, *(g for g in found if g is not None))]


@pytest.mark.parametrize("row", TABLE, ids=repr)
def test_16_layers(row: Any) -> None:
    """Values and gradients of every kind of layer are those of the CPU, in float64."""
    for there, here in zip(forward(row, "cuda"), forward(row, "cpu"), strict=True):
        torch.testing.assert_close(there, here, rtol=1e-9, atol=1e-10)


DRAWN = {
    "Bernoulli": {"prob": 0.3, "neuron_dims": [50]},
    "Uniform": {"min": -1, "max": 2, "neuron_dims": [50]},
    "Gaussian": {"mean": 1, "stdev": 2, "neuron_dims": [50]},
    "Dropout": {"keep_prob": 0.4},
    "SeluDropout": {"keep_prob": 0.4},
}


@pytest.mark.parametrize("kind", DRAWN)
def test_17_random_layers(kind: str) -> None:
    """A layer draws the same numbers on a GPU."""
    x = random(4, 50).detach()
    results: list[Tensor] = []
    for device in DEVICES:
        inputs = (x.to(device),) if "Dropout" in kind else ()
        make = getattr(descend, kind)
        layer = Single(lambda *s, make=make: make(*s, name="r", **DRAWN[kind]), *((50,) for _ in inputs))
        at = ForwardContext(True, 3, 0, 4, 4, torch.float64, torch.device(device))
        results.append(layer.forward(at, *inputs).cpu())
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)


def test_18_fit_is_that_of_the_cpu() -> None:
    there, here = (
        weights(fitted(device, 5, optimizer=functools.partial(descend.optim.SGD, lr=0.05))) for device in DEVICES[::-1]
    )
    for x, y in zip(there, here, strict=True):
        torch.testing.assert_close(x, y, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_20_mixed_precision(precision: str) -> None:
    result = fitted("cuda", 60, precision=precision, valid=samples(64))
    plain = fitted("cuda", 60, valid=samples(64))
    assert all(bool(x.isfinite().all()) for x in weights(result))
    assert result.history[-1]["objective"] == pytest.approx(plain.history[-1]["objective"], rel=0.05)


def test_21_evaluation_and_inference() -> None:
    trained = fitted("cuda")
    metrics = descend.evaluate(trained.module, "cross_entropy", samples(100), batch_size=32, metrics=["accuracy"])
    outputs = descend.predict(trained.module, samples(100), batch_size=32)
    here = trained.module.cpu()
    same = descend.evaluate(here, "cross_entropy", samples(100), batch_size=32, metrics=["accuracy"])
    torch.testing.assert_close(
        torch.as_tensor(outputs).cpu(), here.eval()(samples(100)[0]).detach(), rtol=1e-3, atol=1e-4
    )
    assert metrics["objective"] == pytest.approx(same["objective"], rel=1e-4)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_22_every_optimizer_trains(name: str) -> None:
    """Through `fit` and alone, in the default runner, with weights and states on the GPU."""
    make = getattr(descend.optim, name)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
    x, y = torch.randn(64, 16), torch.randint(0, 4, (64,))
    result = descend.fit(
        module, "cross_entropy", (x, y), optimizer=functools.partial(make, lr=1e-3), batch_size=16,
        stop=descend.Steps(8), verbose=False,
    )  # fmt: skip
    assert all(p.is_cuda and bool(p.isfinite().all()) for p in result.module.parameters())
