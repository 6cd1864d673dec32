import pytest

from descend.errors import ConfigurationError
from descend.train import Epochs, Progress, Reached, Seconds, SecondsPerRun, Steps


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


def test_reached_prefers_validation_and_can_come_from_above():
    now = at(train__accuracy=0.99, validation__accuracy=0.8, validation__objective=0.2)
    assert Reached("accuracy", 0.9).reason(now) is None
    assert "0.99" in str(Reached("train/accuracy", 0.9).reason(now))
    assert Reached("objective", 0.3, at_most=True).reason(now) is not None
    assert Reached("no_such_metric", 0.0).reason(now) is None


def test_any_of_gives_the_first_reason_and_all_of_waits_for_every_one():
    either, both = Steps(5) | Epochs(1) | Seconds(9), Steps(5) & Epochs(1)
    assert either.reason(at(step=5)) == "applied 5 of 5 updates"
    assert len(either.criteria) == 3
    assert both.reason(at(step=5)) is None
    assert both.reason(at(step=5, epoch=1)) == "applied 5 of 5 updates and finished 1 of 1 epochs"


@pytest.mark.parametrize("make", [lambda: Steps(-1), lambda: Epochs(1.5), lambda: Seconds(float("nan"))])  # type: ignore[arg-type]
def test_limits_that_make_no_sense_are_refused_with_the_value(make):
    with pytest.raises(ConfigurationError, match=r"-1|1\.5|nan"):
        make()
