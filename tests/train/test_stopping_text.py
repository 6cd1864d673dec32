"""Stopping criteria and their text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from descend.errors import ConfigurationError, TextError
from descend.experiment.text import classes
from descend.graph import text
from descend.train import AllOf, AnyOf, BatchedIterativeOptimizer, Epochs, Reached, Seconds, SecondsPerRun, Steps, Stop
from descend.train.progress import Progress
from descend.train.stopping_text import limits_of, stop_of

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
@settings(max_examples=100, deadline=None)
def test_every_criterion_comes_back_from_its_limits(stop):
    assert stop_of(limits_of(stop)) == stop


class Unnamed(BatchedIterativeOptimizer):
    """Without the name, for which the message SGD by itself has no room."""

    def to_fields(self):
        return {name: value for name, value in super().to_fields().items() if name != "name"}


@given(stop=criteria)
@settings(max_examples=50, deadline=None)
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
    with pytest.raises(TextError, match="a criterion says nothing"):
        read(f"stopping_criteria {{ {limits} }}")


def test_a_criterion_of_ones_own_has_no_text():
    class Never(Stop):
        def reason(self, at):
            return None

    with pytest.raises(ConfigurationError, match="has no text form"):
        limits_of(Never())
