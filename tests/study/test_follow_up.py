"""Swap and minimal difference on a study of the digits."""

import pytest
from study_tasks import mlp

from descend.errors import ConfigurationError
from descend.study import Arm, Study, log, minimize_difference, run_study, swap_setting


@pytest.fixture(scope="module")
def result():
    """One arm needs its rate, and not its decay; the other has a rate that learns nothing."""
    arms = {
        "good": Arm("SGD", {"lr": log(0.2, 0.4)}, {"momentum": 0.5, "weight_decay": 1e-6}),
        "poor": Arm("SGD", {"lr": log(1e-6, 1e-5)}, {"momentum": 0.4, "weight_decay": 1e-5}),
    }
    study = Study(
        workload=mlp,
        batch_sizes=(32,),
        steps=(30,),
        arms=arms,
        trials=2,
        searches=1,
        shortlist=1,
        confirmation_seeds=3,
        target={"value": 0.6},
    )
    return run_study(study)


@pytest.mark.slow
def test_swapping_the_rate_swaps_the_result(result):
    cells = {(cell.arm, cell.giver): cell for cell in swap_setting(result, "lr", seeds=3)}
    assert cells["good", "poor"].change < -0.3
    assert cells["poor", "good"].change > 0.3
    assert cells["good", "good"].change == 0


def test_only_the_rate_is_needed(result):
    found = minimize_difference(result, "good", "poor", seeds=3)
    assert set(found.needed) == {"lr"}
    assert set(found.taken_back) == {"momentum", "weight_decay"}


def test_names_that_are_not_there(result):
    with pytest.raises(ConfigurationError, match="no setting 'schedule"):
        swap_setting(result, "schedule.warmup_power")
    with pytest.raises(ConfigurationError, match="did you mean 'good'"):
        minimize_difference(result, "goood", "poor")
