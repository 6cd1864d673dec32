import dataclasses
import inspect
from enum import Enum

import pytest

import descend
from descend.data.transforms import Scale
from descend.errors import ConfigurationError


@pytest.mark.parametrize(
    ("make", "wrong", "right"),
    [
        (descend.Trainer, {"mini_batch_sise": 64}, "mini_batch_size"),
        (descend.Print, {"intervall": 2}, "interval"),
        (descend.Checkpoint, {"every_step": 2}, "every_steps"),
        (descend.BatchedIterativeOptimizer, {"epoch_counts": 2}, "epoch_count"),
        (descend.Reader, {"data_file_dir": "x"}, "data_filedir"),
        (descend.DataReader, {"readers": []}, "reader"),
        (Scale, {"scala": 2}, "scale"),
        (descend.SGD, {"learn_rat": 2}, "learn_rate"),
        (descend.Convolution, {"kernel_sise": 2}, "kernel_size"),
        (descend.Weights, {"initialiser": None}, "initializer"),
        (descend.Model, {"callback": []}, "callbacks"),
    ],
)
def test_a_misspelt_keyword_is_answered_with_the_nearest(make, wrong, right):
    with pytest.raises(ConfigurationError, match=f"did you mean '{right}'"):
        make(**wrong)


def test_a_callback_of_one_s_own_takes_what_it_takes():
    class Loud(descend.Callback):
        def __init__(self, words, **more):
            self.words, self.more = words, more

    assert Loud("x", any_thing=1).more == {"any_thing": 1}


KINDS = [kind for name in descend.callbacks.__all__ if not issubclass(kind := getattr(descend, name), Enum)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_callbacks_show_their_arguments(kind: type):
    parameters = inspect.signature(kind).parameters
    for parameter in parameters.values():
        assert parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        assert parameter.annotation is not parameter.empty
        assert parameter.default is not parameter.empty
    if dataclasses.is_dataclass(kind):
        assert {field.name for field in dataclasses.fields(kind) if field.init} <= set(parameters)


def test_descriptions_show_their_arguments():
    scale = inspect.signature(Scale).parameters
    assert list(scale) == ["scale", "where"]
    assert scale["scale"].default == 0.0
    rate = inspect.signature(descend.CosineDecayLearningRate).parameters
    assert list(rate)[:3] == ["weights", "lr_max", "lr_min"]
    assert rate["weights"].default == ""
    assert rate["lr_max"].annotation == "float"
