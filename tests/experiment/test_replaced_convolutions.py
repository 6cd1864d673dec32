"""Convolutions that a tournament replaces: shapes that stay, new weights, what moves with a model, and going on."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import descend
from descend.errors import ConfigurationError, Stopped
from descend.experiment.graph_task import GraphTask
from descend.graph import check
from descend.graph.variants import replaceable, variant
from descend.lower import lower
from descend.train.param_groups import exchange_parameters

FIELDS = {"samples": (1, 8, 8), "labels": (10,)}


def graph(*callbacks, kernel=5, padding=0, stride=1, frozen=False):
    images, labels = (descend.Input(data_field=name, name=name) for name in FIELDS)
    weights = [descend.Weights(optimizer=descend.NoOptimizer(), name="kernel")] if frozen else []
    x = descend.Convolution(
        images,
        num_dims=2,
        out_channels=4,
        kernel_size=[kernel],
        padding=[padding],
        stride=[stride],
        weights=weights,
        name="conv",
    )
    x = descend.BatchNormalization(x, decay=0.9, epsilon=1e-5, name="bn")
    scores = descend.FullyConnected(x, num_neurons=10, has_bias=True, name="scores")
    chances = descend.Softmax(scores, name="chances")
    loss = descend.CrossEntropy(chances, labels, name="loss")
    right = descend.CategoricalAccuracy(chances, labels, name="right")
    return descend.Model(
        1,
        layers=descend.traverse_layer_graph([images, labels]),
        objective_function=descend.ObjectiveFunction([loss, descend.L2WeightRegularization(scale=1e-3)]),
        metrics=[descend.Metric(right, name="accuracy")],
        callbacks=list(callbacks),
    )


def task(**settings):
    plan = check(graph(**settings), FIELDS)
    return GraphTask(lower(plan, lambda weights: torch.Generator().manual_seed(1)), plan)


def draws(weights):
    return torch.Generator().manual_seed(2)


@pytest.mark.parametrize("settings", [{}, {"kernel": 3, "padding": 1}, {"kernel": 7, "padding": 3, "stride": 2}])
def test_every_choice_leaves_the_shapes_of_all_other_layers(settings):
    plan = check(graph(**settings), FIELDS)
    choices = replaceable(plan).convolutions["conv"]
    assert len(choices) == (12 if settings else 9)  # without padding a kernel of 3 has more places than one of 5
    before = {planned.name: planned.output_shapes for planned in plan.layers if planned.name != "conv"}
    samples = torch.randn(2, 1, 8, 8)
    for choice in choices:
        changed = variant(plan, {"conv": choice})
        after = {planned.name: planned.output_shapes for planned in changed.layers}
        assert after.items() >= before.items()
        module = lower(changed, draws)
        found = module.outputs(["conv", "conv_shim"], {"samples": samples})
        conv = next(planned.layer for planned in changed.layers if planned.name == "conv")
        kernel, bias, shim, other = (
            module.get_parameter(f"conv{name}") for name in ("_kernel", "_bias", "_shim_kernel", "_shim_bias")
        )
        assert kernel.shape == (choice["channels"], 1, choice["kernel"], choice["kernel"])
        expected = functional.conv2d(samples, kernel, bias, conv.stride, conv.padding)
        torch.testing.assert_close(found["conv"], expected)
        torch.testing.assert_close(found["conv_shim"], functional.conv2d(expected, shim, other))


def test_new_weights_begin_without_state_and_beside_those_that_they_replace():
    one = task()
    named = dict(one.module.named_parameters())
    mine = [named.pop("conv_kernel"), named.pop("conv_bias")]
    optimizer = descend.optim.SGD([{"params": mine, "lr": 0.5}, {"params": list(named.values())}], lr=0.1, momentum=0.9)
    before = dict(one.module.named_parameters())
    for p in before.values():
        p.grad = torch.ones_like(p)
    optimizer.step()
    one.take_form({"conv": {"kernel": 7, "channels": 16}}, draws)
    now = dict(one.module.named_parameters())
    exchange_parameters(optimizer, before, now, one.replaced_by())
    names = {p: name for name, p in now.items()}
    groups = [[names[p] for p in group["params"]] for group in optimizer.param_groups]
    assert groups[0] == ["conv_kernel", "conv_shim_kernel", "conv_bias", "conv_shim_bias"]
    assert groups[1] == [name for name in now if name not in groups[0]]
    assert {names[p] for p in optimizer.state} == set(groups[1])
    assert now["scores_linearity_weights"] is before["scores_linearity_weights"]
    assert set(one._plan.objective.l2[0].weights) >= set(now)
    for p in now.values():
        p.grad = torch.ones_like(p)
    kernel = now["conv_shim_kernel"].detach().clone()
    optimizer.step()
    torch.testing.assert_close(now["conv_shim_kernel"], kernel - 0.5)


def test_what_cannot_be_replaced_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="a convolution with trained weights"):
        task(frozen=True).replaceable(["convolution"])
    with pytest.raises(ConfigurationError, match="cannot stand in the place of layer 'conv'"):
        task().take_form({"conv": {"kernel": 3, "channels": 16}})
    strategy = descend.TruncationSelectionExchange(BEST, 1, descend.MutationStrategy("replace_convolution"))
    with pytest.raises(ConfigurationError, match="EMA keeps copies"):
        descend.run(trainer(strategy), graph(descend.EMA(0.9)), digits(), descend.SGD(learn_rate=0.1), tmp_path / "run")


BEST = {"accuracy": descend.RandomPairwiseExchange.MetricStrategy.HIGHER_IS_BETTER}


def digits():
    shares = {"train": {"tournament_fraction": 0.2, "fraction_of_data_to_use": 0.1}}
    readers = descend.zoo.digits()
    return replace(readers, reader=tuple(replace(one, **shares.get(one.role, {})) for one in readers.reader))


def trainer(strategy, rounds=3):
    local = descend.BatchedIterativeOptimizer(num_iterations=4)
    algorithm = descend.LTFB(local_algo=local, metalearning=strategy, metalearning_steps=rounds)
    return descend.Trainer(mini_batch_size=20, random_seed=3, training_algo=algorithm)


class Signal(descend.Callback):
    def before_step(self, step):
        if step.step == 11 and descend.distributed.trainer() == 1:
            os.kill(os.getpid(), signal.SIGTERM)


MUTATION = descend.MutationStrategy("replace_convolution")


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        descend.TruncationSelectionExchange(BEST, 1, MUTATION),
        descend.RandomPairwiseExchange(BEST, descend.ExchangeStrategy("sendrecv_weights"), MUTATION),
    ],
    ids=["truncation", "pairwise"],
)
def test_models_of_other_structure_are_exchanged_and_go_on_to_the_same_bits(strategy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sgd = descend.SGD(learn_rate=0.05, momentum=0.9)
    whole = descend.run(trainer(strategy), graph(), digits(), sgd, "whole", trainers=3)
    with pytest.raises(Stopped):
        descend.run(trainer(strategy), graph(Signal()), digits(), sgd, "run", trainers=3)
    again = descend.run(trainer(strategy), graph(), digits(), sgd, "run", resume=True)
    rows = [json.loads(line) for line in Path("whole", "tournament.jsonl").read_text().splitlines()]
    assert Path("run", "tournament.jsonl").read_text() == Path("whole", "tournament.jsonl").read_text()
    changed = [row["changed"]["conv"] for row in rows if row["took"] is not None]
    assert changed
    for one, other in zip(whole.trainers, again.trainers, strict=True):
        assert one.weights.keys() == other.weights.keys()
        assert all(torch.equal(value, other.weights[name]) for name, value in one.weights.items())
        last = [row["changed"]["conv"][1] for row in rows if row["trainer"] == one.trainer and row["took"] is not None]
        channels, _, kernel, _ = one.weights["conv_kernel"].shape
        if last:
            assert last[-1] == f"kernel {kernel}, {channels} channels"
