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
