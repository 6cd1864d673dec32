"""The bill."""

from descend.study.analysis import Spent, cost


def test_failures_are_paid_for():
    bill = cost([Spent(100, 3200, "done", 1.5), Spent(100, 3200, "diverged", 0.1), Spent(100, 3200, "done", 1.4)])
    assert (bill.trials, bill.steps, bill.samples) == (3, 300, 9600)
    assert bill.statuses == {"diverged": 1, "done": 2}
    assert bill.seconds == 3.0
