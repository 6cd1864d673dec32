"""Callbacks that put other weights in around an evaluation: training never notices, whatever their number and order."""

import copy
import functools
import itertools

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import descend
from descend import EMA, SWA, Callback, Checkpoint, EarlyStopping
from descend.errors import ConfigurationError, NumericalError
from descend.train import Mode

DRAWS = torch.Generator().manual_seed(3)
X, V = (torch.randn(12, 4, dtype=torch.float64, generator=DRAWS) for _ in range(2))
Y, W = (torch.randint(0, 3, (12,), generator=DRAWS) for _ in range(2))
EPOCHS = 5


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()


def fit(module, *callbacks, epochs=EPOCHS, **more):
    settings = {"optimizer": functools.partial(torch.optim.SGD, lr=0.3), "batch_size": 4, "shuffle": False, **more}
    stop = descend.Epochs(epochs)
    options = {"stop": stop, "callbacks": list(callbacks), "verbose": False, **settings}
    return descend.fit(module, "cross_entropy", (X, Y), valid=(V, W), **options)


def objectives(result, mode, name="objective"):
    return [row[name] for row in result.history if row["mode"] == mode and name in row]


MAKE = {
    "ema_0.9": lambda: EMA(0.9),
    "ema_0.5": lambda: EMA(0.5),
    "swa_2": lambda: SWA(start_epoch=2, average_buffers=True),
}


@functools.cache
def by_hand():
    """A loop in torch with its own averages: weights, and the objective of each epoch for training and each average."""
    module = net()
    averages = {
        "ema_0.9": AveragedModel(module, use_buffers=True, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
        "ema_0.5": AveragedModel(module, use_buffers=True, multi_avg_fn=get_ema_multi_avg_fn(0.5)),
        "swa_2": AveragedModel(module, use_buffers=True),
    }
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
    found = {name: [] for name in ("train", "plain", *averages)}
    for epoch in range(EPOCHS):
        module.train()
        losses = []
        for at in range(0, 12, 4):
            optimizer.zero_grad()
            loss = cross_entropy(module(X[at : at + 4]), Y[at : at + 4])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            for name in ("ema_0.9", "ema_0.5"):
                averages[name].update_parameters(module)
        if epoch >= 2:
            averages["swa_2"].update_parameters(module)
        found["train"].append(sum(losses) / 3)
        with torch.no_grad():
            for name, model in {"plain": module, **averages}.items():
                begun = name != "swa_2" or epoch >= 2
                model.eval()
                found[name].append(cross_entropy(model(V), W).item() if begun else found["plain"][-1])
    weights = {name: copy.deepcopy(model.module.state_dict()) for name, model in averages.items()}
    return found, {"plain": module.state_dict(), **weights}


def same_weights(ours, theirs):
    for name, value in theirs.items():
        if value.is_floating_point():
            torch.testing.assert_close(ours[name], value, rtol=1e-12, atol=1e-13)


ORDERS = [names for n in (1, 2, 3) for names in itertools.permutations(MAKE, n)]


@pytest.mark.filterwarnings("ignore:SWA")
@pytest.mark.parametrize("names", ORDERS, ids="+".join)
def test_each_average_is_torchs_and_training_is_that_of_none(names):
    module = net()
    result = fit(module, *(MAKE[name]() for name in names))
    found, weights = by_hand()
    assert objectives(result, "train") == pytest.approx(found["train"], rel=1e-12)
    first, *others = names
    assert objectives(result, "validation") == pytest.approx(found[first], rel=1e-12)
    same_weights(module.state_dict(), weights[first])
    assert list(result.averages) == others
    for name in others:
        expected = found[name][2:] if name == "swa_2" else found[name]
        assert objectives(result, "validation", f"{name}/objective") == pytest.approx(expected, rel=1e-12)
        same_weights(result.averages[name], weights[name])


@pytest.mark.filterwarnings("ignore:SWA")
@pytest.mark.parametrize("names", [("ema_0.9", "ema_0.5"), ("swa_2", "ema_0.5"), ("ema_0.5", "swa_2", "ema_0.9")])
def test_a_checkpoint_has_all_averages_by_name_and_a_run_in_parts_is_the_same(names, tmp_path):
    whole = fit(net(), *(MAKE[name]() for name in names), run_dir=tmp_path / "whole")
    fit(net(), *(MAKE[name]() for name in names), epochs=3, run_dir=tmp_path / "parts")
    swapped = [MAKE[name]() for name in (names[0], *reversed(names[1:]))]
    parts = fit(net(), *swapped, run_dir=tmp_path / "parts", resume=True)
    assert all(torch.equal(value, parts.weights[name]) for name, value in whole.weights.items())
    assert objectives(whole, "train") == objectives(parts, "train")
    _, weights = by_hand()
    for name in names:
        descend.load_weights(module := net(), tmp_path / "parts", which="last", averaged=name)
        same_weights(module.state_dict(), weights[name])
    with pytest.raises(ConfigurationError, match=f"there is no average 'ema_0.7'.*{names[-1]}"):
        descend.load_weights(net(), tmp_path / "parts", which="last", averaged="ema_0.7")


@pytest.mark.filterwarnings("ignore:SWA")
@pytest.mark.parametrize("names", [("ema_0.5", "ema_0.9"), ("ema_0.9", "swa_2")])
def test_a_kept_checkpoint_holds_training_and_the_averages(names, tmp_path):
    averages = [MAKE[name]() for name in names]
    result = fit(net(), *averages, Checkpoint(keep_best="validation/objective", every_epochs=1), run_dir=tmp_path)
    descend.load_weights(module := net(), tmp_path)
    objective = descend.evaluate(module, "cross_entropy", (V, W), batch_size=12)["objective"]
    assert objective == pytest.approx(min(objectives(result, "validation")), rel=1e-12)
    plain = fit(net(), epochs=3)
    descend.load_weights(module, tmp_path, which=9, averaged=False)
    assert all(torch.equal(value, plain.weights[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_best_epoch_that_is_restored_is_that_of_the_first_average(place):
    callbacks = [EMA(0.5), EMA(0.9)]
    callbacks.insert(place, EarlyStopping(patience=9, restore_best=True))
    result = fit(module := net(), *callbacks, epochs=9, optimizer=functools.partial(torch.optim.SGD, lr=4.0))
    values = objectives(result, "validation")
    assert min(values) < values[-1]
    found = descend.evaluate(module, "cross_entropy", (V, W), batch_size=12)["objective"]
    assert found == pytest.approx(min(values), rel=1e-12)
    assert list(result.averages) == ["ema_0.9"]


class Evaluates(Callback):
    """Evaluates within a hook."""

    def __init__(self, hook):
        self.values = []
        setattr(self, hook, self.evaluate)
        self.busy = False

    def evaluate(self, view):
        if not self.busy:
            self.busy = True
            self.values.append(view.run.control.evaluate(Mode.VALIDATION))
            self.busy = False


@pytest.mark.parametrize("hook", ["before_evaluation", "after_evaluation", "after_step", "after_epoch"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_evaluation_within_a_callback_sees_the_averages_and_changes_nothing(hook, place):
    callbacks = [EMA(0.9), EMA(0.5)]
    callbacks.insert(place, extra := Evaluates(hook))
    result = fit(net(), *callbacks)
    found, _ = by_hand()
    assert objectives(result, "train") == pytest.approx(found["train"], rel=1e-12)
    if hook != "after_step":  # where the average of this step is still to come
        assert [value["objective"] for value in extra.values] == pytest.approx(found["ema_0.9"], rel=1e-12)
        assert [value["ema_0.5/objective"] for value in extra.values] == pytest.approx(found["ema_0.5"], rel=1e-12)


class Fails(Callback):
    """Raises in an evaluation."""

    def __init__(self, hook, error):
        self.error = error
        setattr(self, hook, self.fail)

    def fail(self, view):
        raise self.error


@pytest.mark.parametrize("hook", ["before_evaluation", "before_evaluation_step", "after_evaluation"])
def test_an_evaluation_that_ends_in_an_error_leaves_the_weights_of_training(hook, tmp_path):
    with pytest.raises(NumericalError):
        fit(module := net(), EMA(0.9), EMA(0.5), Fails(hook, NumericalError("no")), run_dir=tmp_path)
    plain = fit(net(), epochs=1)
    assert all(torch.equal(value, plain.weights[name]) for name, value in module.state_dict().items())
    descend.load_weights(module := net(), tmp_path, which="last", averaged=False)
    assert all(torch.equal(value, plain.weights[name]) for name, value in module.state_dict().items())


def test_a_signal_within_an_evaluation_leaves_a_checkpoint_that_continues_to_the_same_bits(tmp_path):
    class Signals(Callback):
        def after_evaluation_step(self, step):
            if step.epoch == 2:
                step.run.control._run.stop.listen(lambda: "SIGTERM", lambda waiting: None)

    with pytest.raises(descend.errors.Stopped):
        fit(net(), EMA(0.9), EMA(0.5), Signals(), run_dir=tmp_path)
    parts = fit(net(), EMA(0.9), EMA(0.5), run_dir=tmp_path, resume=True)
    whole = fit(net(), EMA(0.9), EMA(0.5))
    assert all(torch.equal(value, parts.weights[name]) for name, value in whole.weights.items())
    same_weights(parts.averages["ema_0.5"], whole.averages["ema_0.5"])


class Exchange(Callback):
    """What users write: keeps the weights, puts others in, and puts back what it kept."""

    def __init__(self, factor, way):
        self.factor, self.way = factor, way

    def before_evaluation(self, evaluation):
        module = evaluation.run.module
        self.kept = {name: p.detach().clone() for name, p in module.named_parameters()}
        self.write(module, {name: self.factor * value for name, value in self.kept.items()})

    def after_evaluation(self, evaluation):
        self.write(evaluation.run.module, self.kept)

    def write(self, module, values):
        if self.way == "load":
            module.load_state_dict(values, strict=False)
            return
        for name, p in module.named_parameters():
            if self.way == "data":
                p.data.copy_(values[name])
            else:
                p.data = values[name]


class Declared(Exchange):
    replaces_weights = True


LISTS = {
    "two of one's own": lambda way: [Exchange(0.5, way), Exchange(3.0, way)],
    "two declared": lambda way: [Declared(0.5, way), Declared(3.0, way)],
    "one of each": lambda way: [Declared(0.5, way), Exchange(3.0, way)],
    "the other way round": lambda way: [Exchange(0.5, way), Declared(3.0, way)],
    "before an average": lambda way: [Exchange(0.5, way), EMA(0.9), EMA(0.5)],
    "between averages": lambda way: [EMA(0.9), Exchange(0.5, way), SWA(1, average_buffers=False)],
    "after averages": lambda way: [SWA(1, average_buffers=False), EMA(0.9), Declared(0.5, way)],
}


@pytest.mark.parametrize("way", ["load", "data", "replace"])
@pytest.mark.parametrize("names", LISTS)
def test_exchanges_of_a_users_own_are_a_stack(names, way):
    result = fit(net(), *LISTS[names](way))
    found, _ = by_hand()
    assert objectives(result, "train") == pytest.approx(found["train"], rel=1e-12)


def test_an_average_is_of_weights_in_training_whatever_was_put_in_before_it():
    averaged = SWA(2)
    with pytest.warns(UserWarning, match="SWA"):
        result = fit(net(), Exchange(0.5, "load"), EMA(0.9), averaged)
    same_weights(result.averages["swa_2"], by_hand()[1]["swa_2"])


def test_a_declared_exchange_is_undone_where_an_evaluation_ends_in_an_error():
    with pytest.raises(NumericalError):
        fit(module := net(), Declared(0.5, "data"), Fails("before_evaluation_step", NumericalError("no")))
    plain = fit(net(), epochs=1)
    assert all(torch.equal(value, plain.weights[name]) for name, value in module.state_dict().items())


def test_other_callbacks_see_what_was_evaluated_before_it_is_taken_back():
    seen = []

    class Looks(Callback):
        def after_evaluation(self, evaluation):
            module = evaluation.run.module.eval()
            seen.append((cross_entropy(module(V), W).item(), evaluation.values["objective"]))
            module.train()

    fit(net(), Exchange(0.5, "load"), EMA(0.5), Exchange(2.0, "data"), Looks())
    assert len(seen) == EPOCHS
    assert all(a == pytest.approx(b, rel=1e-12) for a, b in seen)


def test_a_callback_of_ones_own_can_let_the_run_put_weights_in():
    class Halves(Callback):
        def before_evaluation(self, evaluation):
            evaluation.run.control.evaluated.put_in(
                {name: value / 2 for name, value in evaluation.run.control.weights.items()}
            )

    result = fit(net(), Halves(), EMA(0.9))
    assert objectives(result, "train") == pytest.approx(by_hand()[0]["train"], rel=1e-12)

    class Early(Callback):
        def after_step(self, step):
            step.run.control.evaluated.put_in({})

    with pytest.raises(ConfigurationError, match="put_in was called outside of an evaluation"):
        fit(net(), Early())


def test_averages_of_one_name_are_refused_and_names_of_ones_own_are_used():
    with pytest.raises(ConfigurationError, match=r"two averages of this run are called 'ema_0\.9': give one"):
        fit(net(), EMA(0.9), EMA(0.9, every_steps=2))
    result = fit(net(), EMA(0.9), EMA(0.9, every_steps=2, name="sparse"))
    assert len(objectives(result, "validation", "sparse/objective")) == EPOCHS
    with pytest.raises(ConfigurationError, match="EMA: name must be a word without '/', got 'a/b'"):
        EMA(0.9, name="a/b")


def test_a_criterion_can_wait_for_an_average_behind_the_first():
    reached = descend.Reached("validation/ema_0.5/objective", 9.0)
    result = fit(net(), EMA(0.9), EMA(0.5), stop=descend.Epochs(5) | reached)
    assert "validation/ema_0.5/objective reached" in result.reason
    with pytest.raises(ConfigurationError, match=r"did you mean 'validation/ema_0\.5/objective'"):
        fit(net(), EMA(0.9), EMA(0.5), stop=descend.Epochs(5) | descend.Reached("validation/ema_0.6/objective", 9.0))


@pytest.mark.parametrize("restored", [True, False])
def test_a_schedule_free_rule_gives_back_what_it_was_evaluated_with(restored, tmp_path):
    optimizer = functools.partial(descend.optim.ScheduleFreeSGD, lr=3.0)
    seen = []

    class Looks(Callback):
        def after_evaluation(self, evaluation):
            seen.append((cross_entropy(evaluation.run.module(V), W).item(), evaluation.values["objective"]))

    stopping = [EarlyStopping(patience=9, restore_best=True)] * restored
    linear = nn.Linear(4, 3).double()
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    result = fit(linear, *stopping, Looks(), epochs=9, optimizer=optimizer, test=(V, W), run_dir=tmp_path)
    values = objectives(result, "validation")
    assert min(values) < values[-1]
    assert all(a == pytest.approx(b, rel=1e-12) for a, b in seen)
    expected = min(values) if restored else values[-1]
    assert objectives(result, "test") == pytest.approx([expected], rel=1e-12)
    assert cross_entropy(linear(V), W).item() == pytest.approx(expected, rel=1e-12)
    descend.load_weights(other := nn.Linear(4, 3).double(), tmp_path, which="last")
    assert cross_entropy(other(V), W).item() == pytest.approx(expected, rel=1e-12)
