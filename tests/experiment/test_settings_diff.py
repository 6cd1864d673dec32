"""What differs between a checkpoint and the run that resumes it, and what becomes of it."""

import pytest

from descend.errors import ConfigurationError
from descend.experiment.resume import changed_options, compare, refuse

BEFORE = {"batch_size": 4, "seed": 1, "optimizer": "a.SGD", "optimizer.lr": 0.1, "optimizer.betas": [0.9, 0.99]}


def changes(reset_optimizer=False, **now):
    return compare(BEFORE, {**BEFORE, **{key.replace("__", "."): value for key, value in now.items()}}, reset_optimizer)


def test_equal_settings_have_no_differences_and_tuples_are_the_lists_of_a_file():
    assert changes(optimizer__betas=(0.9, 0.99)) == []


@pytest.mark.parametrize(
    ("now", "shown"),
    [
        ({"batch_size": 8}, "batch_size: 4 -> 8: applies; the position among the samples is kept"),
        ({"stop": "Steps(9)"}, "stop: None -> Steps(9): applies, counted from the start of the run"),
        ({"optimizer__lr": 0.2}, "optimizer.lr: 0.1 -> 0.2: applies"),
        ({"seed": 2}, "seed: 1 -> 2: refused: the order of the samples would change within the epoch; keep the seed"),
        ({"optimizer__betas": [0.5, 0.99]}, "optimizer.betas: [0.9, 0.99] -> [0.5, 0.99]: refused: the state depends"),
        ({"strategy": "LocalSGD()"}, "strategy: None -> LocalSGD(): refused: keep it as it was"),
    ],
)
def test_each_difference_applies_or_is_refused(now, shown):
    (change,) = changes(**now)
    assert str(change).startswith(shown)
    assert change.refused == (": refused" in shown)


def test_options_of_another_optimizer_are_not_listed_beside_it():
    (change,) = changes(optimizer="a.Adam", optimizer__lr=0.2, optimizer__eps=1e-8)
    assert change.field == "optimizer"
    assert change.refused


def test_without_the_state_another_optimizer_applies_with_its_options():
    found = changes(True, optimizer="a.Adam", optimizer__lr=0.2, seed=2)
    assert [(change.field, change.refused) for change in found] == [
        ("seed", True),
        ("optimizer", False),
        ("optimizer.lr", False),
    ]
    assert changed_options(found) == ("lr",)


def test_refused_differences_are_listed_up_to_five_with_the_remedy():
    refuse(changes(batch_size=8), "step-6")
    with pytest.raises(ConfigurationError) as caught:
        refuse(changes(batch_size=8, **{f"x{i}": i for i in range(7)}), "step-6")
    first, *rows, more, remedy = caught.value.problems
    assert first == "step-6 cannot be resumed with these settings; nothing was changed:"
    assert [row.split(":")[0] for row in rows] == ["x0", "x1", "x2", "x3", "x4"]
    assert more == "and 2 more"
    assert "weights_only=True" in remedy
