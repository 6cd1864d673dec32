from itertools import pairwise

import numpy as np
import pytest
import torch
from callback_runs import follow, graph_run, in_one_go_and_in_two, samples, work_of

import descend
from descend.callbacks import AlternateUpdates, ClipGradientNorm, Mixup, ReplaceWeights, SetWeightsValue
from descend.errors import ConfigurationError
from descend.experiment.runner import execute
from descend.train import Callback


class Keep(Callback):
    """Keeps gradients after the callbacks before it, and weights after each step."""

    def after_setup(self, run):
        self.gradients, self.weights, self.fields = [], [], []

    def before_step(self, step):
        self.fields.append(step.run.control.batch.fields)

    def after_backward(self, step):
        self.gradients.append({name: g.clone() for name, g in step.gradients.items()})

    def after_step(self, step):
        self.weights.append({name: w.detach().clone() for name, w in step.run.control.weights.items()})


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("value", [0.05, 1e9])
def test_clipping_against_torch_s_own(together, value):
    before, after = Keep(), Keep()
    follow(before, ClipGradientNorm(global_norm=together, value=value), after, epochs=1)
    for given, clipped in zip(before.gradients, after.gradients, strict=True):
        parameters = {name: torch.nn.Parameter(torch.zeros_like(g)) for name, g in given.items()}
        for name, p in parameters.items():
            p.grad = given[name].clone()
        for some in [list(parameters.values())] if together else [[p] for p in parameters.values()]:
            torch.nn.utils.clip_grad_norm_(some, value)
        for name, p in parameters.items():
            torch.testing.assert_close(clipped[name], p.grad, rtol=1e-4, atol=0)  # torch divides by norm + 1e-6


def test_clipping_named_weights_leaves_the_others():
    before, after = Keep(), Keep()
    follow(before, ClipGradientNorm(weights="bias", value=0.01), after, epochs=1)
    assert float(after.gradients[0]["bias"].norm()) == pytest.approx(0.01)
    torch.testing.assert_close(after.gradients[0]["weight"], before.gradients[0]["weight"], rtol=0, atol=0)


def test_zero_gradients_stay_zero():
    class Zero(Callback):
        def after_backward(self, step):
            step.module.weight.grad.zero_()

    after = Keep()
    follow(Zero(), ClipGradientNorm(value=1.0), after, epochs=1)
    assert not after.gradients[0]["weight"].any()


def test_mixup_mixes_samples_and_labels_alike(tmp_path):
    keep = Keep()
    graph_run(tmp_path, Mixup(layers="images", alpha=0.5), keep)
    original = samples(20)
    pictures = original["samples"].reshape(20, -1)
    for fields in keep.fields:
        for x, y in zip(fields["samples"].reshape(-1, 16), fields["labels"], strict=True):
            found = [_share(x, pictures[i], pictures[j]) for i in range(20) for j in range(20)]
            share, i, j = min((error, share, n // 20, n % 20) for n, (error, share) in enumerate(found))[1:]
            assert 0.5 <= share <= 1
            expected = share * original["labels"][i] + (1 - share) * original["labels"][j]
            np.testing.assert_allclose(y, expected, atol=1e-5)
    assert any(not np.isin(fields["samples"], pictures).all() for fields in keep.fields)


def _share(x, a, b):
    """How near x is to λ a + (1 − λ) b with the best λ, and that λ, at least a half."""
    direction = a - b
    size = float(direction @ direction)
    share = float((x - b) @ direction) / size if size else 1.0
    if share < 0.5:
        return float("inf"), share
    return float(np.abs(x - share * a - (1 - share) * b).max()), min(share, 1.0)


def test_mixup_is_the_same_after_a_restart_and_off_at_zero(tmp_path):
    whole, parts = in_one_go_and_in_two(tmp_path, lambda: [Mixup(alpha=0.4)])
    torch.testing.assert_close(parts.weights["weight"], whole.weights["weight"], rtol=0, atol=0)
    plain, off = follow(epochs=1), follow(Mixup(alpha=0.0), epochs=1)
    torch.testing.assert_close(plain.task.module.weight, off.task.module.weight, rtol=0, atol=0)


def test_mixup_refuses_layers_that_are_no_input(tmp_path):
    with pytest.raises(ConfigurationError, match="'fc1' is not an Input; there are images, labels"):
        graph_run(tmp_path, Mixup(layers="fc1", alpha=0.5))


def test_updates_alternate(tmp_path):
    keep = Keep()
    result = graph_run(tmp_path, AlternateUpdates(layers_1="fc1", layers_2="fc2", iters_1=2, iters_2=1), keep, epochs=2)
    before = keep.weights[0]
    for step, after in enumerate(keep.weights[1:], start=1):
        moved = {name[:3] for name in after if not torch.equal(before[name], after[name])}
        assert moved == ({"fc2"} if step % 3 == 2 else {"fc1"}), step
        before = after
    assert all(p.requires_grad for p in result.module.parameters())


def test_an_identity_zero_gives_zeros_while_the_others_train(tmp_path):
    class Gate(Callback):
        """Keeps whether the gate was open in each step."""

        def after_setup(self, run):
            self.open = []

        def before_step(self, step):
            step.watch.layers(["gate"])

        def after_step(self, step):
            self.open.append(bool(step.watch.outputs("gate")[0].any()))

    x, y = descend.Input(data_field="samples", name="x"), descend.Input(data_field="labels", name="y")
    h = descend.FullyConnected(x, num_neurons=3, name="fc1")
    gate = descend.IdentityZero(descend.FullyConnected(x, num_neurons=3, name="fc2"), name="gate")
    loss = descend.MeanSquaredError(descend.Add(h, gate), y, name="loss")
    keep, watch = Keep(), Gate()
    callback = AlternateUpdates(layers_1="fc1", layers_2="fc2 gate", iters_1=2, iters_2=1)
    metric = descend.Metric(descend.L1Norm(gate, name="size"), name="size")
    model = descend.Model(2, objective_function=loss, metrics=[metric], callbacks=[callback, keep, watch])
    result = execute(work_of(model), tmp_path / "run")
    assert watch.open == [False, False, True] * 2
    for (before, after), is_open in zip(pairwise(keep.weights), watch.open[1:], strict=True):
        moved = {name[:3] for name in after if not torch.equal(before[name], after[name])}
        assert moved == ({"fc2"} if is_open else {"fc1"})
    assert [row["size"] > 0 for row in result.history if row["mode"] == "test"] == [True]


def test_layers_that_share_nothing_but_exist_are_required(tmp_path):
    with pytest.raises(ConfigurationError, match="weights 'fc1_linearity_weights' belong to layers of both sets"):
        graph_run(tmp_path, AlternateUpdates(layers_1="fc1", layers_2="fc1 fc2", iters_1=1, iters_2=1))
    with pytest.raises(ConfigurationError, match="no layer 'fc3'"):
        graph_run(tmp_path, AlternateUpdates(layers_1="fc1", layers_2="fc3", iters_1=1, iters_2=1))


def test_weights_are_replaced_every_so_many_steps():
    class Twins(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(3, 1, dtype=torch.float64), torch.nn.Linear(3, 1, dtype=torch.float64)

        def forward(self, x):
            return self.a(x) + self.b(x)

    from toys import Regression

    task, keep = Regression(), Keep()
    task.module = Twins()
    optimizer = descend.optim.SGD(task.module.named_parameters(), lr=0.1)
    follow(
        ReplaceWeights(source_layers="a", destination_layers="b", batch_interval=2),
        keep,
        task=task,
        optimizer=optimizer,
    )
    same = [torch.equal(weights["a.weight"], weights["b.weight"]) for weights in keep.weights]
    assert same[1::2] == [True] * 3  # both get the same gradient, so they are equal from the second step on
    assert same[0] is False


def test_replacing_needs_equal_shapes(tmp_path):
    with pytest.raises(ConfigurationError, match=r"\(5, 16\).*\(3, 5\)"):
        graph_run(tmp_path, ReplaceWeights(source_layers="fc1", destination_layers="fc2"))


def test_a_value_is_set_before_the_step_that_follows_so_many_updates():
    class Before(Callback):
        def after_setup(self, run):
            self.seen = []

        def after_backward(self, step):
            self.seen.append(step.module.weight.detach().clone())

    before = Before()
    follow(SetWeightsValue(weights="weight", value=0.25, step=2), before, epochs=1)
    assert [bool((weight == 0.25).all()) for weight in before.seen] == [False, False, True]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (ClipGradientNorm, {}),
        (Mixup, {"alpha": -1.0}),
        (AlternateUpdates, {"layers_1": "a", "layers_2": "b", "iters_1": 1}),
        (ReplaceWeights, {"source_layers": "a"}),
        (SetWeightsValue, {"value": 1.0}),
    ],
)
def test_settings_that_make_no_sense_are_refused(kind, given):
    with pytest.raises(ConfigurationError, match=kind.__name__):
        kind(**given)
