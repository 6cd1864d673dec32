import functools
import math
from dataclasses import replace

import pytest
import torch
from callback_runs import Watcher, follow, graph_run, graph_work, in_one_go_and_in_two
from run_builder import execute
from toys import data, run_of

import descend
from descend.callbacks import PerturbAdam, PerturbDropout, PerturbLearningRate, PerturbWeights, SetLearningRate
from descend.errors import ConfigurationError
from descend.graph import check
from descend.lower import lower
from descend.lower import module as lowered_module
from descend.train import Callback

ADAM = descend.Adam(learn_rate=0.01, beta1=0.9, beta2=0.99, eps=1e-8)


class Graph:
    """A task that is nothing but its module."""

    def __init__(self, module):
        self.module = module


class Options(Callback):
    def after_setup(self, run):
        self.seen = {option: run.control.options(option) for option in ("lr", "beta1", "beta2", "eps")}


def test_adam_s_settings_are_log_normal(tmp_path):
    """Over many seeds log(x / x₀) / factor is N(0, 1), and each parameter has a draw of its own."""
    callback, draws = PerturbAdam(learning_rate_factor=0.5, beta1_factor=0.1, eps_factor=2.0), []
    for seed in range(16):
        work = graph_work(callback, options := Options(), optimizer=ADAM, epochs=0)
        execute(replace(work, seed=seed), tmp_path / str(seed))
        for name, rate in options.seen["lr"].items():
            assert options.seen["beta2"][name] == 0.99
            draws.append(
                (
                    math.log(rate / 0.01) / 0.5,
                    math.log((1 - options.seen["beta1"][name]) / 0.1) / 0.1,
                    math.log(options.seen["eps"][name] / 1e-8) / 2,
                )
            )
    table = torch.tensor(draws)
    assert table.shape == (64, 3)
    assert len({draw for draw, _, _ in draws}) == 64
    assert (table.mean(0).abs() < 4 / 64**0.5).all()
    assert ((table.std(0) - 1).abs() < 4 / 128**0.5).all()


def test_adam_s_perturbed_settings_are_those_of_the_update(tmp_path):
    """The first update of Adam moves every entry by the rate, whatever the gradient; so it shows the rate in force."""

    class Moves(Callback):
        def after_setup(self, run):
            self.rates = run.control.rates()

        def after_backward(self, step):
            self.before = {name: p.detach().clone() for name, p in step.run.control.trained.items()}

        def after_step(self, step):
            if step.step == 1:
                self.moved = {
                    name: (p.detach() - self.before[name]).abs().max().item()
                    for name, p in step.run.control.trained.items()
                }

    moves = Moves()
    graph_run(tmp_path, PerturbAdam(learning_rate_factor=1.0), moves, optimizer=ADAM, epochs=1)
    assert moves.moved == pytest.approx(moves.rates, rel=1e-3)
    assert len(set(moves.rates.values())) == 4


def test_rates_change_during_training_only_where_asked():
    during, before = Watcher(), Watcher()
    for watcher, ask in ((during, True), (before, False)):
        callback = PerturbLearningRate(
            learning_rate_factor=0.3, perturb_during_training=ask, batch_interval=2, weights="bias"
        )
        follow(callback, watcher, epochs=2)
    seen = [entry["bias"] for entry in during.rates]
    assert [len(set(pair)) for pair in (seen[0:2], seen[2:4], seen[4:6], seen[0:6:2])] == [1, 1, 1, 3]
    assert len({entry["bias"] for entry in before.rates}) == 1
    assert {entry["weight"] for entry in during.rates} == {0.1}


def test_a_rate_that_a_schedule_has_brought_to_zero_stays_there():
    watcher = Watcher()
    perturbed = PerturbLearningRate(learning_rate_factor=0.5, perturb_during_training=True)
    follow(SetLearningRate(step=1, val=0.0), perturbed, watcher, epochs=2)
    assert [rates["weight"] > 0 for rates in watcher.rates] == [True] * 3 + [False] * 3


def test_a_rule_without_such_settings_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="no weights have a rule with 'beta1'"):
        graph_run(tmp_path, PerturbAdam(beta1_factor=0.1))


def test_weights_move_with_the_given_probability_and_stay_in_bounds():
    class Keep(Callback):
        def after_setup(self, run):
            self.weights = []
            run.control.set_rate(0.0)

        def after_step(self, step):
            self.weights.append(step.module.weight.detach().clone())

    def moved(**given):
        keep = Keep()
        follow(keep, PerturbWeights(output_name="weight", batch_interval=2, **given), epochs=2)
        return [not torch.equal(a, b) for a, b in zip(keep.weights, keep.weights[1:], strict=False)], keep.weights[-1]

    always, last = moved(lower=-0.1, upper=0.1, scale=5.0, perturb_probability=1.0)
    assert always == [False, True, False, True, False]  # before steps 3 and 5
    assert (last.abs() == 0.1).any()
    assert (last.abs() <= 0.1).all()
    assert moved(lower=-0.1, upper=0.1, scale=5.0, perturb_probability=0.0)[0] == [False] * 5


def test_dropout_needs_a_layer_of_it(tmp_path):
    with pytest.raises(ConfigurationError, match="no Dropout layer"):
        graph_run(tmp_path, PerturbDropout(keep_dropout_factor=0.1))


def test_dropout_keeps_another_share(monkeypatch):
    """The description that the layer is lowered from again has the drawn keep_prob, within [0.5, 1]."""
    kept = []
    for factor in (0.3, 3.0):
        for seed in range(20):
            labels = descend.Input(data_field="labels", name="labels")
            x = descend.Dropout(descend.Input(data_field="labels", name="x"), keep_prob=0.8, name="drop")
            loss = descend.CrossEntropy(x, labels)
            plan = check(descend.Model(0, objective_function=loss), {"labels": (3,)})
            shares = {}

            def lowering(planned, shares=shares):
                shares[planned.name] = getattr(planned.layer, "keep_prob", None)
                return (lambda *inputs: inputs[0]), False

            monkeypatch.setattr(lowered_module, "lowering", lowering)
            module = lower(plan, lambda name: torch.Generator())
            run = run_of(Graph(module), data(), optimizer=torch.optim.SGD([torch.zeros(1)], lr=0.1), seed=seed)
            PerturbDropout(keep_dropout_factor=factor).after_setup(run.views.of_run())
            kept.append((factor, shares["drop"]))
            assert next(layer for layer in plan.layers if layer.name == "drop").layer.keep_prob == 0.8
    small = torch.tensor([math.log((1 - keep) / 0.2) / 0.3 for factor, keep in kept if factor == 0.3])
    assert abs(float(small.mean())) < 4 / 20**0.5
    assert len(set(small.tolist())) == 20
    large = [keep for factor, keep in kept if factor == 3.0]
    assert min(large) == 0.5
    assert max(large) < 1.0


def test_a_run_that_was_stopped_and_continued_is_the_same_run(tmp_path):
    def make():
        rate = PerturbLearningRate(
            learning_rate_factor=0.3, perturb_during_training=True, batch_interval=5, weights="bias"
        )
        weights = PerturbWeights(
            output_name="weight", lower=-1.0, upper=1.0, scale=0.1, perturb_probability=0.5, batch_interval=3
        )
        return [rate, weights]

    whole, parts = in_one_go_and_in_two(tmp_path, make)
    for name, weights in whole.weights.items():
        torch.testing.assert_close(parts.weights[name], weights, rtol=0, atol=0)


# ---- plain modules


def plain(*callbacks, optimizer=torch.optim.Adam, seed=3):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Dropout(0.2), torch.nn.Linear(4, 4), torch.nn.Dropout1d(0.4))
    module.append(torch.nn.Linear(4, 3))
    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    options = {"optimizer": functools.partial(optimizer, lr=0.01), "batch_size": 8, "stop": descend.Steps(2)}
    descend.fit(module, "cross_entropy", (x, y), seed=seed, callbacks=callbacks, **options)
    return module


class Shares(Callback):
    def after_setup(self, run):
        self.seen = [run.module[0].p, run.module[2].p]


def test_dropout_of_a_plain_module_keeps_another_share_and_has_its_own_again():
    """p is multiplied by exp(factor · N(0, 1)), a draw for each layer, and stays in [0, 0.5]."""
    draws = []
    for seed in range(30):
        shares = Shares()
        module = plain(PerturbDropout(keep_dropout_factor=0.2), shares, seed=seed)
        draws.append([math.log(p / before) / 0.2 for p, before in zip(shares.seen, (0.2, 0.4), strict=True)])
        assert (module[0].p, module[2].p) == (0.2, 0.4)
        assert max(shares.seen) <= 0.5
    first, second = torch.tensor(draws).T
    assert abs(float(first.mean())) < 4 / 30**0.5
    assert 0.6 < float(first.std()) < 1.5
    assert not torch.allclose(first, second)
    one = Shares()
    plain(PerturbDropout(keep_dropout_factor=0.2, layers="2"), one)
    assert one.seen[0] == 0.2 != one.seen[1]
    with pytest.raises(ConfigurationError, match="names a layer '5' that does not exist"):
        plain(PerturbDropout(keep_dropout_factor=0.2, layers="5"))


def test_torch_s_adam_is_perturbed_as_ours_is():
    """torch keeps β₁ and β₂ in one option and calls rate and ε as we do."""

    class Groups(Callback):
        def after_setup(self, run):
            self.groups = [dict(group) for group in run.optimizer.param_groups]

    groups = Groups()
    plain(PerturbAdam(learning_rate_factor=0.5, beta1_factor=0.5, beta2_factor=0.5, eps_factor=0.5), groups)
    assert len({group["betas"] for group in groups.groups}) == 4
    assert all(0 <= beta < 1 and beta not in (0.9, 0.999) for group in groups.groups for beta in group["betas"])
    assert all(group["lr"] != 0.01 and group["eps"] != 1e-8 for group in groups.groups)
    with pytest.raises(ConfigurationError, match="no weights have a rule with 'beta1'"):
        plain(PerturbAdam(beta1_factor=0.5), optimizer=torch.optim.SGD)
