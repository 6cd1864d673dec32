"""`fit` against loops written out by hand, and what it does with what goes wrong."""

import copy
import functools
import json
import math
import random
import warnings
from itertools import cycle, product
from pathlib import Path

import numpy as np
import pytest
import torch
from data.torch_sets import Augmented
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import descend
from descend.callbacks.name_fields import problems as unknown_names
from descend.data import Field
from descend.errors import ConfigurationError, DataError, NumericalError, StorageError

SGD = functools.partial(torch.optim.SGD, lr=0.1)
ADAM = functools.partial(torch.optim.Adam, lr=0.05)
DRAW = torch.Generator().manual_seed(0)
X = torch.randn(10, 5, dtype=torch.float64, generator=DRAW)
Y = torch.randint(0, 3, (10,), generator=DRAW)
IGNORING = Y.clone()
IGNORING[[1, 2, 3, 7]] = -100
REAL = torch.randn(10, 2, dtype=torch.float64, generator=DRAW)


def net(*layers, outputs=3):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), *layers, nn.Linear(8, outputs)).double()


def fit(module=None, loss="cross_entropy", data=(X, Y), **settings):
    given = {"optimizer": SGD, "batch_size": 10, "stop": descend.Steps(3), **settings}
    return descend.fit(net() if module is None else module, loss, data, **given)


def two_targets(output, first, second):
    return nn.functional.cross_entropy(output, first)


class Pairs(torch.utils.data.Dataset):
    """Samples whose fields are known when one is read."""

    def __init__(self, *fields):
        self.fields = fields

    def __len__(self):
        return len(self.fields[0])

    def __getitem__(self, number):
        return tuple(field[number] for field in self.fields)


@pytest.mark.parametrize("valid", [X, (X,), {"x": X, "y": Y}, (X, Y, Y)], ids=lambda value: "")
def test_validation_samples_without_the_fields_of_training_are_refused_before_it(valid):
    module = net()
    before = snapshot(module)
    with pytest.raises(DataError, match=r"the data for 'validate' have the fields .* same fields"):
        fit(module, valid=valid)
    assert unchanged(module, before)


def test_samples_that_turn_out_to_lack_fields_are_refused_when_they_are_read():
    with pytest.raises(DataError, match=r"samples of a batch have the fields 0 .*missing: 1"):
        fit(valid=Pairs(X))


def largest_difference(a, b):
    return max(float((a.weights[name] - b.weights[name]).abs().max()) for name in a.weights)


def snapshot(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def unchanged(module, before):
    return all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


class Losses(descend.Callback):
    def __init__(self):
        self.seen: list[float] = []
        self.ids: list[int] = []

    def after_step(self, step):
        self.seen.append(step.loss)
        self.ids += step.batch.ids.tolist()


class Sets(descend.Callback):
    """Sets something of the run before its first step."""

    def __init__(self, name, value):
        self.name, self.value = name, value

    def before_step(self, step):
        setattr(step.run.control, self.name, self.value)


def test_whole_numbers_may_be_numpys():
    counts = {name: np.int64(value) for name, value in {"batch_size": 4, "micro_batch_size": 3, "seed": 2}.items()}
    result = fit(**counts, stop=descend.Steps(np.int32(5)))
    assert result.steps == 5
    torch.testing.assert_close(result.weights, fit(batch_size=4, seed=2, stop=descend.Steps(5)).weights)


# ---- the update of the one big batch


MICRO_BATCH_SIZES = [1, 3, 4, 7, 10, 50]
LOSSES = {
    "ignored labels": (nn.CrossEntropyLoss(), IGNORING),
    "class weights": (nn.CrossEntropyLoss(torch.tensor([0.2, 3.0, 1.0]).double(), label_smoothing=0.1), IGNORING),
    "mse": (nn.MSELoss(), REAL),
}
UPDATES = {
    "sgd": {},
    "adam": {"optimizer": functools.partial(torch.optim.Adam, lr=0.1, weight_decay=0.1)},
    "clip_global_norm": {"clip_global_norm": 0.05},
    "clip_norm": {"clip_norm": 0.02},
    "clip_value": {"clip_value": 0.01},
}
# The sums do not know of the update, nor the update of the parts: each loss with each size, and updates in turn.
OF_PARTS = [
    pytest.param(*LOSSES[loss], size, UPDATES[update], id=f"{loss}, {size}, {update}")
    for (loss, size), update in zip(product(LOSSES, MICRO_BATCH_SIZES), cycle(UPDATES), strict=False)
]


@pytest.mark.parametrize(("loss", "targets", "micro_batch_size", "settings"), OF_PARTS)
def test_micro_batches_are_the_batch(loss, targets, micro_batch_size, settings):
    def one(size):
        losses = Losses()
        module = net(nn.Dropout(0.4), outputs=2 if targets is REAL else 3)
        return fit(module, loss, (X, targets), micro_batch_size=size, callbacks=[losses], **settings), losses.seen

    (whole, whole_losses), (cut, cut_losses) = one(None), one(micro_batch_size)
    assert largest_difference(whole, cut) < 1e-12
    assert cut_losses == pytest.approx(whole_losses, rel=1e-12)


@pytest.mark.parametrize(
    "optimizer",
    [SGD, ADAM, functools.partial(torch.optim.RMSprop, lr=0.01), functools.partial(torch.optim.AdamW, lr=0.01)],
)
def test_fit_makes_the_steps_of_a_loop_written_by_hand(optimizer):
    module = net()
    ours = optimizer(module.parameters())
    for _ in range(5):
        for some in torch.arange(10).split(4):
            ours.zero_grad()
            nn.functional.cross_entropy(module(X[some]), IGNORING[some]).backward()
            ours.step()
    result = fit(data=(X, IGNORING), batch_size=4, stop=descend.Epochs(5), optimizer=optimizer, shuffle=False)
    for name, value in module.named_parameters():
        torch.testing.assert_close(result.weights[name], value.detach(), rtol=1e-12, atol=1e-15)
    assert (result.steps, result.reason) == (15, "finished 5 of 5 epochs")


def test_clipping_is_torch_s_after_the_division():
    module = net()
    for _ in range(3):
        module.zero_grad()
        nn.functional.cross_entropy(module(X), IGNORING).backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.05)
        with torch.no_grad():
            for p in module.parameters():
                p -= 0.1 * p.grad
    result = fit(data=(X, IGNORING), shuffle=False, clip_global_norm=0.05, micro_batch_size=3)
    for name, value in module.named_parameters():
        torch.testing.assert_close(result.weights[name], value.detach(), rtol=1e-10, atol=1e-13)


class Samples(nn.Module):
    """Draws in evaluations too, as one does who samples from a distribution."""

    def __init__(self):
        super().__init__()
        self.body = net()

    def forward(self, x):
        return self.body(x) + torch.randn(3)


class Dies(descend.Callback):
    def after_evaluation_step(self, step):
        if step.run.control.samples == 20:
            raise ZeroDivisionError


def test_what_a_module_draws_in_an_evaluation_is_repeated_by_a_run_that_is_continued(tmp_path):
    """Those draws change nothing of training, and do not depend on what was drawn before."""
    settings = {"batch_size": 4, "valid": (X, Y), "test": (X, Y), "stop": descend.Epochs(3)}
    whole = fit(Samples(), **settings)
    with pytest.raises(ZeroDivisionError):
        fit(Samples(), **settings, run_dir=tmp_path, callbacks=[Dies(), descend.Checkpoint(every_steps=1)])
    parts = fit(Samples(), **settings, run_dir=tmp_path, resume=True)
    rows = [[{**row, "seconds": 0} for row in result.history] for result in (whole, parts)]
    assert rows[0] == rows[1]
    alone = fit(Samples(), **{**settings, "valid": None, "test": None})
    assert largest_difference(whole, alone) == 0


def test_a_validation_pass_changes_nothing():
    alone = fit(net(nn.Dropout(0.4)), batch_size=4, stop=descend.Epochs(4))
    watched = fit(net(nn.Dropout(0.4)), batch_size=4, stop=descend.Epochs(4), valid=(X, Y), test=(X, Y))
    assert largest_difference(alone, watched) == 0
    assert [row["mode"] for row in watched.history] == ["train", "validation"] * 4 + ["test"]


@pytest.mark.parametrize("batch_size", [1, 4, 7, 21])
def test_evaluation_is_that_of_a_plain_loop_over_all_samples(batch_size):
    x = torch.randn(21, 5, dtype=torch.float64, generator=DRAW)
    y = torch.randint(0, 3, (21,), generator=DRAW)
    y[[3, 20]] = -100
    result = fit(
        loss=nn.CrossEntropyLoss(), batch_size=batch_size, valid=(x, y), metrics=["accuracy"], stop=descend.Epochs(1)
    )
    with torch.no_grad():
        output = result.module.eval()(x)
    row = result.history[-1]
    assert row["samples"] == 21
    assert row["objective"] == pytest.approx(float(nn.functional.cross_entropy(output, y)), rel=1e-12)
    counted = y != -100
    assert row["accuracy"] == pytest.approx(float((output.argmax(1) == y)[counted].double().mean()), rel=1e-12)


def test_labels_that_are_all_ignored_count_nothing():
    module = net()
    before = snapshot(module)
    result = fit(module, data=(X, torch.full((10,), -100)), batch_size=4)
    assert unchanged(module, before)
    assert result.steps == 3


# ---- data


def test_samples_and_augmentation_are_right_without_being_asked():
    def one(workers):
        losses = Losses()
        module = net().float()
        module[0] = nn.Linear(3, 8)
        nn.init.ones_(module[0].weight)
        nn.init.zeros_(module[0].bias)
        fit(module, data=Augmented(), workers=workers, batch_size=4, stop=descend.Epochs(3), callbacks=[losses])
        return losses

    losses = one(0)
    epochs = [losses.ids[i : i + 13] for i in (0, 13, 26)]
    assert all(sorted(epoch) == list(range(13)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    again = one(0)
    assert (again.ids, again.seen) == (losses.ids, losses.seen)


def test_dictionaries_reach_forward_by_name_and_their_label_is_the_target():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 3).double()

        def forward(self, scale, x):
            return self.layer(x) * scale

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 10

        def __getitem__(self, index):
            return {"x": X[index], "label": int(Y[index]), "scale": 2 * torch.ones(3).double()}

    module = Two()
    with torch.no_grad():
        expected = nn.functional.cross_entropy(2 * module.layer(X), Y)
    result = fit(module, data=Rows(), stop=descend.Steps(1))
    assert result.history[0]["objective"] == pytest.approx(float(expected), rel=1e-12)


def test_single_tensors_are_their_own_targets():
    module = net(outputs=5)
    with torch.no_grad():
        expected = float(nn.functional.mse_loss(module(X), X))
    assert fit(module, "mse", X, stop=descend.Steps(1)).history[0]["objective"] == pytest.approx(expected, rel=1e-12)


def test_a_function_takes_what_the_module_returns():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = net()

        def forward(self, x):
            return {"scores": self.body(x), "size": self.body[0].weight.square().sum()}

    def loss(output, target):
        return nn.functional.cross_entropy(output["scores"], target) + 0.1 * output["size"]

    ours = fit(Pair(), loss, micro_batch_size=3)
    assert largest_difference(ours, fit(Pair(), loss)) < 1e-12


def test_batches_of_another_library():
    batches = [(X[i : i + 4], Y[i : i + 4]) for i in (0, 4, 8)]
    expected = fit(batch_size=4, stop=descend.Epochs(3), shuffle=False)
    for data in (batches, lambda: iter(batches), DataLoader(TensorDataset(X, Y), batch_size=4)):
        assert largest_difference(fit(data=data, batch_size=4, stop=descend.Epochs(3)), expected) == 0


def test_a_batch_larger_than_the_data_set_is_one_partial_batch_and_says_so():
    with pytest.warns(UserWarning, match="more than the 10 samples"):
        result = fit(batch_size=64, stop=descend.Epochs(2))
    assert result.steps == 2


@pytest.mark.filterwarnings("error")
def test_validation_samples_may_be_fewer_than_a_batch():
    fit(batch_size=5, valid=(X[:3], Y[:3]), stop=descend.Epochs(1))


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({"batch_size": 3}, "10 samples, batch_size=3, a group is the whole batch"),
        ({"micro_batch_size": 3}, "10 samples, batch_size=10, micro_batch_size=3"),
        ({"batch_norm_group_size": 3}, "10 samples, batch_size=10, batch_norm_group_size=3"),
        ({"batch_size": 1}, "10 samples, batch_size=1, a group is the whole batch"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*normalizes over")
def test_a_group_of_one_sample_into_batch_norm_is_found_before_the_run(settings, sizes, tmp_path):
    module = net(nn.BatchNorm1d(8).double())
    before = snapshot(module)
    with pytest.raises(ConfigurationError, match=rf"{sizes}.*'2' \(BatchNorm1d\) needs more than 1 value"):
        fit(module, run_dir=tmp_path / "run", **settings)
    assert unchanged(module, before)
    assert not (tmp_path / "run").exists()
    assert all(part.training and "forward" not in vars(part) for part in module.modules())


def test_batch_norm_over_images_may_see_one_sample():
    module = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(18, 3))
    fit(module, data=(torch.randn(10, 1, 4, 4), Y), batch_size=3, stop=descend.Epochs(2))
    assert "forward" not in vars(module[1])


def test_dropout_inside_a_module_of_torch_warns_where_a_batch_is_split():
    class Attention(nn.Module):
        def __init__(self, dropout):
            super().__init__()
            self.attention, self.out = nn.MultiheadAttention(5, 1, dropout).double(), nn.Linear(5, 3).double()

        def forward(self, x):
            return self.out(self.attention(x, x, x)[0])

    with pytest.warns(UserWarning, match=r"what 'attention' \(MultiheadAttention\) drops depends on micro_batch_size"):
        fit(Attention(0.1), micro_batch_size=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(Attention(0.1))
        fit(Attention(0.0), micro_batch_size=5)


def test_random_numbers_of_functions_warn_where_a_batch_is_split():
    class Noisy(nn.Module):
        def __init__(self, draw):
            super().__init__()
            self.net, self.draw = net(nn.Dropout(0.2)), draw

        def forward(self, x):
            return self.net(self.draw(x) if self.training else x)

    for draw in (nn.functional.dropout, lambda x: x + torch.randn_like(x)):
        with pytest.warns(UserWarning, match="Noisy draws random numbers with functions") as reported:
            fit(Noisy(draw), micro_batch_size=5, stop=descend.Epochs(3))
        assert len(reported) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fit(Noisy(draw))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(Noisy(torch.tanh), micro_batch_size=5)


# ---- weights


def test_tied_weights_are_owned_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(5, 5, bias=False).double()
            self.b = nn.Linear(5, 5, bias=False).double()
            self.b.weight = self.a.weight
            self.head = nn.Linear(5, 3).double()

        def forward(self, x):
            return self.head(self.b(self.a(x)))

    module = Tied()
    result = fit(module)
    assert module.a.weight is module.b.weight
    assert sorted(result.weights) == ["a.weight", "head.bias", "head.weight"]


def test_frozen_weights_stay_and_have_no_state(tmp_path):
    module = net()
    module[0].requires_grad_(False)
    before = snapshot(module)
    fit(module, optimizer=functools.partial(torch.optim.AdamW, lr=0.1, weight_decay=1.0), run_dir=tmp_path)
    assert torch.equal(module[0].weight, before["0.weight"])
    assert not torch.equal(module[2].weight, before["2.weight"])
    state = json.loads((tmp_path / "checkpoints/step-3/training/state.json").read_text())
    assert sorted(state["parts"]["optimizer"]["weights"]) == ["2.bias", "2.weight"]


def test_a_weight_without_a_gradient_is_untouched_and_named_once():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = net(), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    module = Half()
    before = snapshot(module)
    with pytest.warns(
        UserWarning, match="unused parameters: 'unused.weight', 'unused.bias' got no gradient in the first epoch"
    ) as reported:
        fit(module, optimizer=functools.partial(torch.optim.AdamW, lr=0.1, weight_decay=1.0), stop=descend.Epochs(3))
    assert len(reported) == 1
    assert torch.equal(module.unused.weight, before["unused.weight"])


def test_a_zero_gradient_still_decays():
    module = nn.Linear(5, 3).double()
    before = module.weight.detach().clone()
    decay = functools.partial(torch.optim.SGD, lr=0.1, weight_decay=0.5)
    fit(module, lambda output, y: (output.sum() * 0, torch.tensor(1.0)), optimizer=decay, stop=descend.Steps(1))
    torch.testing.assert_close(module.weight.detach(), before * 0.95)


def test_the_modes_of_the_parts_come_back():
    module = net(nn.Dropout(0.1))
    module[2].eval()
    fit(module)
    assert [part.training for part in module] == [True, True, False, True]
    assert "forward" not in vars(module[2])


@pytest.mark.parametrize("wide", [False, True])
def test_data_in_another_type_than_the_weights_are_named(wide):
    module = net() if wide else net().float()
    with pytest.raises(DataError, match=r"field '0' is float\d\d and the weights of Sequential are float\d\d: convert"):
        fit(module, data=(X.float() if wide else X.numpy(), Y))


def test_a_scalar_that_is_no_mean_over_samples_warns_where_a_batch_is_split():
    def counted(output, y):
        return nn.functional.cross_entropy(output, y)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(loss=counted, micro_batch_size=4)
        fit(loss=counted, data=(X, IGNORING))  # the whole batch at once is what the function says it is
    with pytest.warns(UserWarning, match="not a mean over samples") as reported:
        fit(loss=counted, data=(X, IGNORING), micro_batch_size=4, shuffle=False)
    assert len(reported) == 1


def test_looking_at_a_scalar_draws_no_random_number():
    def noisy(output, y):
        return nn.functional.cross_entropy(nn.functional.dropout(output, 0.5), y)

    reported, untold = net(), net()
    with pytest.warns(UserWarning, match="not a mean over samples"):
        fit(reported, noisy, micro_batch_size=5)
    fit(untold, lambda output, y: (noisy(output, y) * len(y), len(y)), micro_batch_size=5)
    for a, b in zip(reported.parameters(), untold.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0)


# ---- refused before anything starts


@pytest.mark.parametrize("name", ["gradient_norm", "train/gradient_norm"])
def test_a_criterion_may_wait_for_what_a_callback_records(name):
    watch = descend.GradientNorm(every_steps=2)
    assert fit(stop=descend.Reached(name, 0.0, at_most=False) | descend.Steps(9), callbacks=[watch]).steps == 2


def frozen():
    return net().requires_grad_(False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"module": frozen()}, "nothing to train in Sequential: all its weights are frozen"),
        ({"module": nn.ReLU()}, "nothing to train in ReLU: it has no weights"),
        ({"module": nn.Linear}, "a class must be called first"),
        ({"module": nn.LazyLinear(3)}, "lazy layers have no weights yet"),
        ({"optimizer": torch.optim.SGD(net().parameters(), lr=0.1)}, "already constructed.*functools.partial"),
        ({"optimizer": lambda named: named}, "got a list"),
        ({"optimizer": torch.optim.LBFGS}, "LBFGS needs a closure"),
        ({"optimizer": lambda named: torch.optim.SGD([named[0][1]], lr=1.0)}, "parameter '2.weight' .* missing in the"),
        ({"optimizer": "adam"}, "optimizer must be .* got 'adam'"),
        ({"loss": "mean_square"}, "got 'mean_square'"),
        ({"metrics": ["acc"]}, "got 'acc'"),
        ({"metrics": 3}, "metrics must be a list of names .* got 3"),
        (
            {"callbacks": [descend.SaveTopKModels(dir="d", k=1, metric="acuracy")], "metrics": ["accuracy"]},
            "'accuracy'",
        ),
        (
            {"callbacks": [descend.DumpOutputs(layers="0 3")]},
            "DumpOutputs.layers names a layer '3' that does not exist",
        ),
        ({"callbacks": [descend.SetWeightsValue(weights="0.wieght", value=1.0, step=1)]}, "did you mean '0.weight'"),
        ({"metrics": {"own": 3}}, "metric 'own' must be .* got 3"),
        (
            {"loss": lambda output, y: (output.sum(), torch.tensor(-4.0))},
            "the denominator must be how much was counted.* got -4.0",
        ),
        ({"loss": lambda output, y: output.sum() * 1j}, "complex128, which cannot be minimized"),
        ({"callbacks": [Sets("batch_size", 0)]}, "batch_size must be an integer above 0, and was set to 0:"),
        ({"callbacks": [Sets("batch_size", 2.5)]}, "batch_size must be an integer above 0, and was set to 2.5:"),
        ({"callbacks": [Sets("micro_batch_size", -1)]}, "micro_batch_size must be .* was set to -1:"),
        ({"batch_size": 0}, "batch_size must be an integer >= 1 or None, got 0"),
        ({"batch_size": 2.5}, "batch_size must be an integer >= 1 or None, got 2.5"),
        ({"micro_batch_size": 0}, "micro_batch_size must be an integer >= 1.*got 0"),
        ({"micro_batch_size": "automatic"}, "micro_batch_size must be.*got 'automatic'"),
        ({"precision": "bfloat"}, "did you mean 'bfloat16'"),
        ({"on_nonfinite": "skp"}, "did you mean 'skip'"),
        ({"clip_value": -1.0}, "clip_value must be a number above 0.*got -1.0"),
        ({"seed": -1}, "seed must be an integer >= 0, got -1"),
        ({"stop": 10}, "stop= must be a criterion"),
        ({"resume": True}, "run_dir="),
        ({"stop": None}, "stop= must be a criterion"),
        ({"callbacks": [3]}, "callbacks must be instances"),
        ({"callbacks": descend.GradientNorm()}, r"callbacks must be a list, such as \[descend.EMA\(\)\]"),
        ({"shuffle": "no"}, "shuffle must be True or False, got 'no'"),
        ({"stop": descend.Reached("acuracy", 0.9), "metrics": ["accuracy"]}, "'acuracy'.* did you mean 'accuracy'"),
        ({"stop": descend.Reached("validation/objective", 0.1)}, "is not recorded.*train/objective"),
        ({"stop": descend.Reached("gradient_norm", 1, at_most=True) | descend.Steps(3)}, r"Reached\('gradient_norm'\)"),
        ({"loss": lambda output: output.sum()}, "is called with the output and 1 target:"),
        ({"loss": lambda output, y: output.detach().sum()}, "depends on none of the weights"),
        ({"loss": functools.partial(nn.functional.mse_loss, reduction="sum")}, "the step grow with the batch"),
        ({"data": (batch for batch in ())}, "iterated only once"),
        ({"targets": ["label"]}, "no field 'label'"),
        ({"targets": 2}, "all fields .* are targets"),
        (
            {"metrics": ["accuracy"], "loss": two_targets, "data": (X, Y, Y), "targets": 2},
            "^metric 'accuracy' is called",
        ),
        ({"data": {"x": X, "answer": Y}}, r"not clear from their names \(x, answer\)"),
    ],
    ids=lambda value: "",
)
def test_what_cannot_be_is_refused_and_changes_nothing(settings, message, tmp_path):
    module = settings.pop("module", None) or net()
    before = (
        snapshot(module)
        if isinstance(module, nn.Module) and not list(module.buffers()) and "Lazy" not in repr(module)
        else None
    )
    with pytest.raises(ConfigurationError, match=message) as caught:
        fit(module, **settings)
    assert caught.value.exit_code == 2
    assert before is None or unchanged(module, before)


@pytest.mark.parametrize(
    ("loss", "targets", "message"),
    [
        ("cross_entropy", [0, 1, 2, 5, 0, 1, 2, 0, 1, 2], r"class numbers from 0 to 2 or -100.*\n    sample 3: 5"),
        ("cross_entropy", [0, 1, 2, -1, 0, 1, 2, 0, 1, 2], r"class numbers from 0 to 2 or -100.*\n    sample 3: -1"),
        ("cross_entropy", [0.0] * 10, r"class numbers as float32 .*\.long\(\)"),
        ("multi_margin", [0, 1, 2, 3, 0, 1, 2, 0, 1, 2], r"class numbers from 0 to 2, as.*\n    sample 3: 3"),
        ("mse", [[0.0] * 3] * 9 + [[0.0, float("nan"), 0.0]], r"finite numbers.*\n    sample 9: nan"),
        ("mse", [[0.0] * 3] * 9 + [[0.0, float("inf"), 0.0]], r"finite numbers.*\n    sample 9: inf"),
        ("bce_with_logits", [[0.0] * 3] * 9 + [[0.0, 5.0, -3.0]], r"2 targets are not.*\[0, 1\].*\n    sample 9: 5.0"),
        ("cross_entropy", [[0.2, 0.2, 0.6]] * 9 + [[0.5, 1.5, -1.0]], r"\[0, 1\].*\n    sample 9: 1.5"),
        ("kl_div", [[0.2, 0.2, 0.6]] * 9 + [[0.5, 1.5, -1.0]], r"2 targets are not.*\[0, 1\].*\n    sample 9: 1.5"),
        (
            nn.SoftMarginLoss(),
            [[1.0, -1.0, 1.0]] * 9 + [[0.0, 1.0, -1.0]],
            r"not 1 or -1, as Soft.*\n    sample 9: 0.0",
        ),
        (nn.HingeEmbeddingLoss(), [[1, -1, 1]] * 9 + [[0, 1, -1]], r"not 1 or -1, as Hinge.*\n    sample 9: 0"),
        (nn.MultiLabelSoftMarginLoss(), [[1.0, 0, 1]] * 9 + [[2.0, 1, 0]], r"not.*\[0, 1\].*\n    sample 9: 2.0"),
        ("poisson_nll", [[1.0, 0.0, 7.0]] * 9 + [[0.0, -1.0, 0.0]], r"not counts of at least 0.*\n    sample 9: -1.0"),
        ("poisson_nll", [[1.0, 0.0, 7.0]] * 9 + [[0.0, float("inf"), 0.0]], r"not counts.*\n    sample 9: inf"),
    ],
)
def test_targets_out_of_range_are_named_with_their_sample(loss, targets, message):
    module = net()
    before = snapshot(module)
    with pytest.raises(DataError, match=message) as caught:
        fit(module, loss, (X, torch.tensor(targets)), shuffle=False)
    assert caught.value.exit_code == 3
    assert unchanged(module, before)


class Frames(nn.Module):
    """Logarithms of probabilities for 6 frames (6, n, 3)."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(5, 3).double()

    def forward(self, x):
        return self.out(x).log_softmax(-1).expand(6, -1, -1)


@pytest.mark.parametrize(
    ("label", "length", "message"),
    [
        (3, 2, "sample 9: 3"),
        (-1, 2, "sample 9: -1"),
        (0, 2, "sample 9: 0"),
        (1, 4, "lengths up to 3.*\n    sample 9: 4"),
    ],
)
def test_labellings_out_of_range_are_named_with_their_sample(label, length, message):
    """Torch reads past its memory for such a class number. What lies behind the end of a labelling may be anything."""
    labels, lengths = torch.tensor([[1, 2, -7]] * 9 + [[1, label, 0]]), torch.tensor([2] * 9 + [length])
    data = (X, labels, torch.full((10,), 6), lengths)
    with pytest.raises(DataError, match=message):
        fit(Frames(), nn.CTCLoss(), data, shuffle=False)
    labels[9, 1], lengths[9] = 2, 2
    ours = fit(Frames(), nn.CTCLoss(), data, shuffle=False, micro_batch_size=3, stop=descend.Steps(1))
    assert ours.steps == 1


@pytest.mark.parametrize("wrong", [7, -1])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_target_late_in_the_run_is_named_and_that_step_leaves_no_trace(wrong, smoothing):
    """What torch refuses in the loss has gone through batch norm before."""
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    targets = torch.zeros(len(X), dtype=torch.int64)
    targets[8] = wrong
    after = copy.deepcopy(module)
    settings = {"shuffle": False, "batch_size": 4, "loss": nn.CrossEntropyLoss(label_smoothing=smoothing)}
    fit(after, **settings, data=(X, torch.zeros_like(targets)), stop=descend.Steps(2))
    with pytest.raises(DataError, match=f"class numbers from 0 to 2(.|\n)*sample 8: {wrong}"):
        fit(module, **settings, data=(X, targets), stop=descend.Epochs(1))
    assert unchanged(module, snapshot(after))


@pytest.mark.parametrize(
    ("loss", "targets", "message"),
    [
        (
            "cross_entropy",
            nn.functional.one_hot(Y, 3),
            r"target\.to\(torch\.float64\), for class numbers target\.argmax",
        ),
        ("cross_entropy", Y[:, None], r"\(10, 3\) float64, \(10, 1\) int64: .* pass target\.squeeze\(1\)"),
        ("cross_entropy", Y.to(torch.complex64), r"\(10,\) complex64: "),
        ("bce", torch.rand(10, 3, dtype=torch.float64), "end the module with a Sigmoid, or use 'bce_with_logits'"),
        (nn.MultiLabelMarginLoss(), torch.full((10, 3), 5), "MultiLabelMarginLoss cannot take an output and targets"),
    ],
)
def test_targets_that_a_loss_of_torch_refuses_are_reported_with_shapes_types_and_the_remedy(loss, targets, message):
    module = net()
    before = snapshot(module)
    with pytest.raises(DataError, match=message):
        fit(module, loss, (X, targets))
    assert unchanged(module, before)


def test_whole_numbers_where_the_weights_are_floating_are_named():
    with pytest.raises(DataError, match=r"field '0' is int64 and the weights of Sequential are float64"):
        fit(data=(torch.ones(10, 5, dtype=torch.int64), Y))


def test_a_metric_may_be_a_plain_number_and_an_objective_not():
    def accuracy(output, target):
        return (output.argmax(1) == target).double().mean().item()

    result = fit(metrics={"plain": accuracy, "tensor": "accuracy"}, micro_batch_size=4)
    for row in result.history:
        assert row["plain"] == pytest.approx(row["tensor"], rel=1e-12)
    with pytest.raises(ConfigurationError, match=r"look for .* \.item\(\) in the forward pass and in the loss"):
        fit(loss=lambda output, target: nn.functional.cross_entropy(output, target).item())


def test_class_numbers_need_an_output_for_each_class():
    module = nn.Sequential(net(), nn.Flatten(0))
    with pytest.raises(ConfigurationError, match=r"CrossEntropyLoss: the output must have shape \(samples, classes"):
        fit(module, "cross_entropy", (X, torch.zeros(len(X), dtype=torch.int64)))


def test_ignored_classes_count_nothing_in_every_batch():
    seen = Losses()
    module = net()
    loss = nn.CrossEntropyLoss(ignore_index=2)
    settings = {"optimizer": functools.partial(torch.optim.SGD, lr=0.0), "batch_size": 5, "shuffle": False}
    fit(module, loss, callbacks=[seen], **settings)
    by_hand = [float(loss(module(X[part]), Y[part])) for part in (slice(0, 5), slice(5, 10), slice(0, 5))]
    assert seen.seen == pytest.approx(by_hand, rel=1e-12)
    assert (Y == 2).any()


def test_a_bad_target_in_a_later_batch_and_part_is_named_too():
    labels = Y.clone()
    labels[9] = 77
    with pytest.raises(DataError, match="sample 9: 77"):
        fit(data=(X, labels), batch_size=4, micro_batch_size=1, shuffle=False)


# ---- values that are not finite


class Plant(descend.Callback):
    """Puts a value into a gradient at a step."""

    def __init__(self, *steps, value=float("nan")):
        self.steps, self.value, self.calls = steps, value, 0

    def after_backward(self, step):
        self.calls += 1
        if self.calls in self.steps:
            list(step.gradients.values())[-2][0, 1] = self.value


@pytest.mark.parametrize(("value", "optimizer"), [(float("nan"), SGD), (-float("inf"), ADAM)])
def test_a_gradient_that_is_not_finite_stops_the_run_before_a_weight_changes(tmp_path, value, optimizer):
    settings = {"batch_size": 4, "optimizer": optimizer}
    reference = fit(run_dir=tmp_path / "six", stop=descend.Steps(6), **settings)
    module = net()
    with pytest.raises(NumericalError) as caught:
        fit(module, run_dir=tmp_path / "seven", stop=descend.Steps(9), callbacks=[Plant(7, value=value)], **settings)
    text = str(caught.value)
    assert caught.value.exit_code == 4
    assert "step 7: the gradient of '2.weight' is not finite; the loss is" in text
    assert "their numbers are" in text
    assert "step-6" in text
    assert unchanged(module, reference.weights)
    for file in ("weights.safetensors", "training/optimizer.safetensors"):
        ours, theirs = (tmp_path / name / "checkpoints/step-6" / file for name in ("seven", "six"))
        assert ours.read_bytes() == theirs.read_bytes()
    resumed = fit(run_dir=tmp_path / "seven", resume=True, stop=descend.Steps(9), **settings)
    assert largest_difference(resumed, fit(stop=descend.Steps(9), **settings)) == 0


def test_a_sample_that_holds_a_nan_is_named():
    x = X.clone()
    x[6, 2] = float("nan")
    with pytest.raises(NumericalError, match=r"the loss is nan(.|\n)*sample 6 \(field '0'\)"):
        fit(data=(x, Y), batch_size=4)


def test_a_step_may_be_left_out_and_is_counted():
    losses = Losses()
    result = fit(on_nonfinite="skip", batch_size=2, stop=descend.Epochs(1), callbacks=[Plant(3), losses])
    assert result.steps == len(losses.seen) == 4
    assert (result.history[0]["skipped_steps"], result.history[0]["samples"]) == (1, 10)


def test_a_loss_that_is_nan_is_logged_as_nan(tmp_path):
    x = X.clone()
    x[6, 2] = float("nan")
    module = net(nn.BatchNorm1d(8).double())
    fit(module, data=(x, Y), on_nonfinite="skip", batch_size=5, stop=descend.Epochs(2), run_dir=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert np.isnan(rows[0]["objective"])
    assert rows[0]["skipped_steps"] == 1
    assert all(bool(torch.isfinite(value).all()) for value in module.state_dict().values())


def test_ten_steps_in_a_row_end_the_run():
    with pytest.raises(NumericalError, match="step 3, the last of 10 steps in a row"):
        fit(on_nonfinite="skip", batch_size=5, stop=descend.Steps(90), callbacks=[Plant(*range(3, 99))])


def test_an_overflow_of_the_sum_alone_is_no_fault():
    module = nn.Linear(5, 3)
    with torch.no_grad():
        module.weight.zero_()
        module.bias.zero_()
    step = functools.partial(torch.optim.SGD, lr=1e-38)
    result = fit(module, lambda o, y: o.sum() * 3e37, (torch.ones(10, 5), Y), optimizer=step, stop=descend.Steps(1))
    assert result.steps == 1


# ---- memory and precision


class Memory(nn.Module):
    """Runs out of it when more than `room` samples come at once."""

    def __init__(self, room):
        super().__init__()
        self.body, self.norm, self.room, self.tried = (
            net(nn.Dropout(0.4)),
            nn.BatchNorm1d(5, affine=False).double(),
            room,
            [],
        )

    def forward(self, x):
        if self.training:
            self.norm(x)  # leaves its running statistics behind
            self.tried.append(len(x))
            if len(x) > self.room:
                raise torch.OutOfMemoryError("simulated")
        return self.body(x)


@pytest.mark.parametrize("auto", ["auto", None])
def test_a_step_that_runs_out_of_memory_is_made_again_with_smaller_parts(tmp_path, capsys, auto):
    tight, fitting = Memory(2), Memory(2)
    found = fit(tight, micro_batch_size=auto, batch_norm_group_size=2, run_dir=tmp_path / "auto")
    given = fit(fitting, micro_batch_size=2, batch_norm_group_size=2)
    assert tight.tried == [10, 4, *[2] * 15]
    assert largest_difference(found, given) == 0
    assert "out of memory: micro-batches of 2 from here on" in capsys.readouterr().out
    assert largest_difference(fit(Memory(99), batch_norm_group_size=2), found) < 1e-12
    tight.tried.clear()
    again = {"run_dir": tmp_path / "auto", "resume": True, "stop": descend.Steps(4)}
    fit(tight, micro_batch_size=auto, batch_norm_group_size=2, **again)
    assert tight.tried == [2] * 5


def test_a_micro_batch_size_that_was_asked_for_stays_and_the_error_of_the_device_is_passed_on():
    with pytest.raises(torch.OutOfMemoryError):
        fit(Memory(2), micro_batch_size=10)


def test_a_batch_that_cannot_be_cut_says_why_it_does_not_fit():
    with pytest.raises(torch.OutOfMemoryError) as caught:
        fit(Memory(2))
    assert "declare the samples that share statistics (batch_norm_group_size=4)" in caught.value.__notes__[0]
    with pytest.raises(torch.OutOfMemoryError) as caught:
        fit(Memory(2), batch_norm_group_size=4)
    assert "one group of batch norm (4 samples)" in caught.value.__notes__[0]


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_computes_in_it_and_keeps_float32_weights(precision, tmp_path):
    seen = []

    class Look(nn.Module):
        def forward(self, x):
            seen.append(x.dtype)
            return x

    settings = {"data": (X.float(), Y), "precision": precision, "optimizer": ADAM, "batch_size": 5}
    module = net(Look()).float()
    module[1] = nn.Linear(8, 8)
    fit(module, stop=descend.Epochs(3), run_dir=tmp_path / "parts", **settings)
    assert set(seen) == {getattr(torch, precision)}
    assert module[0].weight.dtype is torch.float32
    again = net(Look()).float()
    again[1] = nn.Linear(8, 8)
    continued = fit(again, stop=descend.Epochs(5), run_dir=tmp_path / "parts", resume=True, **settings)
    assert continued.steps >= 9


class Breaks(nn.Module):
    """Gives NaN in its third training batch."""

    def __init__(self):
        super().__init__()
        self.body, self.calls = net().float(), 0

    def forward(self, x):
        self.calls += self.training
        return self.body(x) * (math.nan if self.training and self.calls == 3 else 1.0)


@pytest.mark.parametrize("policy", ["skip", "allow"])
def test_a_loss_that_is_nan_in_float16_is_left_out_and_the_scale_is_not_to_blame(policy, tmp_path):
    settings = {"data": (X.float(), Y), "batch_size": 5, "precision": "float16", "on_nonfinite": policy}
    result = fit(Breaks(), stop=descend.Epochs(2), run_dir=tmp_path / "run", **settings)
    assert result.steps == 3
    assert [row.get("skipped_steps") for row in result.history] == [None, 1.0]
    state = json.loads((tmp_path / "run/checkpoints/step-3/training/state.json").read_text())
    assert state["parts"]["precision"]["scale"] == 65536.0
    assert all(bool(torch.isfinite(value).all()) for value in result.weights.values())


def test_float16_lowers_its_scale_where_gradients_overflow():
    losses = Losses()
    module = net().float()
    result = fit(
        module,
        lambda output, y: nn.functional.cross_entropy(output, y) * 30,
        (X.float(), Y),
        precision="float16",
        optimizer=functools.partial(torch.optim.SGD, lr=1e-3),
        stop=descend.Steps(20),
        callbacks=[losses],
    )
    assert result.steps == 20
    assert losses.seen[-1] < losses.seen[0]


# ---- callbacks, files, surroundings


class Labelled(descend.Callback):
    """Calls something of its own what fields of ours are called."""

    label, metric, layers = "mine", "own", "body"

    def __init__(self):
        self.weights = "kilograms"


def test_what_a_callback_of_the_user_s_own_calls_its_things_is_its_own_affair():
    assert fit(callbacks=[Labelled()]).steps == 3
    nothing = {"layer": [], "weights": [], "metric": []}
    assert unknown_names([Labelled()], nothing) == []  # as a graph looks at them
    assert len(unknown_names([descend.DumpOutputs(layers="a b")], nothing)) == 2


def test_a_callback_sees_each_step(tmp_path):
    class Mine(descend.Callback):
        def __init__(self):
            self.steps = []

        def after_step(self, step):
            self.steps.append((step.step, step.epoch, step.loss > 0, step.module))

    mine = Mine()
    module = net()
    fit(module, callbacks=[mine], batch_size=5, stop=descend.Epochs(2))
    assert mine.steps == [(step, (step - 1) // 2, True, module) for step in (1, 2, 3, 4)]


def test_stopping_at_a_value_that_was_reached():
    stop = descend.Epochs(500) | descend.Reached("validation/accuracy", 0.9)
    result = fit(stop=stop, valid=(X, Y), metrics=["accuracy"], optimizer=ADAM)
    assert result.reason.startswith("validation/accuracy reached")
    assert 1 < result.steps < 500


@pytest.mark.parametrize("ending", ["done", "data", "numbers"])
def test_surroundings_are_the_same_afterwards(tmp_path, monkeypatch, ending):
    import logging
    import os
    import signal
    import threading

    def surroundings():
        return (
            torch.get_rng_state().tolist(),
            np.random.get_state()[1].tolist(),
            random.getstate(),
            torch.get_default_dtype(),
            torch.get_num_threads(),
            [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD)],
            logging.getLogger().handlers[:],
            dict(os.environ),
            Path.cwd(),
            list(tmp_path.iterdir()),
            threading.active_count(),
            len(warnings.filters),
        )

    monkeypatch.chdir(tmp_path)
    module = net(nn.Dropout(0.1))
    before = surroundings()
    labels = Y + 5 if ending == "data" else Y
    try:
        fit(module, data=(X, labels), callbacks=[Plant(2)] if ending == "numbers" else [], valid=(X, Y))
    except (DataError, NumericalError):
        assert ending != "done"
    assert surroundings() == before


# ---- resume with other settings


def test_a_description_is_lbann_s_rule():
    result = fit(optimizer=descend.SGD(learn_rate=0.1), data=(X, IGNORING), batch_size=4, stop=descend.Epochs(3))
    same = fit(optimizer=SGD, data=(X, IGNORING), batch_size=4, stop=descend.Epochs(3))
    assert largest_difference(result, same) < 1e-12
    with pytest.raises(ConfigurationError, match="NoOptimizer trains nothing"):
        fit(optimizer=descend.NoOptimizer())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_our_own_optimizers_are_looked_after_in_the_same_way(tmp_path, value):
    lamb = functools.partial(descend.optim.LAMB, lr=0.01)
    with pytest.raises(NumericalError, match=r"step 3: the gradient of '2.weight'"):
        fit(optimizer=lamb, batch_size=4, callbacks=[Plant(3, value=value)], run_dir=tmp_path)
    skipping = fit(optimizer=lamb, batch_size=4, callbacks=[Plant(3, value=value)], on_nonfinite="skip")
    assert skipping.steps == 3


def start(run_dir, **settings):
    given = {"batch_size": 4, "optimizer": functools.partial(torch.optim.Adam, lr=0.05, weight_decay=0.1), **settings}
    return fit(run_dir=run_dir, **given)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"optimizer": functools.partial(torch.optim.Adam, lr=0.01, weight_decay=0.1)},
            "optimizer.lr: 0.05 -> 0.01: applies",
        ),
        (
            {"optimizer": functools.partial(torch.optim.Adam, lr=0.05, weight_decay=0.0)},
            "optimizer.weight_decay: 0.1 -> 0.0: applies",
        ),
        ({"stop": descend.Steps(7)}, "stop: Steps(steps=4) -> Steps(steps=7): applies, counted from the start"),
        ({"batch_size": 3}, "batch_size: 4 -> 3: applies; the position among the samples is kept"),
        ({"micro_batch_size": 2}, "micro_batch_size: None -> 2: applies; the updates are the same"),
    ],
)
def test_what_applies_is_shown_and_applied(tmp_path, capsys, settings, line):
    start(tmp_path, stop=descend.Steps(4))
    capsys.readouterr()
    losses = Losses()
    result = start(tmp_path, **{"stop": descend.Steps(4), "resume": True, "callbacks": [losses], **settings})
    assert line in capsys.readouterr().out
    assert result.steps == (7 if "stop" in settings else 4)


TORCH_RULES = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax"),
    *("NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
)


@pytest.mark.parametrize("rule", TORCH_RULES)
def test_every_rule_of_torch_makes_its_own_steps_and_is_continued_with_the_same_bits(tmp_path, rule):
    """NAdam has a number in float32 in its state, Adafactor entries of other shapes than its weights."""
    optimizer = functools.partial(getattr(torch.optim, rule), lr=0.05)
    settings = {"optimizer": optimizer, "batch_size": 4, "micro_batch_size": 3, "shuffle": False}
    whole = fit(stop=descend.Steps(6), **settings)
    for steps in (2, 6):
        parts = fit(stop=descend.Steps(steps), run_dir=tmp_path, resume=True, **settings)
    assert largest_difference(whole, parts) == 0
    module = net()
    by_hand = optimizer(module.parameters())
    for start in (0, 4, 8) * 2:
        by_hand.zero_grad()
        nn.functional.cross_entropy(module(X[start : start + 4]), Y[start : start + 4]).backward()
        by_hand.step()
    for name, p in module.named_parameters():
        torch.testing.assert_close(whole.weights[name], p.detach(), rtol=1e-11, atol=1e-13)


class TorchSchedule(descend.Callback):
    """The one of docs/fit.md."""

    remembers = ("state",)

    def __init__(self, make):
        self.make = make

    def after_setup(self, run):
        self.schedule = self.make(run.optimizer)
        self.state = self.schedule.state_dict()

    def before_run(self, run):
        self.schedule.load_state_dict(self.state)

    def after_step(self, step):
        self.schedule.step()
        self.state = self.schedule.state_dict()


LR = torch.optim.lr_scheduler
SCHEDULES = {
    "OneCycleLR": lambda optimizer: LR.OneCycleLR(optimizer, 0.1, total_steps=9),
    "MultiStepLR": lambda optimizer: LR.MultiStepLR(optimizer, [2, 4, 6], 0.5),
    "CosineAnnealingWarmRestarts": lambda optimizer: LR.CosineAnnealingWarmRestarts(optimizer, 3),
    "SequentialLR": lambda optimizer: LR.SequentialLR(
        optimizer, [LR.LinearLR(optimizer, 0.1, 1, 3), LR.CosineAnnealingLR(optimizer, 6)], [3]
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_of_torch_is_followed_and_continued(tmp_path, schedule):
    make = SCHEDULES[schedule]
    settings = {"optimizer": functools.partial(torch.optim.AdamW, lr=0.05), "batch_size": 4, "shuffle": False}
    for steps in (1, 2, 5, 6):
        parts = fit(
            stop=descend.Steps(steps), run_dir=tmp_path, resume=True, callbacks=[TorchSchedule(make)], **settings
        )
    module = net()
    by_hand = settings["optimizer"](module.parameters())
    rates = make(by_hand)
    for start in (0, 4, 8) * 2:
        by_hand.zero_grad()
        nn.functional.cross_entropy(module(X[start : start + 4]), Y[start : start + 4]).backward()
        by_hand.step()
        rates.step()
    for name, p in module.named_parameters():
        torch.testing.assert_close(parts.weights[name], p.detach(), rtol=1e-11, atol=1e-13)


def test_a_new_rate_is_the_rate_of_the_next_step(tmp_path):
    start(tmp_path, stop=descend.Steps(4), optimizer=SGD)
    result = start(tmp_path, stop=descend.Steps(5), optimizer=functools.partial(torch.optim.SGD, lr=0.0), resume=True)
    assert largest_difference(result, start(tmp_path / "x", stop=descend.Steps(4), optimizer=SGD)) == 0


def test_another_batch_size_continues_at_the_next_sample(tmp_path):
    start(tmp_path, stop=descend.Steps(1))
    first, rest = Losses(), Losses()
    start(tmp_path / "whole", stop=descend.Epochs(2), callbacks=[first])
    result = start(tmp_path, stop=descend.Epochs(2), batch_size=3, resume=True, callbacks=[rest])
    assert rest.ids == first.ids[4:]
    assert [row["samples"] for row in result.history if row["mode"] == "train"] == [10, 10]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"optimizer": SGD},
            r"optimizer: torch\.optim\.adam\.Adam -> torch\.optim\.sgd\.SGD: refused.*reset_optimizer=True",
        ),
        (
            {"optimizer": functools.partial(torch.optim.Adam, lr=0.05, weight_decay=0.1, betas=(0.5, 0.9))},
            r"optimizer\.betas: \[0\.9, 0\.999\] -> \[0\.5, 0\.9\]: refused",
        ),
        ({"data": (X[:9], Y[:9])}, "samples: 10 -> 9: refused"),
        ({"seed": 3}, "seed: 0 -> 3: refused"),
        ({"shuffle": False}, "shuffle: True -> False: refused"),
    ],
)
def test_what_cannot_be_continued_is_refused_and_changes_nothing(tmp_path, settings, message):
    start(tmp_path, stop=descend.Steps(4))
    module = net()
    before, files = snapshot(module), sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigurationError, match=message):
        start(tmp_path, module=module, **{"stop": descend.Steps(6), "resume": True, **settings})
    assert unchanged(module, before)
    assert sorted(tmp_path.rglob("*")) == files


def test_an_optimizer_may_start_over(tmp_path, capsys):
    start(tmp_path, stop=descend.Steps(4))
    result = start(tmp_path, stop=descend.Steps(6), optimizer=SGD, resume=True, reset_optimizer=True)
    assert result.steps == 6
    assert (
        "optimizer: torch.optim.adam.Adam -> torch.optim.sgd.SGD: applies, with an empty state"
        in capsys.readouterr().out
    )


def test_a_finished_run_continued_does_nothing_more(tmp_path):
    first = start(tmp_path, stop=descend.Epochs(2))
    again = start(tmp_path, stop=descend.Epochs(2), resume=True)
    assert (again.steps, again.reason) == (first.steps, first.reason)
    assert largest_difference(first, again) == 0


@pytest.mark.parametrize("every_steps", [1, 2, 3])
def test_a_checkpoint_of_the_last_step_of_an_epoch_goes_on_with_its_validation(tmp_path, every_steps):
    """Saved within after_step, when the pass is done and its validation is not."""

    class Die(descend.Callback):
        def before_evaluation(self, evaluation):
            raise RuntimeError("killed")

    settings = {"valid": (X, Y), "stop": descend.Epochs(2)}
    with pytest.raises(RuntimeError, match="killed"):
        start(tmp_path, callbacks=[descend.Checkpoint(every_steps=every_steps), Die()], **settings)
    result = start(tmp_path, resume=True, **settings)
    whole = start(tmp_path / "whole", **settings)
    assert largest_difference(result, whole) == 0
    rows = [[(row["mode"], row["step"], row["samples"]) for row in run.history] for run in (result, whole)]
    assert rows[0] == rows[1]


def test_a_stream_that_has_become_shorter_is_found_out(tmp_path):
    batches = [(X[i : i + 2], Y[i : i + 2]) for i in range(0, 10, 2)]
    settings = {"batch_size": 2, "run_dir": tmp_path}
    fit(data=lambda: iter(batches), stop=descend.Steps(4), **settings)
    with pytest.raises(DataError, match="ended after 8 samples, before its last mini-batch"):
        fit(data=lambda: iter(batches[:3]), stop=descend.Steps(9), resume=True, **settings)


def test_weights_of_another_type_are_refused(tmp_path):
    start(tmp_path)
    with pytest.raises(StorageError, match=r"0.weight\s+\(8, 5\) float32\s+\(8, 5\) float64"):
        start(tmp_path, module=net().float(), data=(X.float(), Y), resume=True)


class Long:
    """Ten million samples that are their own numbers, and a list of those that were read."""

    role = "train"
    fields = {"x": Field((1,), np.float32), "y": Field((1,), np.float32)}  # noqa: RUF012  # as every reader has them

    def __init__(self):
        self.read_so_far: list[int] = []

    def __len__(self):
        return 1_000_000

    def read(self, samples, epoch=0):
        self.read_so_far += samples.tolist() if len(samples) < 1000 else []
        x = samples.astype(np.float32)[:, None] / 1e6
        return {"x": x, "y": x}


def test_at_99_percent_of_a_million_samples_no_skipped_sample_is_read(tmp_path):
    def go(steps, batch_size, **settings):
        reader = Long()
        ids = Losses()
        fit(
            nn.Linear(1, 1),
            "mse",
            reader,
            stop=descend.Steps(steps),
            batch_size=batch_size,
            run_dir=tmp_path,
            callbacks=[ids],
            **settings,
        )
        return reader, ids

    _, before = go(10, 99_000)
    reader, after = go(12, 64, resume=True)
    assert len(after.ids) == 128
    assert not set(after.ids) & set(before.ids)
    assert set(after.ids) <= set(reader.read_so_far)
    assert len(reader.read_so_far) <= 6 * 64  # two batches, and those that are read ahead


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({"epochs": 3}, r"no option 'epochs'; say stop=descend\.Epochs\(n\)"),
        ({"lr": 0.1}, "the rate is the optimizer's"),
        ({"batchsize": 8}, "did you mean 'batch_size'"),
        ({"optimizer": descend.SGD}, r"the class SGD: construct it with its settings, such as descend\.SGD\(learn"),
        ({"data": 5}, "data for 'train' must be .*got a int"),
        ({"metrics": ["acc"]}, "did you mean 'accuracy'"),
    ],
)
def test_a_common_mistake_is_answered_with_what_to_write(given, reported):
    usual = {"data": (torch.zeros(8, 4), torch.zeros(8, dtype=torch.long)), "optimizer": descend.SGD(learn_rate=0.1)}
    with pytest.raises(ConfigurationError, match=reported):
        descend.fit(torch.nn.Linear(4, 2), "cross_entropy", batch_size=4, stop=descend.Epochs(1), **{**usual, **given})


def test_a_learning_rate_that_is_not_set_is_reported():
    data, how = (torch.zeros(8, 4), torch.zeros(8, dtype=torch.long)), {"batch_size": 8, "stop": descend.Epochs(1)}
    with pytest.warns(UserWarning, match="SGD has a learning rate of 0.*give it learn_rate"):
        descend.fit(torch.nn.Linear(4, 2), "cross_entropy", data, optimizer=descend.SGD(), **how)


def test_parts_of_a_run_in_each_other_s_places_are_named():
    with pytest.raises(ConfigurationError, match=r"trainer must be Trainer.* got a Model(?s:.*)model must be"):
        descend.run(descend.Model(1), descend.Trainer(4), descend.zoo.digits(), descend.SGD(learn_rate=0.1))


def test_an_error_of_a_module_says_in_which_layer_it_arose_and_what_was_given():
    module = nn.Sequential(nn.Flatten(), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as raised:
        descend.fit(module, "cross_entropy", (X.float(), Y), optimizer=SGD, batch_size=5, stop=descend.Epochs(1))
    (note,) = raised.value.__notes__
    assert note.startswith("Raised in '1.1', a Linear; ")
    assert note.endswith("0 (5, 5) float32")
