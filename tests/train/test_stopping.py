"""Stopping criteria, and their text form."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from descend.errors import ConfigurationError, TextError
from descend.experiment.text import classes
from descend.graph import text
from descend.train import AllOf, AnyOf, BatchedIterativeOptimizer, Epochs, Reached, Seconds, SecondsPerRun, Steps, Stop
from descend.train.progress import Progress
from descend.train.stopping import AnyOfLimits, Limits, limits_of, stop_of


def at(step: int = 0, epoch: int = 0, seconds: float = 0.0, this_run: float = 0.0, **values: float) -> Progress:
    named = {name.replace("__", "/"): value for name, value in values.items()}
    return Progress(step, epoch, seconds, this_run, named)


def test_steps_and_epochs_answer_with_their_reason():
    assert Steps(3).reason(at(step=2)) is None
    assert Steps(3).reason(at(step=3)) == "applied 3 of 3 updates"
    assert Epochs(2).reason(at(epoch=1)) is None
    assert Epochs(2).reason(at(epoch=2)) == "finished 2 of 2 epochs"


def test_zero_epochs_stop_before_the_first_step():
    assert Epochs(0).reason(at()) is not None


def test_seconds_count_all_restarts_and_seconds_per_run_do_not():
    now = at(seconds=100.0, this_run=10.0)
    assert Seconds(60).reason(now) is not None
    assert SecondsPerRun(60).reason(now) is None


def test_reached_prefers_validation():
    now = at(train__accuracy=0.99, validation__accuracy=0.8, validation__objective=0.2)
    assert Reached("accuracy", 0.9).reason(now) is None
    assert "0.99" in str(Reached("train/accuracy", 0.9).reason(now))
    assert Reached("objective", 0.3, at_most=True).reason(now) is not None
    assert Reached("no_such_metric", 0.0).reason(now) is None


@pytest.mark.parametrize(
    ("name", "value", "not_yet", "reached"),
    [
        ("train/objective", 0.1, 1.08666, 0.09),
        ("objective", 0.1, 1.08666, 0.1),
        ("train/second/objective", 0.1, 1.46528, 0.05),
        ("validation/accuracy", 0.9, 0.89, 0.9),
        ("accuracy", 0.9, 0.1, 0.95),
    ],
)
def test_reached_takes_the_direction_in_which_the_metric_gets_better(name, value, not_yet, reached):
    stop, key = Reached(name, value), name if "/" in name else f"train/{name}"
    assert stop.reason(Progress(1, 1, 0.0, 0.0, {key: not_yet})) is None
    assert stop.reason(Progress(1, 1, 0.0, 0.0, {key: float("nan")})) is None
    assert stop.reason(Progress(1, 1, 0.0, 0.0, {key: reached})) is not None


def test_an_explicit_direction_of_reached_is_taken_as_it_is():
    rises = Reached("train/objective", 0.5, at_most=False)
    assert rises.reason(at(train__objective=0.4)) is None
    assert rises.reason(at(train__objective=0.6)) is not None
    assert Reached("train/accuracy", 0.5, True).reason(at(train__accuracy=0.4)) is not None


@pytest.mark.parametrize("wrap", [lambda stop: stop, lambda stop: stop | Epochs(3), lambda stop: stop & Epochs(3)])
def test_a_metric_of_unknown_direction_is_refused_before_anything_runs(wrap):
    with pytest.raises(ConfigurationError, match=r"Reached\('score'\): it is not known .* pass at_most=True"):
        BatchedIterativeOptimizer(stop=wrap(Reached("score", 3.0)))
    assert BatchedIterativeOptimizer(stop=wrap(Reached("score", 3.0, at_most=False))).stop is not None


def test_a_misspelt_metric_gets_the_nearest_name():
    with pytest.raises(ConfigurationError, match="did you mean 'accuracy'"):
        BatchedIterativeOptimizer(stop=Reached("acuracy", 0.9))


def test_any_of_gives_the_first_reason_and_all_of_waits_for_every_one():
    either, both = Steps(5) | Epochs(1) | Seconds(9), Steps(5) & Epochs(1)
    assert either.reason(at(step=5)) == "applied 5 of 5 updates"
    assert len(either.criteria) == 3
    assert both.reason(at(step=5)) is None
    assert both.reason(at(step=5, epoch=1)) == "applied 5 of 5 updates and finished 1 of 1 epochs"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Steps(-1), "Steps: steps must be an integer >= 0, got -1"),
        (lambda: Epochs(1.5), "Epochs: epochs must be an integer >= 0, got 1.5"),
        (lambda: Epochs(True), "Epochs: epochs must be an integer >= 0, got True"),
        (lambda: Seconds(float("nan")), "Seconds: seconds must be a finite number >= 0, got nan"),
        (lambda: SecondsPerRun(-1.0), "SecondsPerRun: seconds must be a finite number >= 0, got -1.0"),
        (lambda: Reached("loss", float("inf")), "value must be a finite number, got inf"),
        (lambda: Reached("loss", 1.0, at_most="yes"), "at_most must be True or False or None, got 'yes'"),
    ],
)
def test_limits_that_make_no_sense_are_refused_with_the_value(make, message):
    with pytest.raises(ConfigurationError) as error:
        make()
    assert message in str(error.value)


def test_counts_of_numpy_are_counts():
    assert Epochs(np.int64(3)) == Epochs(3)
    assert type(Epochs(np.int64(3)).epochs) is int


counts, seconds = st.integers(0, 10**9), st.floats(0, 1e6)
single = st.one_of(
    counts.map(Steps),
    counts.map(Epochs),
    seconds.map(Seconds),
    seconds.map(SecondsPerRun),
    st.builds(Reached, st.sampled_from(["accuracy", "validation/objective"]), st.floats(-1e3, 1e3), st.booleans()),
)
criteria = st.recursive(
    single,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: AnyOf(tuple(parts))),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: AllOf(tuple(parts))),
    ),
    max_leaves=6,
)


def through_text(algorithm):
    written = text.render(algorithm)
    return written, text.to_value(text.parse(written, "sgd.prototext", "SGD"), classes())


def read(source):
    return text.to_value(text.parse(source, "sgd.prototext", "SGD"), classes())


@given(stop=criteria)
@settings(max_examples=100)
def test_every_criterion_comes_back_from_its_limits(stop):
    assert stop_of(limits_of(stop)) == stop


class Unnamed(BatchedIterativeOptimizer):
    """Without the name, for which the message SGD by itself has no room."""

    def to_fields(self):
        return {name: value for name, value in super().to_fields().items() if name != "name"}


@given(stop=criteria)
@settings(max_examples=50)
def test_every_criterion_comes_back_from_its_text(stop):
    _, found = through_text(Unnamed(stop=stop))
    assert found.stopping(7) == stop or found.stopping(7) == AnyOf((stop,))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ("suppress_timer_output: true", Epochs(7)),
        ("stopping_criteria { max_batches: 5 }", AnyOf((Steps(5),))),
        ("stopping_criteria { max_epochs: 0 }", Epochs(0)),
        ("stopping_criteria { any_of { max_batches: 5 max_seconds: 2 } }", AnyOf((Steps(5), Seconds(2.0)))),
        (
            "stopping_criteria { any_of { max_epochs: 9 criterion { all_of { criterion { max_batches: 3 } criterion { "
            'reached { name: "accuracy" value: 0.9 } } } } } }',
            AnyOf((Epochs(9), AllOf((Steps(3), Reached("accuracy", 0.9))))),
        ),
    ],
)
def test_texts_of_limits(limits, expected):
    assert read(limits).stopping(7) == expected


def test_the_reason_of_a_text_is_that_of_its_criterion():
    found = read(
        'stopping_criteria { all_of { criterion { max_epochs: 2 } criterion { reached { name: "objective" value: 0.5 '
        "at_most: true } } } }"
    ).stopping()
    assert found.reason(Progress(10, 2, 1.0, values={"train/objective": 0.7})) is None
    reason = found.reason(Progress(10, 3, 1.0, values={"train/objective": 0.4}))
    assert reason == "finished 3 of 2 epochs and train/objective reached 0.4, the target being 0.5"


@pytest.mark.parametrize("limits", ["any_of {}", "all_of {}", "all_of { criterion {} }"])
def test_criteria_that_say_nothing_are_refused(limits):
    with pytest.raises(TextError, match="a criterion sets no limit"):
        read(f"stopping_criteria {{ {limits} }}")


def test_a_text_without_at_most_keeps_its_meaning():
    """A `reached` of a text rises to its value unless it says otherwise, whatever the metric is called."""
    found = read('stopping_criteria { reached { name: "train/objective" value: 0.5 } }').stopping()
    assert found == Reached("train/objective", 0.5, at_most=False)


def test_a_criterion_says_on_which_values_it_waits():
    reached = Reached("validation/accuracy", 0.9), Reached("train/objective", 0.1)
    assert Stop().awaited == Epochs(1).awaited == ()
    assert reached[0].awaited == ("validation/accuracy",)
    assert (reached[0] | Epochs(1) | reached[1]).awaited == ("validation/accuracy", "train/objective")
    assert (reached[0] & reached[1] & Epochs(1)).awaited == ("validation/accuracy", "train/objective")


def test_limits_on_time_are_met_when_they_are_reached():
    assert Seconds(5).reason(at(seconds=4.9)) is None
    assert Seconds(5).reason(at(seconds=5.0)) == "trained for 5.0 of 5 seconds"
    per_run = SecondsPerRun(10)
    assert per_run.reason(Progress(0, 0, 0.0, 7.0, {}, 2.9)) is None
    ended = per_run.reason(Progress(0, 0, 0.0, 7.0, {}, 3.0))
    assert ended == "ran for 7.0 of 10 seconds in this process, 3.0 being kept to save and to evaluate"


def test_a_metric_of_an_unknown_direction_decides_nothing():
    unknown = Reached("validation/score", 1.0)
    with pytest.raises(ConfigurationError, match="at_most=True"):
        unknown.reason(at(validation__score=2.0))
    with pytest.raises(ConfigurationError, match="at_most=True"):
        limits_of(unknown)
    with pytest.raises(ConfigurationError, match="name"):
        Reached("", 1.0)


def test_a_text_form_sets_no_limit_by_itself():
    assert AnyOfLimits() == AnyOfLimits(max_batches=0, max_epochs=0, max_seconds=0.0)
    assert limits_of(Epochs(2) | Steps(3)).any_of == AnyOfLimits(
        criterion=(Limits(max_epochs=2), Limits(max_batches=3))
    )


def test_epochs_alone_do_not_end_a_run_within_an_epoch():
    class Odd(Epochs):
        def reason(self, at):
            return "an odd step" if at.step % 2 else None

    assert not Epochs(3).ends_within_epoch
    assert not (Epochs(3) | Epochs(4)).ends_within_epoch
    assert not (Epochs(3) & Epochs(4)).ends_within_epoch
    for stop in (Steps(3), Seconds(1), SecondsPerRun(1), Reached("train/objective", 0.1), Odd(3)):
        assert stop.ends_within_epoch
        assert (Epochs(3) | stop).ends_within_epoch
        assert (stop & Epochs(3)).ends_within_epoch


def test_a_criterion_of_ones_own_has_no_text():
    class Never(Stop):
        def reason(self, at):
            return None

    with pytest.raises(ConfigurationError, match="has no text form"):
        limits_of(Never())
