"""The report: it says what the comparison says, and asks nobody for anything."""

import csv
import re
import xml.etree.ElementTree as ET

import pytest
from study_tasks import mlp

from descend.study import Arm, Study, log, run_study
from descend.study.report.svg import Axis, Line, plot

SECTIONS = [
    "Verdict",
    "What was compared",
    "Cost",
    "Results of the arms",
    "Curves",
    "Tunability",
    "Batch size",
    "Lints",
]


@pytest.fixture(scope="module")
def result():
    study = Study(
        name="digits <&> more",
        workload=mlp,
        batch_sizes=(32, 128),
        steps=(20,),
        arms={"sgd": Arm("SGD", {"lr": log(0.05, 1.0)}), "wild": Arm("SGD", {"lr": log(1.0, 1e30)})},
        trials=4,
        shortlist=1,
        confirmation_seeds=6,
        metric="loss",
        target={"value": 1.5},
        select="steps",
    )
    return run_study(study)


@pytest.fixture(scope="module")
def page(result, tmp_path_factory):
    return result.report(tmp_path_factory.mktemp("report"))


def test_sections_stand_in_the_order_of_questions(page):
    heads = re.findall(r"<h2>([^<:]+)", page.read_text())
    assert list(dict.fromkeys(heads)) == [*SECTIONS, "All trials", "Description"]


def test_nothing_is_fetched_and_names_are_escaped(page):
    text = page.read_text()
    assert not re.search(r"https?://|src=|href=|@import|url\(", text)
    assert "digits &lt;&amp;&gt; more" in text
    assert "<&>" not in text


def test_the_verdict_and_every_trial_are_in_it(page, result):
    text = page.read_text()
    for name in result.records:
        assert name in text
    assert "no critical batch size" in text
    assert "diverged at update" in text


def test_the_tables_are_there_as_markdown_and_csv(page, result):
    markdown = page.with_suffix(".md").read_text()
    assert markdown.count("\n| ") >= 1 + 2 * 2 * 2 + 1 + 2
    rows = list(csv.DictReader(page.with_suffix(".csv").open()))
    assert [row["trial"] for row in rows] == list(result.records)


def test_a_plot_is_well_formed_and_leaves_out_what_is_not_finite():
    line = Line(
        "a<b", ((1.0, 10.0), (10.0, float("inf")), (100.0, 1000.0)), band=((1.0, 5.0, 20.0), (100.0, 500.0, 2000.0))
    )
    tree = ET.fromstring(plot([line], Axis("x", log=True), Axis("y", log=True)))
    circles = [node for node in tree.iter() if node.tag.endswith("circle")]
    assert len(circles) == 2
    assert circles[0][0].text == "a<b: x 1, y 10"
    across = [float(circle.get("cx")) for circle in circles]
    ticks = {
        node.text: float(node.get("x")) for node in tree.iter() if node.tag.endswith("text") and node.get("y") == "328"
    }
    assert across == [ticks["1"], ticks["100"]]
    assert ticks["10"] == pytest.approx((ticks["1"] + ticks["100"]) / 2, abs=0.1)


def test_an_empty_plot_says_so():
    assert plot([Line("a", ())], Axis("x"), Axis("y")) == "<p>nothing to draw</p>"
