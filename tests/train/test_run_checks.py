"""What a run did not do is said: updates, weights that are not updated, callbacks whose time never comes."""

import functools
import re
import warnings

import pytest
import torch
from torch import nn

import descend
from descend import EMA, SWA, Callback, EarlyStopping, GradientAccumulation
from descend.errors import ConfigurationError
from descend.train.stopping import Limit, limit_of
from descend.train.transforms.base import GradientTransform, Withheld

DRAWS = torch.Generator().manual_seed(0)
X, Y = torch.randn(12, 4, generator=DRAWS), torch.arange(12) % 3
SGD = functools.partial(torch.optim.SGD, lr=0.1)


def net(*more):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), *more, nn.Linear(4, 3))


def fit(*callbacks, module=None, scale=1.0, epochs=2, **more):
    """A run of three mini-batches per epoch, with what it warned of."""
    settings = {"optimizer": SGD, "batch_size": 4, "stop": descend.Epochs(epochs), "verbose": False, **more}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        module = net() if module is None else module
        result = descend.fit(module, "cross_entropy", (X * scale, Y), callbacks=list(callbacks), **settings)
    return result, [str(one.message) for one in said]


# ---- no update


@pytest.mark.parametrize(
    ("every", "stop", "batches"),
    [
        (4, descend.Epochs(1), "3 mini-batches (1 epoch of 3): set it to 3"),
        (10, descend.Epochs(3), "9 mini-batches (3 epochs of 3): set it to 9"),
        (10, descend.Epochs(3) | descend.Seconds(1000), "9 mini-batches"),
        (10, descend.Seconds(1000) | (descend.Epochs(3) & descend.Epochs(2)), "9 mini-batches"),
        (lambda update: 7, descend.Epochs(2), "6 mini-batches"),
    ],
)
def test_a_window_longer_than_the_run_is_refused_before_anything_starts(every, stop, batches, tmp_path):
    with pytest.raises(ConfigurationError, match="makes no update in this run of") as caught:
        fit(strategy=GradientAccumulation(every=every), stop=stop, run_dir=tmp_path / "run")
    assert batches in str(caught.value)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "run").exists()


def test_a_window_that_fits_is_trained_and_the_rest_is_counted(capsys, tmp_path):
    result, said = fit(strategy=GradientAccumulation(every=4), verbose=True, run_dir=tmp_path / "run")
    assert (result.steps, said) == (1, [])
    line = "2 of the 4 mini-batches of the next update by GradientAccumulation, 8 samples, are left over"
    assert line in capsys.readouterr().out
    assert line in (tmp_path / "run" / "log.txt").read_text()
    again, said = fit(
        strategy=GradientAccumulation(every=4), epochs=3, verbose=True, run_dir=tmp_path / "run", resume=True
    )
    assert (again.steps, said) == (2, [])
    assert "1 of the 4 mini-batches" in capsys.readouterr().out


class Withholds(GradientTransform):
    def __call__(self, gradients):
        return Withheld("none is wanted")


class StopsAtOnce(Callback):
    def before_run(self, run):
        run.control.stop("enough")


WITHOUT = {
    "float16 that overflows": (
        {"precision": descend.AutomaticMixedPrecision(enabled=True, init_scale=2.0**40)},
        "6 mini-batches skipped.*: the loss scale was too large",
    ),
    "skipped": ({"on_nonfinite": "skip", "scale": float("nan")}, "6 mini-batches skipped.* is not finite"),
    "withheld": ({"transforms": [Withholds()]}, "6 mini-batches skipped.*: none is wanted"),
    "with K-FAC": (
        {"algorithm": descend.KFAC(damping_act=0.1), "on_nonfinite": "skip", "scale": float("nan")},
        "6 mini-batches skipped",
    ),
}


@pytest.mark.parametrize("what", WITHOUT)
def test_a_run_without_an_update_says_so_in_its_reason_and_warns(what):
    options, cause = WITHOUT[what]
    module = net()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    result, said = fit(module=module, **options)
    assert result.steps == 0
    assert re.match(rf"finished 2 of 2 epochs, without an update: {cause}", result.reason)
    assert [line for line in said if line.startswith("no update was made, and all weights are what they were: ")]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_run_that_a_callback_stops_before_its_first_step_says_so():
    result, said = fit(StopsAtOnce())
    assert result.reason == "enough, without an update: no mini-batch was trained on"
    assert len(said) == 1


@pytest.mark.parametrize(
    "stop", [descend.Epochs(0), descend.Steps(0), descend.Seconds(0), descend.Epochs(0) | descend.Steps(9)]
)
def test_a_limit_of_zero_evaluates_and_one_line_says_so(stop):
    result, said = fit(stop=stop, test=(X, Y))
    assert [row["mode"] for row in result.history][-1] == "test"
    assert "without an update" in result.reason
    assert said == [f"stop={stop!r}: this run makes no update, it only evaluates"]


def test_a_finished_run_that_is_resumed_makes_no_update_and_that_is_right(tmp_path):
    fit(run_dir=tmp_path / "run")
    result, said = fit(run_dir=tmp_path / "run", resume=True)
    assert (result.reason, result.steps, said) == ("finished 2 of 2 epochs", 6, [])
    text = (tmp_path / "run" / "log.txt").read_text()
    assert text.count("no update was made: the run that is continued had come to its end, finished 2 of 2 epochs") == 1


# ---- updates without effect


class Frozen(Callback):
    def after_epoch(self, epoch):
        epoch.run.module.requires_grad_(False)


UNCHANGED = {
    "a rate of 0": {"optimizer": functools.partial(torch.optim.SGD, lr=0.0)},
    "a schedule of 0": {"optimizer": functools.partial(descend.optim.SGD, lr=lambda update: 0.0)},
    "a clip to nothing": {"clip_global_norm": 1e-30},
    "weights too coarse for the rate": {"optimizer": functools.partial(torch.optim.SGD, lr=1e-12)},
}


@pytest.mark.parametrize("what", UNCHANGED)
def test_updates_that_change_nothing_are_warned_of(what):
    result, said = fit(**UNCHANGED[what])
    assert result.steps == 6
    [line] = [line for line in said if "changed no weight" in line]
    assert line.startswith("6 updates changed no weight: look at the learning rate")


def test_several_trainers_are_warned_of_each(tmp_path):
    _, said = fit(**UNCHANGED["a rate of 0"], trainers=2)
    assert len([line for line in said if "6 updates changed no weight" in line]) >= 1


def test_an_ordinary_run_has_nothing_to_say():
    for options in ({}, {"strategy": GradientAccumulation(every=3)}, {"stop": descend.Steps(4)}, {"epochs": 5}):
        assert fit(EMA(0.9), **options)[1] == []


# ---- weights that are not updated


class Thaws(Callback):
    def after_epoch(self, epoch):
        epoch.run.module[0].requires_grad_(True)


class Replaces(Callback):
    def __init__(self, hook="after_epoch"):
        setattr(self, hook, self.replace)

    def replace(self, view):
        module = view.run.module
        if not isinstance(module[0], nn.Identity) and module[0].weight.shape != (4, 4, 1):
            module[0] = nn.Linear(4, 4)


def test_weights_that_are_thawed_within_a_run_are_named_once():
    module = net()
    module[0].requires_grad_(False)
    kept = module[0].weight.detach().clone()
    _, said = fit(Thaws(), module=module, epochs=4)
    [line] = said
    assert line.startswith(
        "'0.weight', '0.bias': not updated by the optimizer, because a callback thawed or replaced it"
    )
    assert torch.equal(kept, module[0].weight)


@pytest.mark.parametrize("hook", ["after_epoch", "before_epoch"])
def test_a_layer_that_is_replaced_within_a_run_is_named(hook):
    _, said = fit(Replaces(hook), epochs=3)
    assert [line for line in said if line.startswith("'0.weight', '0.bias': not updated by the optimizer")]


def test_a_change_in_the_last_epoch_is_seen_before_the_end():
    class Late(Callback):
        def after_epoch(self, epoch):
            if epoch.finished == 2:
                epoch.run.module[0] = nn.Linear(4, 4)

    assert "'0.weight', '0.bias': not updated" in fit(Late())[1][0]


def test_weights_that_are_all_frozen_within_a_run_are_said():
    _, said = fit(Frozen(), epochs=4)
    assert said == ["no weights are trained any more: a callback froze or replaced all of them within the run"]


def test_what_alternates_is_not_taken_for_frozen():
    phases = [
        descend.Phase("one", lambda module, x, y: module(x).square().mean(), weights=["0.*"]),
        descend.Phase("two", lambda module, x, y: module(x).abs().mean(), weights=["1.*"]),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        descend.fit(net(), phases, (X, Y), optimizer=SGD, batch_size=4, stop=descend.Epochs(3), verbose=False)
    assert fit(descend.AlternateUpdates(layers_1="0", layers_2="1", iters_1=1, iters_2=1), epochs=3)[1] == []


# ---- callbacks that come too late

LATE = {
    "SWA": (SWA(start_epoch=99), "SWA: start_epoch=99 has no effect, it acts for the first time after 100 epochs"),
    "SWA of the next epoch": (SWA(start_epoch=2), "SWA: start_epoch=2 has no effect"),
    "EMA by its start": (
        EMA(start_step=7),
        "EMA: start_step=7 has no effect, it acts for the first time after 7 updates",
    ),
    "EMA by its interval": (EMA(every_steps=7), "EMA: every_steps=7 has no effect"),
    "patience": (EarlyStopping(monitor="train/objective", patience=1), "EarlyStopping: patience=1 has no effect"),
    "step rate": (descend.StepLearningRate(step=2, amt=0.5), "StepLearningRate: step=2 has no effect"),
    "set rate": (descend.SetLearningRate(step=5, val=0.5), "SetLearningRate: step=5 has no effect"),
    "dropped rate": (descend.DropFixedLearningRate(drop_epoch=(3, 4), amt=0.5), "drop_epoch=[3, 4] has no effect"),
    "growth": (descend.LinearGrowthLearningRate(target=1, num_epochs=3, delay=4), "delay=4 has no effect"),
    "adaptive": (descend.AdaptiveLearningRate(patience=3, amt=0.5), "AdaptiveLearningRate: patience=3 has no effect"),
    "norms": (descend.GradientNorm(every_steps=7), "GradientNorm: every_steps=7 has no effect"),
    "weights": (descend.SetWeightsValue(weights="0.bias", value=1, step=6), "SetWeightsValue: step=6 has no effect"),
}
IN_TIME = {
    "SWA": SWA(start_epoch=1),
    "EMA by its start": EMA(start_step=6),
    "EMA by its interval": EMA(every_steps=6),
    "patience": EarlyStopping(monitor="train/objective", patience=0),
    "patience that restores": EarlyStopping(monitor="train/objective", patience=9, restore_best=True),
    "step rate": descend.StepLearningRate(step=1, amt=0.5),
    "dropped rate": descend.DropFixedLearningRate(drop_epoch=(1, 4), amt=0.5),
    "norms": descend.GradientNorm(every_steps=6),
    "weights": descend.SetWeightsValue(weights="0.bias", value=1, step=5),
}


@pytest.mark.parametrize("what", LATE)
@pytest.mark.parametrize("stop", [descend.Epochs(2), descend.Steps(6), descend.Epochs(2) | descend.Seconds(999)])
def test_what_begins_after_the_end_is_said_before_training(what, stop):
    callback, line = LATE[what]
    _, said = fit(callback, stop=stop)
    assert [one for one in said if line in one and one.endswith(("ends after 2", "ends after 6"))], said


@pytest.mark.parametrize("what", IN_TIME)
def test_what_begins_in_time_is_not(what):
    assert fit(IN_TIME[what])[1] == []


def test_where_the_end_is_not_known_an_average_that_never_began_is_said_at_the_end():
    class StopsEarly(Callback):
        def after_step(self, step):
            if step.step == 4:
                step.run.control.stop("enough")

    _, said = fit(SWA(start_epoch=3), StopsEarly(), stop=descend.Epochs(9))
    [line] = said
    assert line == "SWA had no effect: no weights were averaged before the run ended after 4 updates and 1 epoch"


def test_windows_count_in_updates():
    _, said = fit(EMA(start_step=3), strategy=GradientAccumulation(every=3))
    assert "it acts for the first time after 3 updates and this run ends after 2" in said[0]


# ---- other settings


def test_a_warmup_that_is_longer_than_the_run_is_said():
    def with_warmup(steps):
        rate = descend.optim.schedules.Ramp(0.01, 0.1, steps)
        return fit(optimizer=functools.partial(descend.optim.SGD, lr=rate))[1]

    assert "still rises in the last of 6 updates, from 0.01 to 0.0109: the warm-up of Ramp(" in with_warmup(500)[0]
    assert with_warmup(5) == []

    def with_callback(steps):
        cosine = descend.CosineDecayLearningRate(lr_max=0.1, lr_min=0.01, decay_steps=9, warmup_steps=steps)
        return fit(cosine)[1]

    assert "the warm-up of CosineDecayLearningRate(" in with_callback(500)[0]
    assert with_callback(5) == []


def test_a_schedule_free_rule_with_batch_norm_is_warned_of_as_swa_is():
    free = functools.partial(descend.optim.ScheduleFreeSGD, lr=0.1)
    [line] = fit(module=net(nn.BatchNorm1d(4)), optimizer=free)[1]
    assert line.startswith("ScheduleFreeSGD is evaluated at an average of the weights, and '1.running_mean' is of the")
    assert fit(module=net(), optimizer=free)[1] == []


def test_a_metric_that_is_not_measured_is_refused_and_one_that_never_came_is_said(tmp_path):
    keep = {"valid": (X, Y), "metrics": ["accuracy"]}
    for metric, words in (
        ("validation/accurcy", "did you mean 'validation/accuracy'"),
        ("test/objective", "this run records"),
    ):
        checkpoint = descend.Checkpoint(keep_best=metric, best="highest")
        with pytest.raises(ConfigurationError, match=words):
            fit(checkpoint, **keep, run_dir=tmp_path / metric.replace("/", "-"))
    _, said = fit(descend.Checkpoint(keep_best="test/objective"), test=(X, Y), run_dir=tmp_path / "test")
    assert said == [
        "Checkpoint: 'test/objective' was a number after none of 2 epochs, so no epoch was chosen as the best"
    ]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"workers": 2}, "workers=2 has no effect: the training data are tensors in memory"),
        ({"skip_bad": 3}, "skip_bad=3 has no effect"),
        ({"timeout_seconds": 3.0}, "timeout_seconds=3.0 has no effect"),
        ({"tournament": (X, Y)}, "tournament= has no effect: these samples are for algorithm=descend.LTFB"),
        ({"shard_optimizer": True}, "shard_optimizer=True has no effect: this run has one rank"),
    ],
)
def test_an_argument_that_nothing_uses_is_said(options, line):
    [said] = fit(**options)[1]
    assert said.startswith(line)


@pytest.mark.parametrize(
    ("stop", "limit"),
    [
        (descend.Steps(5), Limit(5, None)),
        (descend.Epochs(3), Limit(None, 3)),
        (descend.Epochs(3) | descend.Steps(5) | descend.Epochs(2), Limit(5, 2)),
        (descend.Epochs(3) & descend.Epochs(2), Limit(None, 3)),
        (descend.Epochs(3) & descend.Steps(5), Limit(None, None)),
        (descend.Seconds(3), Limit(None, None)),
        (descend.Seconds(0), Limit(0, None)),
        (descend.Reached("train/objective", 0.1), Limit(None, None)),
        (type("Mine", (descend.Epochs,), {})(3), Limit(None, None)),
    ],
)
def test_how_far_a_criterion_lets_a_run_go(stop, limit):
    assert limit_of(stop) == limit


def test_a_schedule_of_torch_that_nothing_steps_is_said():
    made = []

    def optimizer(params):
        sgd = torch.optim.SGD(params, lr=0.1)
        made.append(torch.optim.lr_scheduler.LinearLR(sgd, 0.5, total_iters=4))
        return sgd

    class Stepped(Callback):
        def after_step(self, step):
            made[-1].step()

    (text,) = fit(optimizer=optimizer)[1]
    assert text.startswith(
        "a schedule of torch was made for the optimizer and had no effect: the learning rate stayed 0.05"
    )
    assert fit(Stepped(), optimizer=optimizer)[1] == []
