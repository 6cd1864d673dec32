import pytest
import torch
from callback_runs import StopAt, follow, work
from toys import data

from descend.callbacks import EarlyStopping
from descend.errors import ConfigurationError, Stopped
from descend.experiment.runner import execute
from descend.train import Callback


class Scores(Callback):
    """Puts made-up objectives in the place of the real ones."""

    def __init__(self, *scores):
        self.scores = scores

    def after_evaluation(self, evaluation):
        evaluation.values["objective"] = self.scores[evaluation.epoch - 1]


@pytest.mark.parametrize(
    ("patience", "scores", "epochs"),
    [
        (0, [3.0, 2.0, 2.0, 1.0], 3),  # equal is not better
        (1, [3.0, 4.0, 2.0, 2.5, 2.4, 1.0], 5),
        (2, [3.0, 4.0, 4.0, 2.9, 3.0, 3.0, 3.0, 1.0], 7),
        (1, [3.0, float("nan"), float("nan"), 1.0], 3),
        (3, [3.0, 4.0, 4.0, 4.0], 4),  # not yet
    ],
)
def test_training_ends_after_patience_evaluations_that_are_no_better(patience, scores, epochs):
    run = follow(Scores(*scores), EarlyStopping(patience=patience), validation=data(), epochs=len(scores))
    assert run.contexts["train"].epoch == epochs
    assert ("patience" in run.reason) == (epochs < len(scores))


def test_the_line_and_the_reason(capsys):
    run = follow(Scores(3.0, 2.0, 2.5, 1.0), EarlyStopping(), validation=data(), epochs=4)
    assert "Model 0 terminating training due to early stopping: 2.5 score and 2 last score" in capsys.readouterr().out
    assert run.reason == "validation objective 2.5 was not below 2 for 1 evaluations, the patience being 0"


def test_patience_survives_a_restart(tmp_path):
    def callbacks():
        return Scores(3.0, 4.0, 4.0, 4.0), EarlyStopping(patience=1)

    whole = execute(work(*callbacks()), tmp_path / "whole")
    with pytest.raises(Stopped):
        execute(work(*callbacks(), StopAt(13)), tmp_path / "parts", resume=True)
    parts = execute(work(*callbacks()), tmp_path / "parts", resume=True)
    assert parts.steps == whole.steps == 18
    assert parts.reason == whole.reason
    again = execute(work(*callbacks()), tmp_path / "parts", resume=True)
    assert (again.steps, again.reason) == (18, whole.reason)
    torch.testing.assert_close(again.weights["weight"], whole.weights["weight"], rtol=0, atol=0)


def test_a_run_without_validation_samples_is_refused():
    with pytest.raises(ConfigurationError, match="EarlyStopping looks at validation samples"):
        follow(EarlyStopping())
