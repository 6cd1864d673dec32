"""The rules of an experiment have LBANN's arithmetic, over 30 updates in float64, and stand over a default."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import descend
from descend.errors import ConfigurationError
from descend.experiment import build_optimizer as building
from descend.experiment.build_optimizer import build_graph_optimizer, build_optimizer


def plan_of(**optimizers):
    return SimpleNamespace(weights={name: SimpleNamespace(optimizer=rule) for name, rule in optimizers.items()})


def module_of(*names):
    module = torch.nn.Module()
    draw = torch.Generator().manual_seed(3)
    for name in names:
        module.register_parameter(name, torch.nn.Parameter(torch.randn(4, 3, dtype=torch.float64, generator=draw)))
    return module


def trained(default, **optimizers):
    """Weights after 30 updates with fixed gradients, and the same gradients and first weights as arrays."""
    module = module_of(*optimizers)
    first = {name: p.detach().numpy().copy() for name, p in module.named_parameters()}
    optimizer = build_graph_optimizer(module, plan_of(**optimizers), default)
    gradients = np.random.default_rng(1).normal(size=(30, 4, 3))
    for gradient in gradients:
        for p in module.parameters():
            p.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
    return {name: p.detach().numpy() for name, p in module.named_parameters()}, first, gradients


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd(nesterov):
    rule = descend.SGD(learn_rate=0.1, momentum=0.9, nesterov=nesterov)
    weights, first, gradients = trained(rule, w=None)
    x, v = first["w"], 0.0
    for g in gradients:
        v = 0.9 * v + g
        x = x - 0.1 * (0.9 * v + g if nesterov else v)
    np.testing.assert_allclose(weights["w"], x, rtol=1e-12)


def test_adam_has_eps_beside_the_uncorrected_root_and_decoupled_decay():
    rule = descend.Adam(learn_rate=0.01, beta1=0.9, beta2=0.99, eps=1e-3, adamw_weight_decay=0.1)
    weights, first, gradients = trained(rule, w=None)
    x, m, v = first["w"], 0.0, 0.0
    for t, g in enumerate(gradients, 1):
        m = 0.9 * m + 0.1 * g
        v = 0.99 * v + 0.01 * g * g
        c = 0.01 * np.sqrt(1 - 0.99**t) / (1 - 0.9**t)
        x = x - (c * m / (np.sqrt(v) + 1e-3) + 0.01 * 0.1 * x)
    np.testing.assert_allclose(weights["w"], x, rtol=1e-12)


def test_a_rule_of_its_own_stands_over_the_default_and_no_optimizer_freezes():
    own = descend.SGD(learn_rate=0.5)
    weights, first, gradients = trained(descend.SGD(learn_rate=0.1), a=None, b=own, c=descend.NoOptimizer())
    total = gradients.sum(0)
    np.testing.assert_allclose(weights["a"], first["a"] - 0.1 * total, rtol=1e-12)
    np.testing.assert_allclose(weights["b"], first["b"] - 0.5 * total, rtol=1e-12)
    np.testing.assert_array_equal(weights["c"], first["c"])


def test_nothing_to_train_is_an_error():
    with pytest.raises(ConfigurationError, match="nothing to train"):
        build_graph_optimizer(module_of("a"), plan_of(a=None), descend.NoOptimizer())


def test_an_optimizer_by_name_is_answered_with_what_makes_it():
    for name, made in (("lamb", "descend.optim.LAMB"), ("unknown", "torch.optim.SGD")):
        with pytest.raises(ConfigurationError, match=rf"functools.partial\({made}, lr=0.1\), got '{name}'"):
            build_optimizer(name, torch.nn.Linear(2, 1))


def test_several_optimizers_are_answered_with_phases():
    with pytest.raises(ConfigurationError, match=r"got a list: several.*descend\.Phase"):
        build_optimizer([torch.optim.SGD], torch.nn.Linear(2, 2))


def test_on_a_gpu_a_run_waits_for_its_kernels_so_that_it_repeats(monkeypatch):
    monkeypatch.setattr("descend.optim.compiler.cache.obstacle", lambda device: None)
    found = [building._runner_for(devices) for devices in ({"cpu"}, {"cuda"}, {"cpu", "cuda"}, {"meta"})]
    assert found == ["auto", "compiled", "blocks", "blocks"]
    monkeypatch.setattr("descend.optim.compiler.cache.obstacle", lambda device: "no NVRTC")
    assert building._runner_for({"cuda"}) == "blocks"
