import pytest
import torch
from callback_runs import follow, graph_run
from toys import Regression, data

import descend
from descend.callbacks import CheckGradients
from descend.errors import ConfigurationError, NumericalError
from descend.train.objective import Losses, Ratio


class Wrong(torch.autograd.Function):
    """The identity with a gradient that is 1 % too large."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 1.01 * gradient


class Mistaken(Regression):
    def losses(self, fields):
        losses = super().losses(fields)
        top, bottom = losses.objective
        return Losses(Ratio(Wrong.apply(top), bottom), losses.metrics)


def test_right_gradients_pass_and_everything_stays_as_it_was(capsys):
    checked, plain = (follow(*given, validation=data(batch_size=4)) for given in ([CheckGradients(verbose=True)], []))
    for ours, theirs in zip(checked.task.module.parameters(), plain.task.module.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    out = capsys.readouterr().out
    assert "checking gradients on a train mini-batch of 4 samples: 4 entries" in out
    assert out.count("weights bias, entry 0") == 1 + 2  # after training, and after each of two validations


def test_the_regularization_is_part_of_the_objective():
    follow(CheckGradients(error_on_failure=True), task=Regression(decay=0.3), epochs=1)


def test_wrong_gradients_are_found():
    with pytest.raises(NumericalError, match=r"of 4 entries are wrong; the worst: weights"):
        follow(CheckGradients(error_on_failure=True), task=Mistaken(), epochs=1)
    with pytest.warns(UserWarning, match="entries are wrong"):
        follow(CheckGradients(), task=Mistaken(), epochs=1)


def test_a_negative_objective_is_checked_all_the_same():
    """LBANN's bound is NaN then, and nothing is ever wrong."""

    class Negative(Mistaken):
        def losses(self, fields):
            losses = super().losses(fields)
            return Losses(Ratio(-losses.objective[0], losses.objective[1]), losses.metrics)

    with pytest.raises(NumericalError, match="entries are wrong"):
        follow(CheckGradients(error_on_failure=True), task=Negative(), epochs=1)


def test_the_layers_of_a_graph_pass_in_all_modes(tmp_path, capsys):
    graph_run(tmp_path, CheckGradients(error_on_failure=True), epochs=1)
    out = capsys.readouterr().out
    assert all(f"checking gradients on a {mode} mini-batch of " in out for mode in ("train", "validation", "test"))
    assert out.count(" samples: 103 entries") == 3


def test_statistics_are_those_of_the_mini_batch_that_is_checked(tmp_path, capsys):
    """The first mini-batch of training is of 16 samples, and that of the validation before it was of 12."""
    x = descend.FullyConnected(descend.Input(data_field="samples"), num_neurons=2)
    loss = descend.L2Norm2(descend.Softplus(descend.BatchNormalization(x, epsilon=0.1)))
    model = descend.Model(1, objective_function=loss, callbacks=[CheckGradients(step_size=1e-2)])
    counts = {"train": 20, "validate": 12}
    readers = [
        descend.Reader(name="synthetic", role=role, num_samples=n, synth_dimensions="3") for role, n in counts.items()
    ]
    trainer = descend.Trainer(mini_batch_size=16, random_seed=1)
    descend.run(trainer, model, descend.DataReader(readers), descend.SGD(learn_rate=0.1), tmp_path / "run")
    assert "checking gradients on a train mini-batch of 16 samples: 10 entries" in capsys.readouterr().out


def test_an_unknown_mode_is_refused():
    with pytest.raises(ConfigurationError, match="execution mode 'trian'"):
        CheckGradients(execution_modes="trian")
