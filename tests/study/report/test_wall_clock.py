"""Seconds of training beside updates, from made-up records whose seconds are known."""

import dataclasses
import math

import pytest

from descend.errors import Refused
from descend.study.report import wall_clock
from descend.study.report.sections import sections
from descend.study.report.write import write


@pytest.fixture
def timed(by_value):
    """Arm a takes 10 ms an update, arm b 30 ms; seconds are those of each evaluation."""
    pace = {"a": 0.01, "b": 0.03}
    records = {
        name: dataclasses.replace(
            record, train_seconds=tuple(pace[record.trial.arm] * step for step in record.steps), machine="one"
        )
        for name, record in by_value.records.items()
    }
    return dataclasses.replace(by_value, records=records)


def test_seconds_stand_beside_updates(timed):
    (group,) = timed.groups
    table = wall_clock.table(timed, group)
    assert table.heads[2:6] == ("ms per step", "seconds of training", "steps to 0.7", "seconds to it")
    rows = {(row[0], row[1]): row for row in table.rows}
    assert len(rows) == 4
    for (arm, _), row in rows.items():
        pace = {"a": 0.01, "b": 0.03}[arm]
        assert float(row[2]) == pytest.approx(1e3 * pace)
        assert float(row[3]) == pytest.approx(20 * pace)
        assert float(row[5]) == pytest.approx(float(row[4]) * pace)
        assert row[6] == f"[{row[5]}, {row[5]}]"  # all re-runs reach it at the same look


def test_curves_over_seconds_end_where_training_does(timed):
    (group,) = timed.groups
    ends = {line.name: line.points[-1][0] for line in wall_clock.curves(timed, group).lines}
    assert ends == pytest.approx({"a": 0.2, "b": 0.6})


def test_a_target_that_is_missed_is_said_to_be(timed):
    study = timed.study.model_copy(update={"target": timed.study.target.model_copy(update={"value": 0.99})})
    missed = dataclasses.replace(timed, study=study)
    (row, *_) = wall_clock.table(missed, missed.groups[0]).rows
    assert row[4:] == ("not reached", "not reached", "[not reached, not reached]")


def test_without_a_target_there_are_seconds_alone(timed):
    bare = dataclasses.replace(timed, study=timed.study.model_copy(update={"target": None}))
    assert wall_clock.table(bare, bare.groups[0]).heads == ("arm", "search", "ms per step", "seconds of training")


def test_seconds_of_stacks_or_of_several_machines_are_refused(by_value, timed):
    with pytest.raises(Refused, match="--executor one"):
        wall_clock.section(by_value)
    name = next(name for name, record in timed.records.items() if record.trial.phase == "confirmation")
    other = dataclasses.replace(timed.records[name], machine="two")
    with pytest.raises(Refused, match="trials ran on 2 machines"):
        wall_clock.section(dataclasses.replace(timed, records=timed.records | {name: other}))


def test_a_report_has_them_only_where_they_are_asked_for(timed, tmp_path):
    titles = [section.title for section in sections(timed)]
    assert "Wall-clock time" not in titles
    assert [section.title for section in sections(timed, seconds=True) if section.title not in titles] == [
        "Wall-clock time"
    ]
    assert "seconds to it" in write(timed, tmp_path, seconds=True).with_suffix(".md").read_text()
    assert not math.isnan(sum(x for line in wall_clock.curves(timed, timed.groups[0]).lines for x, _ in line.points))
