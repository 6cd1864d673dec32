"""Groups of batch norm against a loop by hand that calls the layers on one group after the other."""

import copy
import functools
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import descend
from descend.data import ArrayReader
from descend.errors import ConfigurationError
from descend.experiment.run import run
from descend.lower import lower

GROUP = 4
DRAW = torch.Generator().manual_seed(0)
X = torch.randn(22, 2, 5, 5, dtype=torch.float64, generator=DRAW)
Y = torch.randint(0, 3, (22,), generator=DRAW)


def net():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layers = (
            nn.Conv2d(2, 3, 3),
            nn.BatchNorm2d(3, momentum=0.3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(27, 6),
            nn.BatchNorm1d(6, momentum=None),
            nn.Linear(6, 3),
        )
        return nn.Sequential(*layers).double()


def fit(module, batch_size=22, **options):
    optimizer = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return descend.fit(
            module,
            "cross_entropy",
            (X, Y),
            optimizer=optimizer,
            batch_size=batch_size,
            stop=descend.Steps(3),
            **options,
        )


def by_hand(steps=3, group=GROUP):
    """The module called on 4 + 4 + 4 + 4 + 4 + 2 samples one after the other, and one update for all of them."""
    module = net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        for some in torch.arange(22).split(group):
            (nn.functional.cross_entropy(module(X[some]), Y[some], reduction="sum") / 22).backward()
        optimizer.step()
    return module.state_dict()


def agree(found, expected):
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-13, msg=name)


@given(micro_batch_size=st.one_of(st.none(), st.integers(1, 30)))
@settings(max_examples=12)
def test_any_split_is_the_layers_called_on_one_group_after_the_other(micro_batch_size):
    """22 = 4 + 4 + 4 + 4 + 4 + 2: weights, running statistics and their counts."""
    found = fit(net(), micro_batch_size=micro_batch_size, batch_norm_group_size=GROUP, shuffle=False)
    agree(found.module.state_dict(), by_hand())


def test_a_group_as_large_as_the_batch_is_the_batch():
    agree(fit(net(), batch_norm_group_size=64, shuffle=False).module.state_dict(), by_hand(group=22))
    agree(fit(net(), shuffle=False).module.state_dict(), by_hand(group=22))


def test_evaluation_ignores_the_group():
    found = fit(net(), batch_norm_group_size=GROUP, valid=(X, Y), micro_batch_size=5)
    module = found.module.eval()
    with torch.no_grad():
        expected = nn.functional.cross_entropy(module(X), Y)
    rows = [row for row in found.history if row["mode"] == "validation"]
    assert rows[-1]["objective"] == pytest.approx(float(expected), rel=1e-12)


def test_several_rows_of_a_sample_stay_in_its_group():
    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.out = nn.BatchNorm1d(2).double(), nn.Linear(2, 3).double()

        def forward(self, x):  # (n, 2, 5, 5): 25 rows a sample
            return self.out(self.norm(x.flatten(2).transpose(1, 2).reshape(-1, 2))).view(len(x), 25, 3).mean(1)

    torch.manual_seed(0)
    module = Rows()
    expected = copy.deepcopy(module)
    for some in torch.arange(22).split(GROUP):
        expected(X[some])
    optimizer = functools.partial(torch.optim.SGD, lr=0.0)
    options = {"optimizer": optimizer, "batch_size": 22, "stop": descend.Steps(1), "shuffle": False}
    found = descend.fit(module, "cross_entropy", (X, Y), batch_norm_group_size=GROUP, micro_batch_size=8, **options)
    agree(found.module.state_dict(), expected.state_dict())


class Packed(nn.Module):
    """Normalizes rows of which a sample has one or two, as nodes of graphs or words of texts."""

    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(50).double(), nn.Linear(50, 3).double()

    def forward(self, x):
        x = x.flatten(1)
        return self.out(self.norm(torch.cat([x, x[:1]]))[: len(x)])


def test_rows_that_belong_to_no_sample_are_the_module_s_own_affair_until_a_group_is_declared():
    assert fit(Packed()).steps == 3
    with pytest.raises(ConfigurationError, match="gets 23 rows for 22 samples, so it is not known"):
        fit(Packed(), batch_norm_group_size=4)


def test_without_a_group_size_micro_batches_are_the_groups_and_the_warning_has_the_remedy():
    data = {"optimizer": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), "batch_size": 22, "shuffle": False}
    message = r"'1' \(BatchNorm2d\) normalizes over the 4 samples of a micro-batch.*as in batch_norm_group_size=4"
    with pytest.warns(UserWarning, match=message):
        found = descend.fit(net(), "cross_entropy", (X, Y), micro_batch_size=4, stop=descend.Steps(3), **data)
    agree(found.module.state_dict(), by_hand())


@pytest.mark.filterwarnings("ignore:.*normalizes over")
def test_micro_batches_of_unknown_batches_without_a_group_size_warn_in_the_first_step():
    batches = [(X[:11], Y[:11]), (X[11:], Y[11:])]
    optimizer = functools.partial(torch.optim.SGD, lr=0.1)
    options = {"optimizer": optimizer, "batch_size": None, "stop": descend.Epochs(1)}
    with pytest.warns(UserWarning, match="batch_norm_group_size=6"):
        descend.fit(net(), "cross_entropy", lambda: iter(batches), micro_batch_size=6, **options)
    with pytest.raises(ConfigurationError, match="a batch leaves a group of 1 sample"):
        descend.fit(net(), "cross_entropy", lambda: iter(batches), micro_batch_size=5, **options)


def test_micro_batches_that_are_not_whole_groups_are_reported():
    optimizer = functools.partial(torch.optim.SGD, lr=0.1)
    options = {"optimizer": optimizer, "batch_size": 22, "stop": descend.Steps(1), "batch_norm_group_size": 4}
    with pytest.warns(UserWarning, match="whole batch-norm groups of 4 samples, so their size is 8"):
        descend.fit(net(), "cross_entropy", (X, Y), micro_batch_size=11, **options)


@pytest.mark.parametrize(("size", "message"), [(0, "must be .*got 0"), (2.5, "must be .*got 2.5")])
def test_a_group_size_that_is_none_is_refused(size, message):
    with pytest.raises(ConfigurationError, match=message):
        fit(net(), batch_norm_group_size=size)


def test_a_group_size_that_nothing_uses_is_refused():
    with pytest.raises(ConfigurationError, match="has no batch norm layer; leave it out"):
        fit(nn.Sequential(nn.Flatten(), nn.Linear(50, 3)).double(), batch_norm_group_size=4)


def test_another_group_size_is_no_continuation(tmp_path):
    fit(net(), batch_norm_group_size=4, run_dir=tmp_path)
    with pytest.raises(ConfigurationError, match="batch_norm_group_size: 4 -> 8: refused"):
        fit(net(), batch_norm_group_size=8, run_dir=tmp_path, resume=True)


# ---- graphs


def graph(group=0, kind="both"):
    x = descend.Input(data_field="samples", name="x")
    y = descend.Input(data_field="labels", name="y")
    h = descend.Convolution(x, num_dims=2, out_channels=3, kernel_size=3, has_bias=True, name="conv")
    h = descend.BatchNormalization(h, name="bn") if kind in ("both", "channels") else h
    h = descend.FullyConnected(h, num_neurons=6, has_bias=True, name="fc")
    h = descend.EntrywiseBatchNormalization(h, decay=0.8, epsilon=1e-3, name="ebn") if kind == "both" else h
    h = descend.BatchwiseReduceSum(h) if kind == "sum" else h
    p = descend.Softmax(descend.FullyConnected(h, num_neurons=3, has_bias=True, name="out"))
    return descend.Model(2, objective_function=descend.CrossEntropy(p, y), batch_norm_group_size=group)


def graph_run(tmp_path, monkeypatch, group, micro_batch_size, samples=22, kind="both", batch_size=12):
    draw = np.random.default_rng(0)
    data = {"samples": draw.normal(size=(samples, 2, 5, 5)), "labels": np.eye(3)[draw.integers(3, size=samples)]}
    monkeypatch.setattr("descend.experiment.check.open_readers", lambda *_: {"train": ArrayReader(data)})
    monkeypatch.setattr("descend.experiment.build_experiment.lower", lambda *a, **k: lower(*a, **k).double())
    trainer = descend.Trainer(batch_size, random_seed=3, micro_batch_size=micro_batch_size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(trainer, graph(group, kind), descend.DataReader([]), descend.SGD(learn_rate=0.1), tmp_path)


@pytest.mark.parametrize("micro_batch_size", [1, 4, 5, 8, 11])
def test_a_graph_has_the_same_groups_under_any_split(tmp_path, monkeypatch, micro_batch_size):
    whole = graph_run(tmp_path / "whole", monkeypatch, 4, 0)
    cut = graph_run(tmp_path / "cut", monkeypatch, 4, micro_batch_size)
    agree(cut.weights, whole.weights)
    assert cut.history[-1]["objective"] == pytest.approx(whole.history[-1]["objective"], rel=1e-12)


def test_the_groups_of_a_graph_matter(tmp_path, monkeypatch):
    groups, whole = (graph_run(tmp_path / str(group), monkeypatch, group, 0) for group in (4, 0))
    assert float((groups.weights["conv_kernel"] - whole.weights["conv_kernel"]).abs().max()) > 1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": 0, "micro_batch_size": 4}, "layer 'bn'.*as in batch_norm_group_size=4"),
        ({"group": 0, "micro_batch_size": 4, "kind": "sum"}, "BatchwiseReduceSum.*leave micro_batch_size out"),
        ({"group": 3, "micro_batch_size": 0}, "layer 'ebn'.*a mini-batch of 10 leaves a group of 1 sample"),
        ({"group": 0, "micro_batch_size": 0, "samples": 13}, "layer 'ebn'.*a mini-batch of 1 leaves"),
        ({"group": 4, "micro_batch_size": 0, "kind": "none"}, "the model has no batch normalization"),
    ],
)
def test_what_cannot_be_of_a_graph_is_refused_before_anything_starts(tmp_path, monkeypatch, options, message):
    with pytest.raises(ConfigurationError, match=message):
        graph_run(tmp_path / "run", monkeypatch, **options)
    assert not (tmp_path / "run").exists()


def test_the_group_size_has_a_text_form():
    text = descend.graph.to_text(graph(64))
    assert "batch_norm_group_size: 64" in text
    assert descend.graph.from_text(text).batch_norm_group_size == 64
