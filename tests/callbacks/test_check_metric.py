import warnings

import pytest
from callback_runs import follow, graph_run
from toys import data

from descend.callbacks import CheckMetric
from descend.errors import ConfigurationError, NumericalError


def test_a_value_inside_the_bounds_is_fine_and_one_outside_ends_the_run():
    seen = follow(epochs=1).history[0]["absolute"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        follow(CheckMetric(metric="absolute", lower_bound=seen, upper_bound=seen, error_on_failure=True), epochs=1)
    above = CheckMetric(metric="absolute", lower_bound=seen + 1e-6, upper_bound=seen + 1, error_on_failure=True)
    with pytest.raises(NumericalError, match=r"train absolute is .* at step 3, which is not in \[") as failure:
        follow(above, epochs=1)
    assert failure.value.exit_code == 4


def test_a_warning_without_error_on_failure():
    with pytest.warns(UserWarning, match="CheckMetric: train absolute"):
        follow(CheckMetric(metric="absolute", lower_bound=-2, upper_bound=-1), epochs=1)


def test_nan_lies_in_no_bounds():
    broken = data(batch_size=4, ignored=range(10))  # nothing counts, so the mean is 0 / 0
    check = CheckMetric(metric="absolute", lower_bound=-1e30, upper_bound=1e30, error_on_failure=True)
    with pytest.raises(NumericalError, match="absolute is nan"):
        follow(check, epochs=1, batches=broken)


def test_only_the_named_modes_are_looked_at():
    check = CheckMetric(
        metric="absolute", lower_bound=-2, upper_bound=-1, error_on_failure=True, execution_modes="test"
    )
    follow(check, epochs=1, validation=data(batch_size=4))
    check = CheckMetric(
        metric="absolute", lower_bound=-2, upper_bound=-1, error_on_failure=True, execution_modes="test validation"
    )
    with pytest.raises(NumericalError, match="validation absolute"):
        follow(check, epochs=1, validation=data(batch_size=4))


def test_a_metric_in_per_cent_is_compared_in_per_cent(tmp_path):
    """The accuracy on 10 samples is a multiple of 10 %, so it is far above 1 only in per cent."""
    with pytest.raises(NumericalError) as failure:
        graph_run(
            tmp_path,
            CheckMetric(
                metric="accuracy", lower_bound=-2, upper_bound=-1, error_on_failure=True, execution_modes="test"
            ),
            epochs=0,
        )
    value = float(str(failure.value).split("accuracy is ")[1].split(" ")[0])
    assert value >= 10
    assert value % 10 == 0


@pytest.mark.parametrize(
    "given", [{}, {"metric": "m", "lower_bound": 2, "upper_bound": 1}, {"metric": "m", "execution_modes": "trian"}]
)
def test_settings_that_make_no_sense_are_refused(given):
    with pytest.raises(ConfigurationError):
        CheckMetric(**given)
