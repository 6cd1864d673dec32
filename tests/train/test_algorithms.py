"""Mini-batch descent as a value: which criterion is in force, planned epochs, its text form, and what is refused."""

import math

import pytest

from descend.errors import ConfigurationError
from descend.train.algorithms import SGD, BatchedIterativeOptimizer, TrainingAlgorithm
from descend.train.stopping import AnyOf, AnyOfLimits, Epochs, Limits, Seconds, Steps


def test_without_a_limit_the_model_s_number_of_epochs_holds():
    assert BatchedIterativeOptimizer().stopping(7) == Epochs(7)
    assert BatchedIterativeOptimizer(num_iterations=3).stopping(7) == AnyOf((Steps(3),))


def test_of_several_limits_the_first_one_met_ends_the_run():
    found = BatchedIterativeOptimizer("a", 3, 2, 1.5).stopping(7)
    assert found == AnyOf((Steps(3), Epochs(2), Seconds(1.5)))


def test_a_criterion_goes_before_all_limits():
    stop = Epochs(1) | Steps(2)
    assert BatchedIterativeOptimizer(stop=stop).stopping(7) is stop
    assert BatchedIterativeOptimizer(stop=stop).criterion() is stop


@pytest.mark.parametrize(
    ("algorithm", "planned"),
    [
        (BatchedIterativeOptimizer(), 9),
        (BatchedIterativeOptimizer(epoch_count=4, num_iterations=100), 4),
        (BatchedIterativeOptimizer(num_iterations=100), None),
        (BatchedIterativeOptimizer(stop=Epochs(3)), 3),
        (BatchedIterativeOptimizer(stop=Steps(3) | Epochs(5)), 5),
        (BatchedIterativeOptimizer(stop=Steps(3)), None),
    ],
)
def test_planned_epochs(algorithm, planned):
    assert algorithm.epochs(9) == planned


def test_a_stop_is_added_only_where_there_is_no_limit():
    plain = BatchedIterativeOptimizer("mine", suppress_timer_output=True)
    found = plain.until(Steps(4))
    assert found == BatchedIterativeOptimizer("mine", stop=Steps(4), suppress_timer_output=True)
    assert plain.stop is None
    for limited in (found, *(BatchedIterativeOptimizer("mine", **{key: 1}) for key in LIMITS)):
        with pytest.raises(ConfigurationError, match=r"'mine' has limits of its own and got stop=.* leave out one"):
            limited.until(Steps(9))


LIMITS = ("num_iterations", "epoch_count", "max_seconds")


@pytest.mark.parametrize(
    "settings",
    [{"num_iterations": -1}, {"epoch_count": 2.5}, {"max_seconds": math.nan}, {"stop": 3}, {"max_seconds": "1"}],
)
def test_a_wrong_limit_is_refused_when_the_algorithm_is_made(settings):
    with pytest.raises(ConfigurationError):
        BatchedIterativeOptimizer(**settings)


@pytest.mark.parametrize(
    ("settings", "limits"),
    [
        ({}, None),
        ({"num_iterations": 3}, Limits(max_batches=3)),
        ({"epoch_count": 3}, Limits(max_epochs=3)),
        ({"max_seconds": 1.5}, Limits(max_seconds=1.5)),
        ({"num_iterations": 3, "epoch_count": 2}, Limits(any_of=AnyOfLimits(3, 2, 0.0))),
        ({"stop": Steps(3) | Epochs(2)}, None),
        ({"stop": Steps(3) & Epochs(2)}, None),
    ],
)
def test_the_text_form_gives_the_algorithm_back(settings, limits):
    algorithm = BatchedIterativeOptimizer("mine", suppress_timer_output=True, **settings)
    fields = algorithm.to_fields()
    assert (fields["name"], fields["suppress_timer_output"]) == ("mine", True)
    if "stop" not in settings:
        assert fields["stopping_criteria"] == limits
    again = BatchedIterativeOptimizer.from_fields(fields)
    assert again.name == "mine"
    assert again.suppress_timer_output
    assert again.stopping(5).__class__ is algorithm.stopping(5).__class__
    assert again.to_fields() == fields


def test_a_text_without_fields_is_the_algorithm_without_limits():
    assert BatchedIterativeOptimizer.from_fields({}) == BatchedIterativeOptimizer("")


def test_sgd_is_its_other_name_and_it_trains_alone():
    assert SGD is BatchedIterativeOptimizer
    one = SGD()
    assert one.nested() == (one,)
    assert one.trains


def test_an_algorithm_that_lacks_apply_or_takes_no_stop_is_named():
    class Mine(TrainingAlgorithm):
        name = "mine"

    assert Mine().epochs(4) == 4
    assert Mine().criterion() is None
    with pytest.raises(NotImplementedError, match=r"Mine defines no apply\(\)"):
        Mine().apply(None)
    with pytest.raises(ConfigurationError, match="Mine takes no stop=; give the algorithm itself its limits"):
        Mine().until(Steps(1))
