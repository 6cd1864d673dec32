"""What a study would cost and could find, before it runs."""

import re

import pytest
import scipy.stats
from study_tasks import mlp

from descend.study import Arm, Study, log
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
    """Against the power of Student's t by the noncentral t of another module, at the level of one of the pairs."""
    text = plan(arms, searches=searches)
    found = float(re.search(r"differ by ([\d.]+) times", text)[1])
    freedom, level = 2 * searches - 2, 0.05 / (arms * (arms - 1) / 2)
    critical = scipy.stats.t.ppf(1 - level / 2, freedom)
    assert scipy.stats.nct.sf(critical, freedom, found * (searches / 2) ** 0.5) == pytest.approx(0.8, abs=0.02)
    assert ("that is a large difference: 4 searches find one of 3 times" in text) == (searches == 2)


def test_a_design_that_cannot_rank_says_so():
    assert "one search an arm cannot rank" in plan(searches=1)
    assert "with" not in plan(1).splitlines()[-1]
    assert "fewer than 6 confirmation_seeds" in plan(confirmation_seeds=2)
