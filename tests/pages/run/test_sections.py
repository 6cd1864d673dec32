"""Sections of a run's page: which numbers stand where."""

from pathlib import Path

import pytest

from descend.pages.chart import Line
from descend.pages.parts import Figure, Table
from descend.pages.run.metrics import MAX_POINTS, RunMetrics
from descend.pages.run.read import RunRecord, facts_from
from descend.pages.run.sections import quantity_figure, sections


def row(mode, step, objective, **more):
    return {"mode": mode, "epoch": step // 10, "step": step, "objective": objective, **more}


def record(rows=(), trainers=1, **facts):
    facts = {"end": {"exit_code": 0, "reason": "finished 2 of 2 epochs"}, **facts}
    own = [[row for row in rows if row.get("trainer", 0) == number] for number in range(trainers)]
    metrics = {number: RunMetrics.of(some) for number, some in enumerate(own)}
    return RunRecord(
        Path("/nowhere/run <1>"), facts_from(facts), metrics, {}, (), has_several=trainers > 1, is_active=False
    )


ROWS = (
    row("train", 10, 2.0, learning_rate=0.1, samples=100, seconds=2.0, accuracy=0.5),
    row("validation", 10, 1.5, samples=50, seconds=0.5, accuracy=0.6),
    row("train", 20, 1.0, learning_rate=0.05, samples=100, seconds=0.5, accuracy=0.7, skipped_steps=3),
    row("validation", 20, 1.6, samples=50, seconds=0.5, accuracy=0.8),
)


def found(made, title, kind):
    (section,) = [one for one in made if one.title == title]
    return [part for part in section.parts if isinstance(part, kind)]


def test_the_result_has_the_last_values_and_the_best():
    made = sections(record(ROWS, monitored={"metric": "validation/objective", "direction": "min"}))
    texts = found(made, "Result", str)
    assert texts == [
        "Finished after 20 updates: finished 2 of 2 epochs.",
        "The best validation objective was 1.5, after 10 updates.",
    ]
    (table,) = found(made, "Result", Table)
    assert table.heads == ("mode", "epochs", "updates", "objective", "accuracy")
    assert table.rows == (("train", "2", "20", "1", "0.7"), ("validation", "2", "20", "1.6", "0.8"))


def test_each_quantity_has_a_figure_with_a_line_a_mode():
    figures = found(sections(record(ROWS)), "Objective and metrics", Figure)
    assert [one.title for one in figures] == ["Objective function", "Accuracy"]
    assert {line.name: line.points for line in figures[0].chart.lines} == {
        "train": ((10.0, 2.0), (20.0, 1.0)),
        "validation": ((10.0, 1.5), (20.0, 1.6)),
    }


def test_rates_of_groups_are_lines_and_norms_that_are_missing_name_the_callbacks():
    rows = [row("train", s, 1.0, **{"learning_rate/body": 0.1, "learning_rate/head": 0.2}) for s in (10, 20)]
    made = sections(record(rows))
    (figure,) = found(made, "Learning rate and norms", Figure)
    assert [line.name for line in figure.chart.lines] == ["body", "head"]
    assert "descend.GradientNorm()" in found(made, "Learning rate and norms", str)[0]
    rows += [{"mode": "train", "epoch": 0, "step": 5, "gradient_norm": 3.0}]
    made = sections(record(rows))
    assert [one.title for one in found(made, "Learning rate and norms", Figure)][1] == "Norm of the gradient, ‖g‖₂"
    assert not found(made, "Learning rate and norms", str)


def test_time_is_shared_out_by_mode_and_skipped_steps_are_listed():
    made = sections(record(ROWS))
    (table,) = found(made, "Time", Table)
    assert table.rows == (("train", "2", "2.50", "71.4%", "80"), ("validation", "2", "1.00", "28.6%", "100"))
    (figure,) = found(made, "Time", Figure)
    assert figure.chart.lines[0].points == ((10.0, 50.0), (20.0, 200.0))
    (table,) = found(made, "Learning rate and norms", Table)
    assert table.rows == (("20", "3"),)


def test_errors_and_settings_are_shown():
    end = {"exit_code": 4, "error": ["NaN in <layer>"], "reason": None}
    made = sections(record(ROWS, end=end, settings={"batch_size": 8, "precision": None}, command=["a b", "c"]))
    assert found(made, "Warnings and errors", str) == ["Error: NaN in <layer>"]
    tables = found(made, "Settings and environment", Table)
    assert ("command", "'a b' c") in tables[0].rows
    assert tables[1].rows == (("batch_size", "8"), ("precision", "not set"))


def test_a_run_without_a_single_row_has_a_page():
    made = sections(record())
    assert made[0].title == "Result"
    assert found(made, "How to resume", str)


def test_trainers_are_lines_of_their_own():
    rows = [row("validation", s, t + 1.0, trainer=t) for t in range(2) for s in (10, 20)]
    made = sections(record(rows, trainers=2))
    (figure,) = found(made, "Objective and metrics", Figure)
    assert [line.name for line in figure.chart.lines] == ["trainer 0", "trainer 1"]
    assert any("tournament.jsonl does not exist" in text for text in found(made, "Lineage of the tournament", str))


def test_long_runs_are_thinned_and_keep_their_last_value():
    rows = [row("train", s, float(s)) for s in range(1, 1000)]
    (figure, *_) = found(sections(record(rows)), "Objective and metrics", Figure)
    points = figure.chart.lines[0].points
    assert len(points) <= MAX_POINTS + 1
    assert points[-1] == (999.0, 999.0)


@pytest.mark.parametrize(
    ("name", "last", "log"),
    [("objective", 0.001, True), ("objective", 0.5, False), ("accuracy", 0.001, False), ("objective", 0.0, False)],
)
def test_what_falls_by_orders_of_magnitude_has_a_logarithmic_axis(name, last, log):
    figure = quantity_figure(name, [Line("train", ((0.0, 1.0), (1.0, last)))])
    assert figure.chart.y.log is log
    assert ("logarithmic" in figure.caption) is log
