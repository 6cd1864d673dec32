"""Sections of a report: their order, and what each is made of."""

from dataclasses import replace

from descend.pages.parts import Figure, Table
from descend.study.report.sections import sections
from descend.study.results import compare_records

SECTIONS = [
    "Verdict",
    "What was compared",
    "Cost",
    "Results of the arms",
    "Curves",
    "Tunability",
    "Batch size",
    "Warnings",
    "Methods",
    "All trials",
    "Description",
]


def heads(comparison):
    return list(dict.fromkeys(section.title.partition(":")[0] for section in sections(comparison)))


def parts(comparison, title, kind):
    found = [part for section in sections(comparison) if section.title.startswith(title) for part in section.parts]
    return [part for part in found if isinstance(part, kind)]


def test_sections_stand_in_the_order_of_questions(result, by_value):
    assert heads(result) == SECTIONS
    assert heads(by_value) == [name for name in SECTIONS if name != "Batch size"]
    asked = replace(result, follow_ups=({"kind": "noise", "command": "c", "arm": "a", "points": [], **NOISE},))
    assert heads(asked) == [*SECTIONS[:7], "Post-hoc analyses", *SECTIONS[7:]]


NOISE = {"parts": 4, "part_size": 8, "repeats": 5}


def test_a_study_that_has_not_begun_has_no_curves(result):
    empty = compare_records(result.study, {})
    assert heads(empty) == [name for name in SECTIONS if name not in ("Curves", "Tunability")]


def test_every_figure_has_a_title_of_its_own_and_names_its_records(result, by_value):
    for comparison in (result, by_value):
        figures = parts(comparison, "", Figure)
        assert len(figures) > 5
        assert all("Records: phase" in one.caption or "Failures count" in one.caption for one in figures)
        assert len({one.title for one in figures}) == len(figures)


def test_training_beside_validation_and_schedules_are_drawn_where_they_exist(result, by_value):
    titles = [one.title for one in parts(by_value, "Results", Figure)]
    assert any(title.startswith("Training beside validation") for title in titles)
    assert any(title.startswith("Schedules of the winners") for title in titles)
    titles = [one.title for one in parts(result, "Results", Figure)]
    assert all(title.startswith("Re-runs of the winners") for title in titles)


def test_amendments_hashes_and_strangers_are_in_it(result):
    changed = replace(result, amendments=({"trials": [4, 8]},), hashes=(("data", "1a2b"),))
    text = " ".join(parts(changed, "What was compared", str))
    assert "Changed after the first trial: trials from 4 to 8." in text
    assert "Hashes: data 1a2b." in text
    assert "records are of trials that the study does not ask for" not in text
    fewer = compare_records(result.study.model_copy(update={"searches": 1}), result.records)
    assert "40 records are of trials" in " ".join(parts(fewer, "What was compared", str))


def test_the_results_have_their_tables(by_value):
    names = [table.name.partition(",")[0] for table in parts(by_value, "Results", Table)]
    assert names == ["results", "published", "pairs", "winners", "power"]
