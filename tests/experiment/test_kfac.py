"""K-FAC on graphs, and its text."""

import functools

import numpy as np
import pytest
import torch
from callback_runs import graph_work
from run_builder import execute
from torch import nn

import descend
from descend.errors import TextError
from descend.experiment.text import classes
from descend.graph import text
from descend.train import KFAC, BatchedIterativeOptimizer


def work(algorithm, **options):
    found = graph_work(**options)
    return functools.partial(type(found), **{**vars(found), "algorithm": algorithm})()


def test_a_graph_steps_as_the_same_module_does():
    """fc1 (16 to 5), relu, fc2 (5 to 3), softmax and cross-entropy, in float32, against torch's layers through fit."""
    kfac = KFAC(first_order_optimizer=BatchedIterativeOptimizer(num_iterations=4), gradient_bound=1.0)
    given = work(kfac, optimizer=descend.SGD(learn_rate=0.1, momentum=0.9))
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3))
    first = {name: p.detach().clone() for name, p in given.task.module.named_parameters()}
    module.load_state_dict(
        {
            "1.weight": first["fc1_linearity_weights"],
            "1.bias": first["fc1_bias_weights"],
            "3.weight": first["fc2_linearity_weights"],
            "3.bias": first["fc2_bias_weights"],
        }
    )
    batches = next(iter(given.data.values()))
    whole = batches.reader.read(np.arange(20))
    x, y = torch.tensor(whole["samples"]), torch.tensor(whole["labels"]).argmax(1)
    optimizer = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    given_to_fit = {"optimizer": optimizer, "batch_size": 8, "seed": 1, "stop": descend.Steps(4)}
    expected = descend.fit(module, "cross_entropy", (x, y), algorithm=KFAC(gradient_bound=1.0), **given_to_fit)
    found = execute(given, None, keep_files=False)
    torch.testing.assert_close(
        found.weights["fc1_linearity_weights"], expected.weights["1.weight"], rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(found.weights["fc2_bias_weights"], expected.weights["3.bias"], rtol=1e-4, atol=1e-6)


TEXT = """
name: "second order"
parameters {
  [type.googleapis.com/lbann_data.KFAC] {
    sgd { stopping_criteria { max_epochs: 3 } }
    damping_act: "1e-1 1e-3"
    kronecker_decay: 0.9
    use_pi: true
    disable_layers: "fc1 fc2"
    gradient_bound: 0.5
  }
}
"""


def read(source):
    return text.to_value(text.parse(source, "kfac.prototext", "TrainingAlgorithm"), classes())


def test_the_text_says_what_the_value_says():
    found = read(TEXT)
    assert found == KFAC(
        "second order",
        BatchedIterativeOptimizer(epoch_count=3),
        damping_act="1e-1 1e-3",
        kronecker_decay=0.9,
        use_pi=True,
        disable_layers="fc1 fc2",
        gradient_bound=0.5,
    )
    assert (found.damping_err, found.damping_warmup_steps, found.compute_interval) == ("0.03", 100, 1)
    trainer = descend.Trainer(8, training_algo=found)
    again = text.to_value(text.parse(text.render(trainer), "again", "Trainer"), classes())
    assert again.training_algo == found


def test_a_wrong_text_is_reported_with_its_place():
    with pytest.raises(TextError, match=r"kfac.prototext:1:1: KFAC: damping_act is 'x'"):
        read(TEXT.replace("1e-1 1e-3", "x"))
