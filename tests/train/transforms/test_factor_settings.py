"""Settings of K-FAC's factors: damping and intervals against their recursions, and what is refused."""

import math

import pytest

from descend.arguments.leniency import lenient
from descend.errors import ConfigurationError
from descend.train.transforms.kfac import Damping, FactorSettings, UpdateInterval, as_text


@pytest.mark.parametrize(("first", "target", "steps"), [(0.3, 0.03, 10), (1.0, 1e-4, 100), (0.5, 0.25, 3)])
def test_damping_follows_the_recursion(first, target, steps):
    alpha = 2 * math.log10(first / target) / steps
    expected, damping = first, Damping(first, target, steps)
    for step in range(1, 30):
        expected = (1 - alpha) * expected + alpha * target
        assert damping.at(step) == pytest.approx(expected, rel=1e-10)


def test_damping_without_a_fall_is_constant():
    assert [Damping(0.03, 0.03, 5).at(step) for step in (1, 10**6)] == [0.03, 0.03]


def test_intervals_change_in_a_straight_line_and_then_stay():
    interval = UpdateInterval(1, 5, 8)
    assert [interval.at(step) for step in range(1, 12)] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 5]
    assert [UpdateInterval(6, 2, 2).at(step) for step in (1, 2, 3, 9)] == [6, 4, 2, 2]


def test_one_number_holds_throughout_and_two_are_first_and_target():
    settings = FactorSettings(damping_act="1e-1 1e-3", damping_err=0.2, damping_warmup_steps=7)
    assert settings.dampings() == (Damping(0.1, 0.001, 7), Damping(0.2, 0.2, 7))
    settings = FactorSettings(update_intervals=(2, 9), update_interval_steps=4)
    assert settings.interval() == UpdateInterval(2, 9, 4)
    assert FactorSettings().interval().at(10**6) == 1


@pytest.mark.parametrize(
    ("value", "text"), [("3e-2", "3e-2"), (0.03, "0.03"), ([1, 2.5], "1 2.5"), ((1e-3,), "0.001"), (10, "10")]
)
def test_numbers_are_kept_as_text(value, text):
    assert as_text(value) == text
    if text != "1 2.5":
        assert FactorSettings(damping_act=value).damping_act == text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"damping_act": "a lot"}, "damping_act is 'a lot'; expected one or two numbers above 0, spaces between"),
        ({"damping_act": "3 2 1"}, "damping_act is '3 2 1'; expected one or two numbers"),
        ({"damping_act": ""}, "damping_act is ''; expected one or two numbers"),
        ({"damping_err": float("inf")}, "damping_err is 'inf'; expected one or two numbers"),
        ({"damping_err": float("nan")}, "damping_err is 'nan'; expected one or two numbers"),
        ({"damping_err": -1.0}, "damping_err is '-1.0'; expected one or two numbers"),
        ({"damping_act": "1e-3 1e-2"}, "damping_act is '1e-3 1e-2'; expected the first number to fall to the second"),
        ({"update_intervals": "0.5 2"}, "update_intervals is '0.5 2'; expected integers of at least 1"),
        ({"kronecker_decay": 1.0}, "kronecker_decay is 1.0; expected above 0 and below 1"),
        ({"kronecker_decay": 0.0}, "kronecker_decay is 0.0; expected above 0 and below 1"),
        ({"compute_interval": 0}, "compute_interval is 0; expected a number above 0"),
        ({"damping_warmup_steps": -1}, "damping_warmup_steps is -1; expected a number above 0"),
        ({"update_interval_steps": 0}, "update_interval_steps is 0; expected a number above 0"),
        ({"learning_rate_factor": 0.0}, "learning_rate_factor is 0.0; expected a number above 0"),
        ({"gradient_bound": float("nan")}, "gradient_bound is nan; expected a number above 0"),
        ({"inverse_strategy": "al"}, "inverse_strategy is 'al'; expected all, each or root.*did you mean 'all'"),
    ],
)
def test_a_setting_out_of_range_is_named(settings, message):
    with pytest.raises(ConfigurationError, match=f"KFAC: {message}"):
        FactorSettings(**settings)


def test_all_problems_are_reported_at_once():
    with pytest.raises(ConfigurationError) as caught:
        FactorSettings(compute_interval=0, damping_act="x", kronecker_decay=2, inverse_strategy="none")
    named = [problem.split()[1] for problem in caught.value.problems]
    assert named == ["compute_interval", "damping_act", "kronecker_decay", "inverse_strategy"]


def test_intervals_may_rise_and_the_bound_may_be_infinite():
    assert FactorSettings(update_intervals="1 10", gradient_bound=math.inf).gradient_bound == math.inf


def test_defaults_are_those_of_the_page():
    """Files that set nothing count on these."""
    settings = FactorSettings()
    assert settings.dampings() == (Damping(0.03, 0.03, 100),) * 2
    assert settings.interval() == UpdateInterval(1, 1, 1)
    assert (settings.kronecker_decay, settings.compute_interval) == (0.99, 1)
    assert (settings.learning_rate_factor, settings.gradient_bound) == (1.0, 0.001)
    switches = ("use_pi", "use_eigen_decomposition", "print_time", "print_matrix", "print_matrix_summary")
    assert not any(getattr(settings, name) for name in switches)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_zero_of_lbann_s_files_is_the_default_where_its_driver_allows_it():
    with lenient():
        settings = FactorSettings(kronecker_decay=0.0, damping_warmup_steps=0)
        assert FactorSettings(kronecker_decay=0.5, damping_warmup_steps=3).damping_warmup_steps == 3
    assert (settings.kronecker_decay, settings.damping_warmup_steps) == (0.99, 100)


def test_a_damping_of_zero_is_refused():
    with pytest.raises(ConfigurationError, match=r"damping_act is '0\.0'; expected one or two numbers above 0"):
        FactorSettings(damping_act=0.0)
