"""Learning rates over epochs and steps against their closed forms."""

import math

import pytest
import torch
from callback_runs import Watcher, follow, graph_run, in_one_go_and_in_two
from toys import Regression, data

import descend
from descend.callbacks import (
    AdaptiveLearningRate,
    CosineDecayLearningRate,
    CustomLearningRate,
    DropFixedLearningRate,
    LinearGrowthLearningRate,
    OptimizerwiseAdaptiveLearningRate,
    PolyLearningRate,
    SetLearningRate,
    StepLearningRate,
)
from descend.errors import ConfigurationError, Unsupported
from descend.train import Callback

STEPS = 3  # an epoch
START = 0.1


def rates(callback, epochs=8, **settings):
    """The rate of each update."""
    watcher = Watcher()
    follow(callback, watcher, epochs=epochs, **settings)
    (names,) = {tuple(entry) for entry in watcher.rates}
    assert names == ("weight", "bias")
    return [entry["weight"] for entry in watcher.rates]


def by_epoch(callback, epochs=8):
    """The rate of each epoch, which holds for all its updates."""
    all_rates = rates(callback, epochs)
    assert all_rates == [rate for rate in all_rates[::STEPS] for _ in range(STEPS)]
    return all_rates[::STEPS]


def test_step():
    assert by_epoch(StepLearningRate(step=3, amt=0.5)) == pytest.approx([START * 0.5 ** (e // 3) for e in range(8)])


def test_set():
    assert by_epoch(SetLearningRate(step=2, val=0.03)) == [START] * 2 + [0.03] * 6


def test_drop_fixed():
    expected = [START * 0.1 ** ((e >= 2) + (e >= 5)) for e in range(8)]
    assert by_epoch(DropFixedLearningRate(drop_epoch=[2, 5], amt=0.1)) == pytest.approx(expected)


def test_linear_growth():
    expected = [START + (0.5 - START) * min(max(e - 1, 0), 4) / 4 for e in range(8)]
    assert by_epoch(LinearGrowthLearningRate(target=0.5, num_epochs=4, delay=1)) == pytest.approx(expected)


@pytest.mark.parametrize(("given", "steps"), [({"max_iter": 10}, 10), ({"num_epochs": 4}, 4 * STEPS)])
def test_poly(given, steps):
    expected = [(START - 0.01) * (1 - min(t, steps) / steps) ** 2 + 0.01 for t in range(8 * STEPS)]
    assert rates(PolyLearningRate(power=2.0, end_lr=0.01, **given)) == pytest.approx(expected)


def test_cosine():
    def expected(t):
        if t < 5:
            return 0.02 + (0.4 - 0.02) * t / 5
        return 0.1 + (0.4 - 0.1) * 0.5 * (1 + math.cos(math.pi * min(t - 5, 10) / 10))

    callback = CosineDecayLearningRate(
        lr_max=0.4, lr_min=0.1, decay_steps=10, initial_warmup_learning_rate=0.02, warmup_steps=5
    )
    assert rates(callback) == pytest.approx([expected(t) for t in range(8 * STEPS)])


def test_adaptive_waits_for_patience_epochs_beyond_the_best():
    class Scores(Callback):
        """Puts made-up objectives in the place of the real ones."""

        def after_epoch(self, epoch):
            epoch.values["objective"] = [5.0, 4.0, 4.5, 4.0, 6.0, 5.9, 7.0, 7.0][epoch.epoch]

    watcher = Watcher()
    follow(Scores(), AdaptiveLearningRate(patience=1, amt=0.5), watcher, epochs=8)
    # best 4.0 after epoch 1; epochs 2 and 3 are no better, so after epoch 3 the rate falls and the bar is 4.0;
    # 6.0 and 5.9 are no better, so it falls after epoch 5 and the bar is 5.9; 7.0 and 7.0: after epoch 7.
    seen = [entry["weight"] for entry in watcher.rates][::STEPS]
    assert seen == pytest.approx([0.1] * 4 + [0.05] * 2 + [0.025] * 2)


def test_a_change_is_said_with_the_number_of_finished_epochs(capsys):
    follow(StepLearningRate(step=2, amt=0.5), epochs=4)
    lines = [line for line in capsys.readouterr().out.splitlines() if "learning rate" in line]
    assert lines == [
        "Model 0: changing global learning rate to 0.05 at epoch 2",
        "Model 0: changing global learning rate to 0.025 at epoch 4",
    ]


def test_weights_by_name_alone_change_and_the_others_keep_momentum_and_rate():
    """With rate 0 for the bias it stays; the other weights take the very updates of a run without the callback."""

    class Freeze(Callback):
        def before_run(self, run):
            run.control.set_rate(0.0, ["bias"])

    for make in (torch.optim.SGD, descend.optim.SGD):
        one, two = Regression(), Regression()
        two.module.bias.requires_grad_(False)
        follow(Freeze(), task=one, optimizer=make(one.module.named_parameters(), lr=0.1, momentum=0.9))
        follow(task=two, optimizer=make([("weight", two.module.weight)], lr=0.1, momentum=0.9))
        torch.testing.assert_close(one.module.bias, torch.zeros(1, dtype=torch.float64), rtol=0, atol=0)
        torch.testing.assert_close(one.module.weight, two.module.weight, rtol=0, atol=0)


def test_named_weights_alone_follow_a_schedule():
    watcher = Watcher()
    follow(StepLearningRate(weights="bias", step=1, amt=0.5), watcher, epochs=2)
    assert [entry["weight"] for entry in watcher.rates] == [START] * 6
    assert [entry["bias"] for entry in watcher.rates] == [START] * 3 + [START / 2] * 3


def test_unknown_weights_are_refused_before_the_first_step():
    with pytest.raises(ConfigurationError, match="there are no weights 'bia'; did you mean 'bias'"):
        follow(StepLearningRate(weights="bia", step=1, amt=0.5))


def test_optimizerwise_multiplies_each_rate_by_the_ratio_of_norms():
    class Expected(Callback):
        def after_backward(self, step):
            self.before = {name: p.detach().clone() for name, p in step.module.named_parameters()}
            self.gradients = {name: p.grad.clone() for name, p in step.module.named_parameters()}

        def after_step(self, step):
            for name, p in step.module.named_parameters():
                w, g = self.before[name], self.gradients[name]
                ratio = 0.3 * float(w.norm() / g.norm()) if float(w.norm()) > 0 else 1.0
                torch.testing.assert_close(p.detach(), w - 0.1 * ratio * g, rtol=1e-12, atol=0)
            self.checked = step.step

    task, expected = Regression(), Expected()
    optimizer = descend.optim.SGD(task.module.named_parameters(), lr=0.1)
    follow(OptimizerwiseAdaptiveLearningRate(scale=0.3), expected, task=task, optimizer=optimizer)
    assert expected.checked == 6


def test_optimizerwise_refuses_an_optimizer_without_multipliers():
    with pytest.raises(ConfigurationError, match="no option 'lr_mult'"):
        follow(OptimizerwiseAdaptiveLearningRate(scale=0.3))


@pytest.mark.parametrize(
    "make",
    [
        lambda: [LinearGrowthLearningRate(target=0.2, num_epochs=3, weights="weight")],
        lambda: [PolyLearningRate(power=1.0, num_epochs=4, weights="bias")],
        lambda: [AdaptiveLearningRate(patience=0, amt=0.5), StepLearningRate(step=2, amt=0.9, weights="bias")],
    ],
)
def test_a_run_that_was_stopped_and_continued_is_the_same_run(tmp_path, make):
    whole, parts = in_one_go_and_in_two(tmp_path, make)
    for name, weights in whole.weights.items():
        torch.testing.assert_close(parts.weights[name], weights, rtol=0, atol=0)


def test_a_pass_that_is_cut_short_does_not_count():
    """Two epochs and one step: the third epoch is not finished."""
    callback, watcher = StepLearningRate(step=3, amt=0.5), Watcher()
    run = follow(callback, watcher, stop=descend.Steps(7), batches=data(batch_size=4))
    assert run.control.rates() == {"weight": 0.1, "bias": 0.1}


def test_in_a_graph_with_one_rate_for_all(tmp_path, capsys):
    watcher = Watcher()
    graph_run(tmp_path, StepLearningRate(weights="fc1_linearity_weights", step=1, amt=0.5), watcher)
    first, last = watcher.rates[0], watcher.rates[-1]
    assert set(first.values()) == {0.1}
    assert {name for name, rate in last.items() if rate == 0.05} == {"fc1_linearity_weights"}
    assert "changing global learning rate to 0.05 at epoch 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (StepLearningRate, {"amt": 0.5}),
        (StepLearningRate, {"step": 1, "amt": -1.0}),
        (LinearGrowthLearningRate, {"target": 0.5}),
        (PolyLearningRate, {"power": 1.0}),
        (CosineDecayLearningRate, {"decay_steps": 5, "lr_max": 0.1, "lr_min": 0.2}),
        (DropFixedLearningRate, {"drop_epoch": [0, 2], "amt": 0.5}),
        (StepLearningRate, {"stpe": 1}),
        (StepLearningRate, {"step": "often", "amt": 0.5}),
    ],
)
def test_settings_that_make_no_sense_are_refused(kind, given):
    with pytest.raises(ConfigurationError, match=kind.__name__):
        kind(**given)


def test_custom_learning_rate_is_refused_with_what_to_do():
    with pytest.raises(Unsupported, match="set_rate"):
        CustomLearningRate()


class _Setter(Callback):
    def after_step(self, step):
        step.run.control.set_rate(0.5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: CosineDecayLearningRate(lr_max=0.1, lr_min=0.01, decay_steps=20),
        lambda: PolyLearningRate(power=1.0, num_epochs=3, end_lr=0.01),
    ],
    ids=["cosine", "poly"],
)
def test_a_rate_that_is_set_again_before_each_update_is_said_where_another_callback_sets_it(make, recwarn):
    def warned(*others):
        fitted = descend.fit(
            torch.nn.Linear(3, 1),
            "mse",
            (torch.ones(8, 3), torch.ones(8, 1)),
            optimizer=descend.SGD(learn_rate=0.1),
            batch_size=4,
            stop=descend.Epochs(3),
            callbacks=[make(), *others],
            verbose=False,
        )
        assert fitted.steps == 6
        return [str(w.message) for w in (recwarn.pop() for _ in range(len(recwarn)))]

    assert warned() == []
    (text,) = warned(_Setter())
    assert text.startswith(
        f"{type(make()).__name__} sets the learning rate before each update, so another callback that"
    )
    assert "set it to 0.5 had no effect" in text
    assert len(warned(descend.StepLearningRate(step=1, amt=0.5))) == 1
