import functools

import pytest
import torch
from callback_runs import StopAt
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import descend
from descend import Phase
from descend.errors import ConfigurationError, Stopped
from descend.train import Callback

REAL = torch.randn(24, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 3
NOISE = torch.randn(24, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.generator = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.0), nn.Linear(8, 1))
        self.double()


def judge(gan, real, noise):
    scores = gan.discriminator(torch.cat([real, gan.generator(noise)]))
    truth = torch.cat([torch.ones_like(real[:, :1]), torch.zeros_like(real[:, :1])])
    return bce(scores, truth)


def deceive(gan, real, noise):
    scores = gan.discriminator(gan.generator(noise))
    return bce(scores, torch.ones_like(scores))


def phases(updates=2, judges=None, deceives=None):
    return [
        Phase("discriminator", judge, ["discriminator.*"], optimizer=judges, updates=updates),
        Phase("generator", deceive, ["generator.*"], optimizer=deceives),
    ]


def fit(gan, what=None, *callbacks, epochs=4, data=(REAL, NOISE), **more):
    settings = {
        "optimizer": functools.partial(torch.optim.Adam, lr=0.01),
        "batch_size": 6,
        "shuffle": False,
        "stop": descend.Epochs(epochs),
        "verbose": False,
        **more,
    }
    return descend.fit(gan, what or phases(), data, callbacks=list(callbacks), **settings)


def by_hand(steps, updates=2, judges=None, deceives=None):
    """A plain loop: so many updates of the discriminator, one of the generator, a mini-batch each."""
    gan = Gan()
    usual = functools.partial(torch.optim.Adam, lr=0.01)
    optimizers = {
        "discriminator": (judges or usual)(gan.discriminator.parameters()),
        "generator": (deceives or usual)(gan.generator.parameters()),
    }
    losses = {"discriminator": [], "generator": []}
    for step in range(steps):
        rows = slice(6 * (step % 4), 6 * (step % 4) + 6)
        name = "discriminator" if step % (updates + 1) < updates else "generator"
        gan.zero_grad()
        loss = (judge if name == "discriminator" else deceive)(gan, REAL[rows], NOISE[rows])
        loss.backward()
        optimizers[name].step()
        losses[name].append((step, float(loss.detach())))
    return gan, losses


def same(one, other):
    for (name, p), (_, q) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12, msg=name)


@pytest.mark.parametrize("updates", [1, 2])
def test_phases_are_a_loop_of_two_optimizers(updates):
    gan = Gan()
    result = fit(gan, phases(updates))
    expected, losses = by_hand(16, updates)
    same(gan, expected)
    for row in result.history:
        for name, values in losses.items():
            mine = [value for step, value in values if row["step"] - 4 <= step < row["step"]]
            assert row[name] == pytest.approx(sum(mine) / len(mine), rel=1e-9)
        assert row["learning_rate/discriminator"] == row["learning_rate/generator"] == 0.01
    assert all(p.requires_grad for p in gan.parameters())


def test_each_phase_may_have_an_optimizer_of_its_own_and_a_schedule():
    rate = descend.optim.schedules.WarmupLinear(0.1, 12, 2, initial=0.01)
    own = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    gan = Gan()
    fit(gan, phases(1, own, functools.partial(descend.optim.Adam, lr=rate)))
    expected, _ = by_hand(16, 1, own, functools.partial(descend.optim.Adam, lr=rate))
    same(gan, expected)


def noisy(gan, real, noise):
    return deceive(gan, real, noise + torch.randn_like(noise))


@pytest.mark.parametrize("kind", [torch.optim.Adam, descend.optim.AdamW])
def test_a_run_in_parts_is_the_same_to_the_bit(tmp_path, kind):
    def what():
        first, second = phases()
        return [first, Phase(second.name, noisy, second.weights)]

    optimizer = functools.partial(kind, lr=0.01)
    whole = fit(Gan(), what(), shuffle=True, optimizer=optimizer)
    for step in (3, 8):
        with pytest.raises(Stopped):
            fit(Gan(), what(), StopAt(step), shuffle=True, optimizer=optimizer, run_dir=tmp_path / "run", resume=True)
    parts = fit(Gan(), what(), shuffle=True, optimizer=optimizer, run_dir=tmp_path / "run", resume=True)
    assert all(torch.equal(value, parts.weights[name]) for name, value in whole.weights.items())
    rows = [[{k: v for k, v in row.items() if k != "seconds"} for row in run.history] for run in (whole, parts)]
    assert rows[0] == rows[1]


def test_micro_batches_change_nothing():
    whole, cut = Gan(), Gan()
    fit(whole)
    fit(cut, micro_batch_size=2)
    same(whole, cut)


def test_an_evaluation_has_the_losses_of_all_phases():
    gan = Gan()
    result = fit(gan, valid=(REAL[:6], NOISE[:6]))
    row = result.history[-1]
    assert row["mode"] == "validation"
    with torch.no_grad():
        found = [float(loss(gan, REAL[:6], NOISE[:6])) for loss in (judge, deceive)]
    assert [row["discriminator"], row["generator"]] == pytest.approx(found)
    assert row["objective"] == row["discriminator"]


def test_fields_by_name_and_rates_by_callbacks():
    seen = []

    class Rates(Callback):
        def before_step(self, step):
            step.run.control.set_rate(0.001, ["generator.0.weight"])

        def after_step(self, step):
            seen.append(step.run.control.rates())

    def named(gan, *, real, noise):
        return judge(gan, real, noise)

    what = [Phase("both", named, ["*"])]
    fit(Gan(), what, Rates(), data={"real": REAL, "noise": NOISE})
    assert {rates["generator.0.weight"] for rates in seen} == {0.001}
    assert {rates["generator.0.bias"] for rates in seen} == {0.01}


@pytest.mark.parametrize(
    ("what", "more", "words"),
    [
        ([Phase("a", judge, ["generator.*"])], {}, "weights 'discriminator.0.weight' are trained by no phase"),
        ([*phases(), Phase("c", judge, ["generator.0.bias"])], {}, "are of the phases 'generator' and 'c'"),
        ([Phase("a", judge, ["genrator.*"])], {}, r"'genrator\.\*' matches no trainable weights"),
        ([*phases(), phases()[0]], {}, "two phases have the name 'discriminator'"),
        ([phases()[0], judge], {}, "a list of phases holds phases alone"),
        ([Phase("a", lambda gan: 0.0, ["*"])], {}, "phase 'a': loss .* is called with the module and 2 fields"),
        (
            phases(),
            {"metrics": ["mse"]},
            "metrics of phases are a dict of functions .* by name, measured in evaluations",
        ),
        (phases(), {"metrics": {"generator": judge}}, "metric 'generator' has the name of a phase"),
        (phases(), {"metrics": {"a": 1}}, "'a' is 1"),
        (
            phases(),
            {"strategy": descend.MajorityVote()},
            "strategy: does not go with phases; leave it out, or use Grad",
        ),
        (phases(), {"targets": 1}, "targets: does not go with phases; leave it out"),
    ],
)
def test_what_is_wrong_is_refused(what, more, words):
    gan = Gan()
    with pytest.raises(ConfigurationError, match=words):
        fit(gan, what, **more)
    assert all(p.requires_grad for p in gan.parameters())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Phase("", judge, ["*"]), "name must be a non-empty string"),
        (lambda: Phase("a", "mse", ["*"]), r"loss must be a function \(module, \*fields\)"),
        (lambda: Phase("a", judge, []), "weights is empty"),
        (lambda: Phase("a", judge, "generator.*"), "weights must be a list"),
        (lambda: Phase("a", judge, ["*"], updates=0), "updates must be an integer >= 1"),
        (lambda: Phase("objective", judge, ["*"]), "is that of another entry of a row"),
    ],
)
def test_a_wrong_phase_is_refused(make, words):
    with pytest.raises(ConfigurationError, match=words):
        make()


def test_metrics_are_measured_over_all_samples_of_an_evaluation():
    def distance(gan, real, noise):
        return (gan.generator(noise) - real).abs().sum(), len(real)

    result = fit(Gan(), valid=(REAL, NOISE), metrics={"distance": distance})
    last = [row for row in result.history if row["mode"] == "validation"][-1]
    with torch.no_grad():
        by_hand = (result.module.generator(NOISE) - REAL).abs().sum() / len(REAL)
    assert last["distance"] == pytest.approx(float(by_hand), rel=1e-12)
    assert not any("distance" in row for row in result.history if row["mode"] == "train")


def test_accumulated_mini_batches_are_those_of_one_twice_the_size():
    """24 samples: 4 mini-batches of 6 are 2 updates, as 2 of 12."""
    count = len(REAL) // 12 * 12
    data = (REAL[:count], NOISE[:count])
    two = fit(Gan(), data=data, strategy=descend.GradientAccumulation(every=2))
    one = fit(Gan(), data=data, batch_size=12)
    assert two.steps == one.steps
    for p, q in zip(two.module.parameters(), one.module.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)


def test_local_steps_of_one_process_with_the_mean_are_plain_steps():
    local = fit(Gan(), strategy=descend.LocalSGD(steps=3))
    same(local.module, fit(Gan()).module)
