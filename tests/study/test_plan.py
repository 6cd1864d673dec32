"""What a study would cost and could find, before it runs."""

import re

import pytest
from study_tasks import mlp

from descend.errors import ConfigurationError
from descend.study import Arm, Study, log
from descend.study.analysis import detectable_by_searches, level_of_a_pair
from descend.study.plan import plan_study

ARMS = {name: Arm(name, {"lr": log(1e-3, 0.1)}) for name in ("SGD", "Adam", "Lion")}


def plan(arms=2, **fields):
    given = {"trials": 4, "searches": 3, "shortlist": 2, "shortlist_seeds": 3, "confirmation_seeds": 6, **fields}
    some = {name: ARMS[name] for name in list(ARMS)[:arms]}
    return plan_study(Study(workload=mlp, batch_sizes=(32,), steps=(5,), arms=some, **given))


def test_where_the_number_of_trials_comes_from():
    text = plan()
    assert "96 trials: 2 arms x 1 batch sizes and budgets x 3 searches x " in text
    assert "(4 of a search + 6 of its shortlist + 6 seeds of its winner)" in text


@pytest.mark.parametrize(("arms", "searches"), [(2, 2), (3, 5)])
def test_the_difference_that_the_ranking_finds(arms, searches):
    text = plan(arms, searches=searches)
    found = float(re.search(r"differ by ([\d.]+) times", text)[1])
    assert found == pytest.approx(detectable_by_searches(searches, level_of_a_pair(arms, 0.05), paired=True), rel=0.05)
    assert ("that is a large difference: 4 searches find one of 3 times" in text) == (searches == 2)


def test_a_design_that_cannot_rank_says_so():
    assert "one search an arm cannot rank" in plan(searches=1)
    assert "with" not in plan(1).splitlines()[-1]
    assert "fewer than 6 confirmation_seeds" in plan(confirmation_seeds=2)


def test_needs_say_how_many_trials_there_is_room_for_and_how_long_it_takes_then(monkeypatch):
    monkeypatch.setattr("descend.study.plan.cores", lambda: 7)
    text = plan(1, needs={"cores": 2, "memory_gib": 0.01})
    assert "this machine has room for 3 trials at once, of 2 processors, 0.01 GiB of memory each (7 processors)" in text
    assert "with --processes 3" in text
    assert "a trial asks for 8 processors, and runs here with 7" in plan(1, needs={"cores": 8})
    assert "room for" not in plan(1)


def test_what_this_machine_cannot_run_is_refused():
    with pytest.raises(ConfigurationError, match=r"a trial needs 1e\+06 GiB of memory"):
        plan(1, needs={"memory_gib": 1e6})
