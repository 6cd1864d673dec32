"""Tournaments of graphs, from Python and from a prototext: activations that are replaced, K-FAC, the command line."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import descend
from descend.__main__ import main
from descend.callbacks import LocalTournament
from descend.errors import ConfigurationError, Stopped
from descend.experiment import save_prototext
from descend.experiment.graph_task import GraphTask
from descend.graph import check
from descend.lower import lower
from descend.train.population.ltfb import PairwiseWithTies

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def digits(tournament=0.2):
    readers = descend.zoo.digits()
    shares = {"train": {"tournament_fraction": tournament}}
    return replace(readers, reader=tuple(replace(r, **shares.get(r.role, {})) for r in readers.reader))


def graph(*callbacks):
    images, labels = (descend.Input(data_field=name, name=name) for name in ("samples", "labels"))
    hidden = descend.FullyConnected(images, num_neurons=12, has_bias=True, name="hidden")
    active = descend.Relu(hidden, name="active")
    scores = descend.FullyConnected(active, num_neurons=10, has_bias=True, name="scores")
    chances = descend.Softmax(scores, name="chances")
    loss = descend.CrossEntropy(chances, labels, name="loss")
    accuracy = descend.CategoricalAccuracy(chances, labels, name="right")
    return descend.Model(
        1,
        layers=descend.traverse_layer_graph([images, labels]),
        objective_function=descend.ObjectiveFunction([loss]),
        metrics=[descend.Metric(accuracy, name="accuracy")],
        callbacks=list(callbacks),
    )


def trainer(strategy, rounds=2, local=None, **settings):
    local = local or descend.BatchedIterativeOptimizer(num_iterations=8)
    algorithm = descend.LTFB(local_algo=local, metalearning=strategy, metalearning_steps=rounds)
    return descend.Trainer(mini_batch_size=50, random_seed=3, training_algo=algorithm, **settings)


SGD = descend.SGD(learn_rate=0.05, momentum=0.9)
BEST = {"accuracy": descend.RandomPairwiseExchange.MetricStrategy.HIGHER_IS_BETTER}
CHANGING = descend.TruncationSelectionExchange(BEST, 1, descend.MutationStrategy("replace_activation"))


def lineage(folder="run"):
    return [json.loads(line) for line in Path(folder, "tournament.jsonl").read_text().splitlines()]


def weights(result):
    return [{name: tensor.tolist() for name, tensor in one.weights.items()} for one in result.trainers]


class Signal(descend.Callback):
    def before_step(self, step):
        import os
        import signal

        if step.step == 13 and descend.distributed.trainer() == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_replaced_activation_moves_with_its_model_and_comes_back_with_it():
    whole = descend.run(trainer(CHANGING), graph(), digits(), SGD, "whole", trainers=3)
    changed = [row["changed"] for row in lineage("whole") if row["took"] is not None]
    assert len(changed) == 4
    assert all(list(change) == ["active"] and change["active"][0] != change["active"][1] for change in changed)
    assert all(change["active"][0] == "relu" for change in changed[:2])
    with pytest.raises(Stopped):
        descend.run(trainer(CHANGING), graph(Signal()), digits(), SGD, "run", trainers=3)
    result = descend.run(trainer(CHANGING), graph(), digits(), SGD, "run", resume=True)
    assert weights(result) == weights(whole)
    assert lineage() == lineage("whole")
    assert weights(whole)[0] != weights(whole)[1]


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("relu", torch.relu),
        ("tanh", torch.tanh),
        ("elu", torch.nn.functional.elu),
        ("sigmoid", torch.sigmoid),
        ("leaky relu", torch.nn.functional.leaky_relu),
    ],
)
def test_the_activations_are_what_they_are_called(name, function):
    plan = check(graph(), {"samples": (1, 8, 8), "labels": (10,)})
    module = lower(plan, lambda weights: torch.Generator().manual_seed(1))
    task = GraphTask(module, plan)
    task.take_form({"active": name})
    samples = torch.randn(4, 1, 8, 8)
    found = module.outputs(["hidden", "active"], {"samples": samples})
    torch.testing.assert_close(found["active"], function(found["hidden"]))
    reads = module({"samples": samples, "labels": torch.eye(10)[:4]})["loss"]  # as a run does: it may overwrite inputs
    expected = module.outputs(["loss"], {"samples": samples, "labels": torch.eye(10)[:4]})["loss"]
    torch.testing.assert_close(reads, expected)
    task.take_form({})
    assert torch.equal(module.outputs(["active"], {"samples": samples})["active"], found["hidden"].relu())


def test_a_model_without_activations_has_none_to_replace():
    images, labels = descend.Input(data_field="samples"), descend.Input(data_field="labels")
    scores = descend.FullyConnected(images, num_neurons=10, name="scores")
    loss = descend.CrossEntropy(descend.Softmax(scores), labels)
    model = descend.Model(
        1, layers=descend.traverse_layer_graph([images, labels]), objective_function=descend.ObjectiveFunction([loss])
    )
    plan = check(model, {"samples": (1, 8, 8), "labels": (10,)})
    task = GraphTask(lower(plan, lambda weights: torch.Generator().manual_seed(1)), plan)
    with pytest.raises(ConfigurationError, match="the model must have one of relu, tanh, elu, sigmoid, leaky relu"):
        task.replaceable(["activation"])


def test_trainers_begin_apart_or_alike():
    nothing = descend.BatchedIterativeOptimizer(stop=descend.Steps(0))
    strategy = descend.RandomPairwiseExchange(BEST)
    apart, alike = (
        descend.run(
            trainer(strategy, 0, nothing, random_init_trainers_identically=same),
            graph(),
            digits(),
            SGD,
            f"run-{same}",
            trainers=2,
        )
        for same in (False, True)
    )
    assert weights(apart)[0] != weights(apart)[1]
    assert weights(alike)[0] == weights(alike)[1] == weights(apart)[0]


def test_the_state_of_kfac_moves_too():
    kfac = descend.KFAC(
        first_order_optimizer=descend.BatchedIterativeOptimizer(num_iterations=3), damping_act=0.1, damping_err=0.1
    )
    result = descend.run(trainer(CHANGING, 1, kfac), graph(), digits(), SGD, "run", trainers=2)
    assert [one.steps for one in result.trainers] == [6, 6]
    assert all(math.isfinite(one.history[-1]["objective"]) for one in result.trainers)


def test_four_trainers_from_a_prototext(monkeypatch, capsys):
    """From the command line, as from Python; a run that has ended is resumed with the number that it had."""
    strategy = descend.RandomPairwiseExchange(BEST)
    parts = {"model": graph(), "data_reader": digits(), "optimizer": SGD}
    save_prototext("tournament.prototext", trainer=trainer(strategy), **parts)

    def call(*words):
        monkeypatch.setattr("sys.argv", ["descend", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, capsys.readouterr().out

    code, out = call("run", "tournament.prototext", "--trainers", "4", "--run-dir", "run")
    assert code == 0
    assert out.count('LTFB (model "model0", step ') == 8
    assert [line for line in out.splitlines() if line.startswith("trainer ")] == [f"trainer {n}:" for n in range(4)]
    result = descend.run(trainer(strategy), *parts.values(), "python", trainers=4)
    assert lineage() == lineage("python")
    assert len(weights(result)) == 4
    code, out = call("resume", "run")
    assert code == 0
    assert lineage() == lineage("python")


def test_without_samples_for_a_tournament_nothing_begins():
    with pytest.raises(ConfigurationError, match="role 'tournament'"):
        descend.run(trainer(CHANGING), graph(), digits(tournament=0.0), SGD, "run", trainers=2)
    assert not Path("run").exists()


def test_the_callback_in_one_process_does_what_rounds_of_as_many_steps_do():
    """Also where a signal ends one trainer between two exchanges, and the run goes on."""
    way = descend.ExchangeStrategy("sendrecv_weights", exchange_hyperparameters=True)
    rounds = descend.run(trainer(PairwiseWithTies(BEST, way)), graph(), digits(), SGD, "rounds", trainers=2)
    callback = LocalTournament(batch_interval=8, metric="accuracy", exchange_hyperparameters=True)
    alone = descend.Trainer(
        mini_batch_size=50, random_seed=3, training_algo=descend.BatchedIterativeOptimizer(num_iterations=24)
    )
    with pytest.raises(Stopped):
        descend.run(alone, graph(callback, Signal()), digits(), SGD, "run", trainers=2)
    found = descend.run(alone, graph(callback), digits(), SGD, "run", resume=True)
    assert [row["scores"] for row in lineage()] == [row["scores"] for row in lineage("rounds")]
    assert weights(found) == weights(rounds)
