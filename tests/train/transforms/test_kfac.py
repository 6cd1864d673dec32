"""K-FAC against a reference in NumPy float64 that forms every sample's gradient by hand."""

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import descend
from descend.errors import ConfigurationError, Stopped, Unsupported

DRAW = np.random.default_rng(0)
X, Y = DRAW.normal(size=(12, 5)), DRAW.integers(0, 3, size=12)
IMAGES = DRAW.normal(size=(8, 2, 5, 4))
LABELS = DRAW.integers(0, 3, size=8)


def dense(bias=True):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(5, 4, bias=bias), nn.Tanh(), nn.Linear(4, 3)).double()


def convolutional(**options):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        conv = nn.Conv2d(2, 3, (3, 2), **options)
        size = conv(torch.zeros(1, 2, 5, 4)).numel()
        return nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(size, 3)).double()


def fit(module, x=X, y=Y, kfac=None, steps=3, **options):
    given = {"batch_size": len(x), "shuffle": False, "stop": descend.Steps(steps), **options}
    optimizer = given.pop("optimizer", functools.partial(torch.optim.SGD, lr=0.3, momentum=0.5))
    algorithm = kfac or descend.KFAC()
    loss, data = given.pop("loss", "cross_entropy"), (torch.tensor(x), torch.tensor(y))
    return descend.fit(module, loss, data, optimizer=optimizer, algorithm=algorithm, **given)


# ---- the reference


class Reference:
    """The equations of `descend/train/transforms/kfac.py` for one layer; rows are (samples, positions, ·)."""

    def __init__(self, weight, bias, lr=0.3, momentum=0.5, damping=(0.03, 0.03), decay=0.99, pi=False, bound=1e-3, c=1):
        self.w, self.b, self.lr, self.momentum, self.c = weight, bias, lr, momentum, c
        self.damping, self.decay, self.pi, self.bound = damping, decay, pi, bound
        self.a = self.g = None
        self.velocity = [0.0, 0.0]

    def step(self, rows, errors, counted, damping=None):
        """errors: the gradient of each counted sample's own loss by this layer's output."""
        n, positions = counted.sum(), rows.shape[1]
        a = g = 0.0
        gradient = np.zeros((self.w.shape[0], rows.shape[2] + (self.b is not None)))
        for i in np.flatnonzero(counted):
            for t in range(positions):
                row = np.append(rows[i, t], 1.0) if self.b is not None else rows[i, t]
                a = a + np.outer(row, row) / n
                g = g + np.outer(errors[i, t], errors[i, t]) / (n * positions)
                gradient += np.outer(errors[i, t], row) / n
        self.a = a if self.a is None else self.decay * self.a + (1 - self.decay) * a
        self.g = g if self.g is None else self.decay * self.g + (1 - self.decay) * g
        of_a, of_g = damping or self.damping
        pi = np.sqrt(np.trace(self.a) / len(self.a) / (np.trace(self.g) / len(self.g))) if self.pi else 1.0
        found = np.linalg.solve(self.g + of_g / pi * np.eye(len(self.g)), gradient)
        found = self.c * np.linalg.solve(self.a + of_a * pi * np.eye(len(self.a)), found.T).T
        parts = [found] if self.b is None else [found[:, :-1], found[:, -1]]
        for i, part in enumerate(parts):
            part = part * min(1.0, math.sqrt(self.bound / (np.sum(part**2) * self.lr**2)))
            self.velocity[i] = self.momentum * self.velocity[i] + part
            if i == 0:
                self.w = self.w - self.lr * self.velocity[0].reshape(self.w.shape)
            else:
                self.b = self.b - self.lr * self.velocity[1]


def arrays(layer):
    return layer.weight.detach().numpy().copy(), None if layer.bias is None else layer.bias.detach().numpy().copy()


def probabilities(logits):
    e = np.exp(logits - logits.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def dense_reference(module, x, y, steps, dampings=None, **options):
    first, last = (Reference(*arrays(layer), **options) for layer in (module[0], module[2]))
    counted = y != -100
    for step in range(steps):
        hidden = np.tanh(x @ first.w.T + (0 if first.b is None else first.b))
        error = probabilities(hidden @ last.w.T + last.b) - np.eye(3)[np.where(counted, y, 0)]
        error_hidden = error @ last.w * (1 - hidden**2)
        damping = dampings[step] if dampings else None
        last.step(hidden[:, None], error[:, None], counted, damping)
        first.step(x[:, None], error_hidden[:, None], counted, damping)
    return first, last


def agree(module, *pairs):
    for layer, reference in pairs:
        np.testing.assert_allclose(layer.weight.detach().numpy(), reference.w, rtol=1e-9, atol=1e-12)
        if layer.bias is not None:
            np.testing.assert_allclose(layer.bias.detach().numpy(), reference.b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, {}),
        ({"gradient_bound": math.inf}, {"bound": math.inf}),
        ({"use_pi": True, "gradient_bound": 1.0}, {"pi": True, "bound": 1.0}),
        ({"kronecker_decay": 0.3, "damping_act": 0.5, "damping_err": "0.001"}, {"decay": 0.3, "damping": (0.5, 0.001)}),
        ({"learning_rate_factor": 0.1, "gradient_bound": 9.0}, {"c": 0.1, "bound": 9.0}),
        ({"use_eigen_decomposition": True, "inverse_strategy": "each"}, {}),
    ],
    ids=["defaults", "no bound", "pi", "decay and damping", "factor", "eigenvalues"],
)
def test_dense_layers_step_as_the_reference(given, options, bias):
    module = dense(bias)
    first, last = dense_reference(module, X, Y, 4, **options)
    fit(module, kfac=descend.KFAC(**given), steps=4)
    agree(module, (module[0], first), (module[2], last))


def test_ignored_labels_do_not_count():
    y = Y.copy()
    y[[0, 3, 7]] = -100
    module = dense()
    first, last = dense_reference(module, X, y, 3, bound=1.0)
    fit(module, y=y, kfac=descend.KFAC(gradient_bound=1.0))
    agree(module, (module[0], first), (module[2], last))


def test_a_batch_without_any_label_leaves_everything():
    module = dense()
    before = [p.detach().clone() for p in module.parameters()]
    fit(module, y=np.full(12, -100), steps=2)
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


def test_damping_falls_by_the_recursion():
    """λₜ = (1 − α) λₜ₋₁ + α target from λ₀, once before each step."""
    alpha = 2 * math.log10(0.3 / 0.01) / 5
    act, dampings = 0.3, []
    for _ in range(4):
        act = (1 - alpha) * act + alpha * 0.01
        dampings.append((act, 0.03))
    module = dense()
    first, last = dense_reference(module, X, Y, 4, dampings, bound=1.0)
    kfac = descend.KFAC(damping_act="0.3 0.01", damping_warmup_steps=5, gradient_bound=1.0)
    fit(module, kfac=kfac, steps=4)
    agree(module, (module[0], first), (module[2], last))


def windows(x, kernel, stride, padding, dilation):
    """The windows of a convolution by loops, zeros around the image."""
    height, width = x.shape[2] + 2 * padding[0], x.shape[3] + 2 * padding[1]
    padded = np.zeros((*x.shape[:2], height, width))
    padded[:, :, padding[0] : height - padding[0], padding[1] : width - padding[1]] = x
    found = []
    for i in range(0, height - dilation[0] * (kernel[0] - 1), stride[0]):
        for j in range(0, width - dilation[1] * (kernel[1] - 1), stride[1]):
            entries = [
                padded[:, :, i + dilation[0] * k, j + dilation[1] * m]
                for k in range(kernel[0])
                for m in range(kernel[1])
            ]
            found.append(np.stack(entries, -1).reshape(len(x), -1))
    return np.stack(found, 1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False, "padding": (1, 2), "stride": (2, 1)},
        {"dilation": (2, 1), "padding": (0, 1)},
    ],
)
def test_convolutions_step_as_the_reference(options):
    module = convolutional(**options)
    conv, linear = module[0], module[3]
    reference, last = (Reference(*arrays(layer), bound=1.0) for layer in (conv, linear))
    everyone = np.ones(8, dtype=bool)
    rows = windows(IMAGES, conv.kernel_size, conv.stride, conv.padding, conv.dilation)
    for _ in range(3):
        # (samples, channels, positions), as Flatten orders them
        out = np.einsum("ntk,ok->not", rows, reference.w.reshape(3, -1))
        hidden = np.tanh(out + (0 if reference.b is None else reference.b[:, None]))
        flat = hidden.reshape(8, -1)
        error = probabilities(flat @ last.w.T + last.b) - np.eye(3)[LABELS]
        error_conv = (error @ last.w).reshape(hidden.shape) * (1 - hidden**2)
        last.step(flat[:, None], error[:, None], everyone)
        reference.step(rows, error_conv.transpose(0, 2, 1), everyone)
    fit(module, IMAGES, LABELS, descend.KFAC(gradient_bound=1.0))
    agree(module, (conv, reference), (linear, last))


# ---- the same whatever the split


@given(micro_batch_size=st.integers(1, 12), ignored=st.sets(st.integers(0, 11), max_size=11))
@settings(max_examples=15)
def test_micro_batches_change_nothing(micro_batch_size, ignored):
    y = Y.copy()
    y[sorted(ignored)] = -100
    kfac = descend.KFAC(use_pi=True, gradient_bound=1.0, kronecker_decay=0.5)
    whole, cut = fit(dense(), y=y, kfac=kfac), fit(dense(), y=y, kfac=kfac, micro_batch_size=micro_batch_size)
    for name, value in whole.weights.items():
        torch.testing.assert_close(cut.weights[name], value, rtol=1e-11, atol=1e-12)


def test_micro_batches_change_nothing_where_the_denominator_is_no_whole_number():
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.7, 3.1], dtype=torch.float64))
    whole, cut = fit(dense(), loss=loss), fit(dense(), loss=loss, micro_batch_size=5)
    for name, value in whole.weights.items():
        torch.testing.assert_close(cut.weights[name], value, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("micro_batch_size", [1, 3, 5])
def test_micro_batches_change_nothing_for_convolutions_and_with_clipping(micro_batch_size):
    one = functools.partial(fit, x=IMAGES, y=LABELS, clip_global_norm=0.05)
    whole, cut = one(convolutional(), micro_batch_size=8), one(convolutional(), micro_batch_size=micro_batch_size)
    for name, value in whole.weights.items():
        torch.testing.assert_close(cut.weights[name], value, rtol=1e-11, atol=1e-12)


def test_positions_of_a_sequence_that_are_ignored_do_not_count():
    """What stands at a padded position of a sequence changes nothing."""

    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            with torch.random.fork_rng():
                torch.manual_seed(1)
                self.out = nn.Linear(5, 3).double()

        def forward(self, x):
            return self.out(x).transpose(1, 2)

    x = DRAW.normal(size=(2, 4, 5))
    y = np.array([[0, 1, 2, 1], [2, 0, -100, -100]])
    changed = x.copy()
    changed[1, 2:] = 77.0
    kfac = descend.KFAC(gradient_bound=1.0)
    a, b = fit(Tokens(), x, y, kfac), fit(Tokens(), changed, y, kfac)
    for name, value in a.weights.items():
        torch.testing.assert_close(b.weights[name], value, rtol=1e-12, atol=0)


# ---- intervals and resuming


class Factors(descend.Callback):
    """What is remembered after each step."""

    def after_setup(self, run):
        self.seen = []

    def after_step(self, step):
        state = step.run.control._run.state
        self.seen.append({k: v.clone() for k, v in state.algorithm["kfac"]["0.weight"].items() if hasattr(v, "clone")})


def test_factors_are_renewed_at_intervals_that_grow():
    """1 to 3 over 4 steps: intervals 1, 1, 2, 2, 3, 3, 3, … so steps 1, 2, 3, 7 (multiples of the one in force)."""
    factors = Factors()
    kfac = descend.KFAC(update_intervals="1 3", update_interval_steps=4, kronecker_decay=0.5)
    assert [kfac.interval().at(step) for step in range(1, 8)] == [1, 1, 2, 2, 3, 3, 3]
    fit(dense(), kfac=kfac, steps=7, callbacks=[factors])
    changed = [
        i + 1
        for i in range(1, 7)
        if not torch.equal(factors.seen[i]["A"], factors.seen[i - 1]["A"])
        or not torch.equal(factors.seen[i]["G"], factors.seen[i - 1]["G"])
    ]
    assert changed == [2, 3, 7]


def test_inverses_wait_for_their_interval():
    factors = Factors()
    fit(dense(), kfac=descend.KFAC(compute_interval=3), steps=6, callbacks=[factors])
    inverses = [seen["G_inverse"] for seen in factors.seen]
    assert [torch.equal(a, b) for a, b in itertools.pairwise(inverses)] == [True, True, False, True, True]


class StopAt(descend.Callback):
    def __init__(self, step):
        self.step = step

    def after_step(self, step):
        if step.step == self.step:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGTERM)


def test_stopped_and_continued_ends_in_the_same_bits(tmp_path):
    kfac = descend.KFAC(damping_act="0.3 0.01", update_intervals="2", compute_interval=4, use_pi=True)
    one = functools.partial(fit, kfac=kfac, steps=11, batch_size=5, shuffle=True)
    whole = one(dense())
    for at in (3, 6):
        with pytest.raises(Stopped):
            one(dense(), run_dir=tmp_path, resume=True, callbacks=[StopAt(at)])
    parts = one(dense(), run_dir=tmp_path, resume=True)
    assert all(torch.equal(parts.weights[name], value) for name, value in whole.weights.items())


# ---- which layers, and what cannot be


def test_other_layers_step_by_their_rule_alone_and_are_named(capsys):
    module = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)).double()
    plain = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)).double()
    plain.load_state_dict(module.state_dict())
    loss = nn.functional.cross_entropy(plain(torch.tensor(X)), torch.tensor(Y))
    loss.backward()
    fit(module, kfac=descend.KFAC(disable_layers="2"), steps=1)
    torch.testing.assert_close(module[1].weight, plain[1].weight - 0.3 * plain[1].weight.grad)
    torch.testing.assert_close(module[2].weight, plain[2].weight - 0.3 * plain[2].weight.grad)
    assert not torch.allclose(module[0].weight, plain[0].weight - 0.3 * plain[0].weight.grad)
    said = "K-FAC: factors for 0.weight; not preconditioned: 1.weight, 1.bias, 2.weight, 2.bias"
    assert said in capsys.readouterr().out


def test_grouped_convolutions_and_frozen_weights_have_no_factors(capsys):
    module = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(24, 4), nn.Linear(4, 3)).double()
    module[2].requires_grad_(False)
    fit(module, IMAGES, LABELS, steps=1)
    assert "K-FAC: factors for 3.weight; not preconditioned: 0.weight, 0.bias" in capsys.readouterr().out


def test_a_weight_that_is_used_twice_adds_up_its_uses():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            with torch.random.fork_rng():
                torch.manual_seed(1)
                self.inner, self.out = nn.Linear(5, 5).double(), nn.Linear(5, 3).double()

        def forward(self, x):
            return self.out(torch.tanh(self.inner(torch.tanh(self.inner(x)))))

    whole, cut = (fit(Twice(), micro_batch_size=size) for size in (12, 5))
    for name, value in whole.weights.items():
        torch.testing.assert_close(cut.weights[name], value, rtol=1e-11, atol=1e-12)


def test_a_gradient_that_is_not_finite_leaves_no_trace_in_the_factors():
    x = X.copy()
    x[7] = np.nan
    factors = Factors()
    kfac = descend.KFAC(kronecker_decay=0.5)
    module = dense()
    result = fit(module, x, kfac=kfac, batch_size=4, on_nonfinite="skip", stop=descend.Epochs(2), callbacks=[factors])
    assert result.steps == 4
    assert all(torch.isfinite(value).all() for seen in factors.seen for value in seen.values())


def test_the_rate_of_a_schedule_is_the_one_in_force():
    """κ bounds (lr ‖∇‖)², so a step that meets the bound moves the weights by √κ, whatever the rate is then."""
    schedule = lambda t: 0.5 / (1 + t)  # noqa: E731
    optimizer = functools.partial(descend.optim.SGD, lr=schedule)

    class Moves(descend.Callback):
        def after_setup(self, run):
            self.norms = []

        def before_step(self, step):
            self.before = step.module[0].weight.detach().clone()

        def after_step(self, step):
            self.norms.append(float((step.module[0].weight.detach() - self.before).norm()))

    moves = Moves()
    kfac = descend.KFAC(damping_act=1e-6, damping_err=1e-6, gradient_bound=1e-6)
    fit(dense(), kfac=kfac, optimizer=optimizer, callbacks=[moves])
    assert moves.norms == pytest.approx([1e-3] * 3, rel=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"damping_act": "a lot"}, "damping_act is 'a lot'; expected one or two numbers above 0"),
        ({"damping_action": 1}, "did you mean 'damping_act'"),
    ],
)
def test_settings_out_of_range_are_named(options, message):
    with pytest.raises(ConfigurationError, match=message):
        descend.KFAC(**options)


def test_what_is_not_supported_is_refused_by_name():
    with pytest.raises(Unsupported, match="kfac_use_interval"):
        descend.KFAC(kfac_use_interval="1 2")
    with pytest.raises(ConfigurationError, match="there is no layer 'fc9'"):
        fit(dense(), kfac=descend.KFAC(disable_layers="fc9"))
    with pytest.raises(ConfigurationError, match="no trainable fully connected or convolution layer"):
        fit(nn.Sequential(nn.LayerNorm(5)).double(), y=Y)
    limited = descend.KFAC(first_order_optimizer=descend.BatchedIterativeOptimizer(epoch_count=3))
    with pytest.raises(ConfigurationError, match="has limits of its own"):
        fit(dense(), kfac=limited)


def test_settings_of_other_layers_are_said_to_have_no_effect(capsys):
    fit(dense(), kfac=descend.KFAC(damping_bn_act="1e-2"), steps=1)
    assert "damping_bn_act has no effect" in capsys.readouterr().out


def test_matrices_and_times_are_printed_on_request(capsys):
    fit(dense(), kfac=descend.KFAC(print_time=True, print_matrix_summary=True), steps=1)
    out = capsys.readouterr().out
    assert "K-FAC: step 1: A of 0.weight: 6 x 6, from" in out
    assert "seconds for factors, inverses and products" in out


def test_limits_are_those_of_the_steps_inside():
    stop = descend.Steps(7)
    inner = descend.BatchedIterativeOptimizer(epoch_count=3)
    kfac = descend.KFAC(first_order_optimizer=inner)
    assert kfac.epochs(9) == inner.epochs(9) == 3
    assert kfac.criterion() == inner.criterion()
    assert kfac.criterion() is not None
    limited = descend.KFAC().until(stop)
    assert limited.stop == stop
    assert limited.first_order_optimizer.name == "K-FAC"  # the name that logs have


def test_fields_of_the_text_and_back():
    inner = descend.BatchedIterativeOptimizer(epoch_count=3)
    kfac = descend.KFAC(first_order_optimizer=inner, damping_bn_act=(0.1, 0.01), damping_act="1e-2", use_pi=True)
    fields = kfac.to_fields()
    assert "first_order_optimizer" not in fields
    assert (fields["damping_bn_act"], fields["use_pi"]) == ("0.1 0.01", True)
    unset = ("enable_copy_errors", "enable_copy_activations", "learning_rate_factor_gru")
    assert not any(fields[name] for name in (*unset, "distribute_precondition_compute"))
    steps = fields["sgd"].to_fields()
    assert "name" in inner.to_fields()
    assert steps == {name: value for name, value in inner.to_fields().items() if name != "name"}
    assert descend.KFAC.from_fields({**fields, "sgd": inner}) == kfac
    assert descend.KFAC.from_fields({"kronecker_decay": 0.0, "damping_act": ""}) == descend.KFAC()


def test_settings_without_effect_are_those_that_are_set():
    assert descend.KFAC().without_effect() == []
    named = descend.KFAC(damping_bn_err=0.1, learning_rate_factor_gru=2.0).without_effect()
    assert [line.split()[1] for line in named] == ["damping_bn_err", "learning_rate_factor_gru"]
