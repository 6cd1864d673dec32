import pytest
import torch
from callback_runs import follow
from toys import data

import descend
from descend.callbacks import EvaluateProgress
from descend.errors import ConfigurationError


def test_evaluates_in_the_midst_of_an_epoch_and_changes_nothing(capsys):
    plain = follow(validation=data(samples=8), epochs=2)
    run = follow(EvaluateProgress(batch_interval=2, metric="absolute"), validation=data(samples=8), epochs=2)
    rows = [(row["mode"], row["step"]) for row in run.history]
    assert [step for mode, step in rows if mode == "validation"] == [2, 3, 4, 6, 6]
    assert "model0 (instance 0) step 2 validation absolute : " in capsys.readouterr().out
    torch.testing.assert_close(run.task.module.weight, plain.task.module.weight, rtol=0, atol=0)
    ours, theirs = ([row["objective"] for row in r.history if row["mode"] == "train"] for r in (run, plain))
    assert ours == theirs


def test_needs_something_to_evaluate_on():
    with pytest.raises(ConfigurationError, match="'tournament', 'validate' or 'test'"):
        follow(EvaluateProgress(batch_interval=2, metric="absolute"))


def test_a_metric_has_its_unit(capsys):
    module = torch.nn.Linear(3, 2)
    x, y = torch.eye(3), module(torch.eye(3)).argmax(1)
    descend.fit(
        module,
        "cross_entropy",
        (x, y),
        optimizer=descend.SGD(learn_rate=1e-6),
        batch_size=3,
        stop=descend.Steps(1),
        valid=(x, y),
        metrics=["accuracy"],
        callbacks=[EvaluateProgress(batch_interval=1, metric="accuracy")],
    )
    assert "Linear (instance 0) step 1 validation accuracy : 100%\n" in capsys.readouterr().out
