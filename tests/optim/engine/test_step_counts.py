"""The step counts of an arena."""

import torch

from descend.optim.engine.state import StepCounts


def counts(*before):
    made, entries = StepCounts(len(before)), [{"step": torch.tensor(float(n), dtype=torch.float64)} for n in before]
    for i, entry in enumerate(entries):
        made.adopt(i, entry)
    made.refresh()
    return made, entries


def test_entries_are_views_that_advance_together():
    made, entries = counts(3, 3)
    assert made.common == 3
    made.advance(())
    assert [entry["step"].item() for entry in entries] == [4.0, 4.0]
    assert made.common == 4


def test_absent_parameters_are_not_counted():
    made, entries = counts(0, 0, 0)
    made.advance((1,))
    assert [entry["step"].item() for entry in entries] == [1.0, 0.0, 1.0]
    assert made.common is None
    made.advance((0, 2))
    assert made.common == 1


def test_a_count_written_from_outside_is_followed():
    made, entries = counts(5, 5)
    made.advance(())
    entries[0]["step"].fill_(0)
    made.refresh()
    assert made.common is None
    entries[1]["step"].fill_(0)
    made.refresh()
    assert made.common == 0
