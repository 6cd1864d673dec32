from dataclasses import replace

import pytest
from callback_runs import follow, graph_run, in_one_go_and_in_two
from toys import data

from descend.callbacks import CheckDataset, CheckNaN, CheckSmall, EvaluateProgress
from descend.errors import DataError, NumericalError
from descend.train import Callback


class Put(Callback):
    """Puts a value into a parameter before a step."""

    def __init__(self, weights, value, step=2):
        self.weights, self.value, self.step = weights, value, step

    def before_step(self, step):
        if step.step == self.step:
            step.run.control.weights[self.weights].detach()[0, 1] = self.value


def test_nan_is_found_in_the_first_layer_that_gives_it(tmp_path):
    with pytest.raises(NumericalError, match=r"output of layer 'fc2' is not finite in step 2 .*and \d+ in all"):
        graph_run(tmp_path, Put("fc2_linearity_weights", float("nan")), CheckNaN())


def test_nan_is_found_in_a_gradient_before_the_weights_change():
    class Spoil(Callback):
        def after_backward(self, step):
            self.before = step.module.weight.detach().clone()
            step.module.weight.grad[0, 0] = float("inf")

    spoil = Spoil()
    with pytest.raises(NumericalError, match=r"gradient of 'weight' is not finite in step 1.*entry \(0, 0\)"):
        follow(spoil, CheckNaN())


def test_nan_is_found_in_weights_after_the_update():
    class Spoil(Callback):
        def after_step(self, step):
            step.module.weight.detach()[0, 2] = float("nan")

    with pytest.raises(NumericalError, match=r"'weight' is not finite in step 1"):
        follow(Spoil(), CheckNaN())


def test_small_values_are_found_and_zeros_are_not(tmp_path):
    """√(2⁻¹²⁶) = 2⁻⁶³ ≈ 1.0842e-19 is the bound for float32; relu and biases give zeros."""

    class Shrink(Callback):
        def __init__(self, value):
            self.value = value

        def after_step(self, step):
            step.run.control.weights["fc2_linearity_weights"].detach()[0, 1] = self.value

    graph_run(tmp_path / "good", Shrink(2.0**-62), CheckSmall(), epochs=1)
    with pytest.raises(NumericalError, match=r"'fc2_linearity_weights' is too small.*entry \(0, 1\)"):
        graph_run(tmp_path / "bad", Shrink(2.0**-63), CheckSmall(), epochs=1)


def test_every_sample_once_is_fine_also_over_restarts(tmp_path):
    whole, parts = in_one_go_and_in_two(tmp_path, lambda: [CheckDataset()])
    assert whole.steps == parts.steps


def test_a_sample_given_twice_is_found():
    class Twice(Callback):
        def before_step(self, step):
            if step.step == 2:
                step.batch.ids[0] = 1

    with pytest.raises(DataError, match="train sample 1 was read twice in epoch 0"):
        follow(Twice(), CheckDataset())


def test_a_sample_left_out_is_found():
    batches = data(batch_size=4)
    given = batches.epoch

    def without_the_last(*at):
        for batch in given(*at):
            yield replace(batch, ids=batch.ids[:-1]) if batch.step == 2 else batch

    batches.epoch = without_the_last
    with pytest.raises(DataError, match="train sample 9 was not read in this epoch, and 1 in all"):
        follow(CheckDataset(), batches=batches)


def test_an_evaluation_within_a_training_step_is_counted_by_itself(tmp_path):
    callbacks = (EvaluateProgress(batch_interval=2, metric="accuracy"), CheckDataset())
    assert graph_run(tmp_path, *callbacks).steps == 6
