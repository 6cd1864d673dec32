"""The ends of the Hessian's spectrum against dense Hessians, and limits of stability against iteration matrices."""

import numpy as np
import pytest
import torch
from callback_runs import follow
from torch import nn
from torch.func import functional_call
from toys import Regression, data

import descend
from descend.callbacks import Sharpness
from descend.callbacks.curvature import lanczos, stability_limit
from descend.errors import ConfigurationError, Unsupported


def symmetric(values, seed=0):
    """A matrix of these eigenvalues."""
    basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values), len(values))))[0]
    return torch.from_numpy(basis @ np.diag(values) @ basis.T)


def test_lanczos_finds_both_ends_of_a_known_spectrum_and_bounds_its_error():
    matrix = symmetric([*np.linspace(-3, 4, 60), 9.0, 9.5])
    start = [torch.ones(40, dtype=torch.float64), torch.linspace(0, 1, 22, dtype=torch.float64).reshape(2, 11)]

    def product(vector):
        flat = matrix @ torch.cat([v.reshape(-1) for v in vector])
        return [flat[:40], flat[40:].reshape(2, 11)]

    found = lanczos(product, start, 62, 1e-10)
    assert found.largest == pytest.approx(9.5, rel=1e-9)
    assert found.smallest >= -3 - 1e-9
    for iterations in (1, 3, 6, 10):
        early = lanczos(product, start, iterations, 1e-10)
        assert early.iterations == iterations
        assert early.largest <= 9.5 + 1e-9
        nearest = float((torch.linalg.eigvalsh(matrix) - early.largest).abs().min())
        assert nearest <= early.error * (1 + 1e-9)
    assert lanczos(product, start, 62, 1e-10).smallest == pytest.approx(-3, abs=0.05)


def test_an_operator_of_one_eigenvalue_ends_at_once_and_what_is_not_finite_is_nan():
    start = [torch.ones(5, dtype=torch.float64)]
    assert lanczos(lambda v: [2 * v[0]], start, 30) == pytest.approx((2.0, 2.0, 0.0, 1), abs=1e-12)
    assert np.isnan(lanczos(lambda v: [v[0] * torch.inf], start, 30).largest)


X = torch.randn(12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3


def net(attention=False):
    torch.manual_seed(2)
    if attention:
        layer = nn.TransformerEncoderLayer(4, 2, 1, dropout=0.0, batch_first=True, activation="gelu")
        return nn.Sequential(nn.Unflatten(1, (1, 4)), layer, nn.Flatten(), nn.Linear(4, 3)).double()
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()


def dense(module):
    """The whole Hessian of the mean cross entropy in training mode, by torch."""
    names, shapes = zip(*((n, p.shape) for n, p in module.named_parameters()), strict=True)
    flat = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    buffers = {name: b.clone() for name, b in module.named_buffers()}

    def loss(w):
        parts = w.split([s.numel() for s in shapes])
        own = {n: part.reshape(s) for n, part, s in zip(names, parts, shapes, strict=True)}
        output = functional_call(module, {**own, **{n: b.clone() for n, b in buffers.items()}}, (X,))
        return nn.functional.cross_entropy(output, Y)

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return torch.autograd.functional.hessian(loss, flat)


class Snapshots(descend.Callback):
    def __init__(self, at):
        self.at = at

    def after_step(self, step):
        if step.step != self.at:
            return
        self.hessian = dense(step.module.train())
        state = step.optimizer.state[next(iter(step.module.parameters()))]
        self.state = [step.optimizer.state[p] for p in step.module.parameters()] if "v" in state else None


@pytest.mark.parametrize("attention", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_sharpness_is_the_top_of_the_dense_hessian(attention):
    module, look, seen = net(attention), Sharpness(every_steps=3, iterations=60, tolerance=1e-7), Snapshots(3)
    before = [b.clone() for b in net(attention).buffers()]
    first = dense(module)
    result = descend.fit(
        module,
        nn.CrossEntropyLoss(),
        (X, Y),
        optimizer=lambda named: descend.optim.SGD(named, lr=0.05, momentum=0.5),
        batch_size=12,
        stop=descend.Steps(3),
        callbacks=[look, seen],
        verbose=False,
    )
    assert len(before) == len(list(module.buffers()))
    at_first, at_third = look.found
    assert at_first[1]["sharpness"] == pytest.approx(float(torch.linalg.eigvalsh(first)[-1]), rel=1e-6)
    values = torch.linalg.eigvalsh(seen.hessian)
    assert at_third[1]["sharpness"] == pytest.approx(float(values[-1]), rel=1e-6)
    assert at_third[1]["hessian_smallest"] == pytest.approx(float(values[0]), rel=0.05)
    assert at_third[1]["stability"] == pytest.approx(0.05 * float(values[-1]) / 3.0, rel=1e-6)
    (row,) = [row for row in result.history if "sharpness" in row]
    assert (row["step"], row["sharpness"]) == (3, at_third[1]["sharpness"])


def test_looking_changes_no_bit_of_a_run():
    def weights(*callbacks):
        module = net()
        descend.fit(
            module,
            nn.CrossEntropyLoss(),
            (X, Y),
            optimizer=descend.Adam(learn_rate=0.1),
            batch_size=5,
            stop=descend.Steps(6),
            seed=1,
            callbacks=callbacks,
            verbose=False,
        )
        return module.state_dict()

    plain, watched = weights(), weights(Sharpness(every_steps=1, iterations=5, samples="newest"))
    assert all(torch.equal(plain[name], watched[name]) for name in plain)


def test_adams_stability_is_that_of_the_preconditioned_hessian():
    module, look, seen = net(), Sharpness(every_steps=4, iterations=60, tolerance=1e-7), Snapshots(4)
    descend.fit(
        module,
        nn.CrossEntropyLoss(),
        (X, Y),
        optimizer=lambda named: descend.optim.Adam(named, lr=0.01),
        batch_size=12,
        stop=descend.Steps(4),
        callbacks=[look, seen],
        verbose=False,
    )
    v = torch.cat([state["v"].reshape(-1) for state in seen.state]) / (1 - 0.999**4)
    root = (v.sqrt() + 1e-8).rsqrt()
    top = float(torch.linalg.eigvalsh(root[:, None] * seen.hessian * root)[-1])
    assert "stability" not in look.found[0][1]  # before the first update Adam has no scale
    assert look.found[1][1]["preconditioned_sharpness"] == pytest.approx(top, rel=1e-5)
    assert look.found[1][1]["stability"] == pytest.approx(0.01 * top / 38, rel=1e-5)


def test_penalties_and_ignored_targets_are_part_of_the_objective():
    task, look = Regression(decay=0.01), Sharpness(every_steps=1, iterations=50, tolerance=1e-10)
    follow(look, task=task, batches=data(), epochs=1)
    fields = next(iter(data().epoch(0))).fields
    x, known = torch.as_tensor(fields["x"]), ~torch.as_tensor(fields["y"]).isnan()[:, 0]
    a = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)[known]
    hessian = 2 * a.T @ a / int(known.sum()) + 0.02 * torch.diag(torch.tensor([1.0, 1, 1, 0], dtype=x.dtype))
    assert look.found[0][1]["sharpness"] == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-9)


def matrix_of(rule, constants, rate):
    """What a step does to the weight and the momentum on ½ w²."""
    mu = constants.get("momentum", 0.0)
    if rule == "adam":
        b = constants["beta1"]
        return np.array([[1 - rate * (1 - b), -rate * b], [1 - b, b]])
    if constants.get("nesterov"):
        return np.array([[1 - rate * (1 + mu), -rate * mu * mu], [1, mu]])
    return np.array([[1 - rate, -rate * mu], [1, mu]])


@pytest.mark.parametrize(
    ("rule", "constants"),
    [
        ("sgd", {}),
        ("sgd", {"momentum": 0.9}),
        ("sgd", {"momentum": 0.95, "nesterov": True}),
        ("adam", {"beta1": 0.9}),
        ("adam", {"beta1": 0.5}),
    ],
)
def test_limits_are_where_a_step_begins_to_grow(rule, constants):
    limit = stability_limit(rule, constants)
    radius = [max(abs(np.linalg.eigvals(matrix_of(rule, constants, limit * part)))) for part in (0.99, 1.01)]
    assert radius[0] < 1 < radius[1]


def test_what_is_refused():
    with pytest.raises(Unsupported, match="LAMB: no stability limit"):
        stability_limit("LAMB", {})
    with pytest.raises(ConfigurationError, match="samples must be 'first' or 'newest', got 'all'"):
        Sharpness(samples="all")
    with pytest.raises(ConfigurationError, match="tolerance"):
        Sharpness(tolerance=0)
