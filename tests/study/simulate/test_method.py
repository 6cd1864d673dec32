"""Names of rules."""

import pytest

from descend.errors import ConfigurationError
from descend.study.simulate import Method, Quadratic, method


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("sgd", Method()),
        ("heavy-ball", Method("heavy_ball")),
        ("Momentum", Method("heavy_ball")),
        ("nesterov:0.5", Method("nesterov", preconditioner=0.5)),
        ("sgd+ema", Method(averaged=True)),
        ("heavy_ball+average:0.25", Method("heavy_ball", averaged=True, preconditioner=0.25)),
    ],
)
def test_names(text, rule):
    assert method(text) == rule
    assert method(method(text).name) == rule


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hevy_ball", "did you mean 'heavy_ball'"),
        ("sgd+", "of the form"),
        ("sgd:2", "from 0 to 1"),
        ("sgd:1..2", "of the form"),
    ],
)
def test_mistakes_are_answered(text, said):
    with pytest.raises(ConfigurationError, match=said):
        method(text)


def test_a_problem_that_makes_no_sense_is_refused_whole():
    with pytest.raises(ConfigurationError) as wrong:
        Quadratic(dimensions=0, start=-1)
    assert len(wrong.value.problems) == 2
