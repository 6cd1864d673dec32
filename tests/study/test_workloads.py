"""Workloads from prototext and from the zoo: the same numbers as an experiment has."""

from pathlib import Path

import pytest
import torch

import descend
from descend.errors import ConfigurationError
from descend.experiment import load
from descend.study import Arm, Study, log, run_study
from descend.study.design.parameter_roles import roles_of
from descend.study.running.scores import Scorer
from descend.study.running.sequential import run_trial
from descend.study.running.trial import Trial
from descend.study.task import open_task

LENET = str(Path(__file__).parents[2] / "examples" / "lenet_digits.prototext")


def scored(task, module):
    module.eval()
    scorer = Scorer(task)
    return scorer.take_all(lambda *rows: scorer.ratios(module(*rows[:-1]), rows[-1]))["validation"]


def test_a_graph_has_the_loss_and_accuracy_that_torch_computes():
    task = open_task(LENET)
    module = task.module(5)
    images, labels, _ = task.validation
    probabilities = module.graph.outputs(["probabilities"], {"samples": images, "labels": labels})["probabilities"]
    found = scored(task, module)
    nll = torch.nn.functional.nll_loss(probabilities.double().log(), labels.argmax(1))
    assert float(found["loss"]) == pytest.approx(float(nll.detach()), rel=1e-5)
    assert float(found["accuracy"]) == pytest.approx(
        float((probabilities.argmax(1) == labels.argmax(1)).float().mean())
    )


def test_first_values_are_a_function_of_the_seed_alone():
    one, other = (open_task("zoo:MLP").module(5).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
    third = open_task("zoo:MLP").module(6).state_dict()
    assert not all(torch.equal(one[name], third[name]) for name in one)


def test_the_penalty_of_an_objective_is_in_the_loss(tmp_path):
    experiment = load(LENET)
    weights = descend.Weights(descend.ConstantInitializer(value=0.5), name="w")
    images, labels = descend.Input(data_field="samples"), descend.Input(data_field="labels")
    shrunk = descend.Softmax(descend.FullyConnected(images, num_neurons=10, weights=[weights], has_bias=False))
    terms = [descend.CrossEntropy(shrunk, labels), descend.L2WeightRegularization(scale=0.01, weights=[weights])]
    experiment.model = descend.Model(1, objective_function=terms)
    descend.save_prototext(
        str(tmp_path / "own.prototext"),
        trainer=experiment.trainer,
        model=experiment.model,
        data_reader=experiment.data_reader,
        optimizer=experiment.optimizer,
    )
    task = open_task(str(tmp_path / "own.prototext"))
    # Equal weights give equal probabilities: ln 10, and half of 0.01 Σ 0.5² over 64 × 10 weights.
    loss = float(scored(task, task.module(0))["loss"])
    assert loss == pytest.approx(2.302585 + 0.5 * 0.01 * 0.25 * 640, rel=1e-5)


def test_roles_are_those_of_the_layers():
    module = open_task("zoo:ResNet18", {"small_images": True}).module(0)
    assert set(roles_of(module).values()) == {"convolution", "norm", "bias", "head"}
    assert set(roles_of(open_task(LENET).module(0)).values()) == {"convolution", "matrix", "bias", "head"}


def test_a_study_of_the_zoo_runs_and_learns():
    arms = {"nesterov": Arm("SGD", {"lr": log(0.03, 0.1)}, {"momentum": 0.9, "roles.bias.lr_mult": 0.5})}
    least = {"trials": 1, "searches": 1, "shortlist": 1, "confirmation_seeds": 2}
    study = Study(workload="zoo:MLP", batch_sizes=64, steps=40, arms=arms, **least)
    result = run_study(study)
    assert result.groups[0].rows[0].median > 0.7
    assert len(result.groups[0].rows[0].test) == 2


def test_a_trial_is_the_same_again():
    trial = Trial("a", 64, 5, 0, "search", 0, 0, 7, {"optimizer": "SGD", "lr": 0.1, "schedule": "constant"})
    one, other = (run_trial(open_task("zoo:lenet"), trial, 1) for _ in range(2))
    assert one.scores == other.scores


@pytest.mark.parametrize(
    ("workload", "options", "said"),
    [
        ("zoo:ResNet81", {}, "did you mean 'ResNet18'"),
        ("zoo:lenet", {"data": "digit"}, "did you mean 'digits'"),
        ("zoo:lenet", {"width": 3}, "has the option data alone"),
        ("zoo:ResNet18", {"widht": 3}, "zoo:ResNet18"),
        (LENET, {"width": 3}, "takes no arguments"),
        ("lenet", {}, "FILE.prototext or zoo:NAME"),
    ],
)
def test_what_there_is_not_is_a_mistake(workload, options, said):
    with pytest.raises(ConfigurationError, match=said):
        open_task(workload, options)
