"""The report: it says what the comparison says, and asks nobody for anything."""

import csv
import io
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from study_tasks import mlp

from descend.study import Arm, Study, log, run_study
from descend.study.report.svg import Axis, Line, plot
from descend.study.report.tables import Table
from descend.study.report.write import _csv, _long

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
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
    heads = re.findall(r"<h2[^>]*>([^<:]+)", page.read_text())
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
    assert "refused: 2 batch sizes cannot show" in text
    assert "diverged at update" in text


def test_the_tables_are_there_as_markdown_and_csv(page, result):
    markdown = page.with_suffix(".md").read_text()
    for head in ("Cost", "Results of the arms", "Tunability: batch 32, 20 updates", "Batch size", "Lints"):
        assert f"\n## {head}\n" in markdown
    results = markdown.split("**results**")[1].split("**")[0]
    assert results.count("\n| ") == 1 + 2 * 2 * 2
    cells = list(csv.DictReader(page.with_suffix(".tables.csv").open()))
    there = {(cell["table"], cell["column"]) for cell in cells}
    assert {("results", "median of re-runs"), ("tunability, batch 32, 20 updates", "stable width")} <= there
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


def test_failures_are_crosses_and_intervals_are_bars():
    """A cross at the edge where the worst lies, at its own x; a bar from low to high with a tick at the median."""
    line = Line("a", ((1.0, 1.0), (10.0, 3.0)), failed=(10.0,), bars=((10.0, 1.0, 2.0, 3.0),))
    text = plot([line], Axis("x", log=True), Axis("y"))
    crosses = re.findall(r'<path d="M([\d.]+) ([\d.]+)l6 6m0 -6l-6 6"', text)
    circles = [(float(a), float(b)) for a, b in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', text)]
    assert [float(cross[0]) + 3 for cross in crosses] == [circles[1][0]]
    assert float(crosses[0][1]) > circles[0][1]
    ((across, low, high, middle),) = re.findall(r'd="M([\d.]+) ([\d.]+)V([\d.]+)M[\d.]+ ([\d.]+)h14"', text)
    assert (float(across), float(low)) == (circles[1][0], circles[0][1])
    assert float(high) == circles[1][1]
    assert float(middle) == pytest.approx((circles[0][1] + circles[1][1]) / 2, abs=0.1)


def test_places_with_names_stand_in_their_order():
    text = plot([Line("a", ((0.0, 1.0), (1.0, 2.0)))], Axis("", names=("first", "second")), Axis("y"))
    assert text.index(">first<") < text.index(">second<")


def test_answers_to_questions_are_shown(result, tmp_path):
    swap = {"arm": "sgd", "giver": "wild", "median": 0.5, "interval": [0.4, 0.6], "change": -0.25}
    kept = (
        {"kind": "swap", "command": "descend study swap", "setting": "lr", "seeds": 6, "cells": [swap]},
        {
            "kind": "minimize",
            "command": "descend study minimize",
            "arm": "sgd",
            "reference": "wild",
            "rule": "the median is at least 1",
            "seeds": 6,
            "tried": 3,
            "needed": {"lr": [0.1, 0.2]},
            "taken_back": {"momentum": [0.0, 0.5]},
        },
        {
            "kind": "noise",
            "command": "descend study noise",
            "arm": "sgd",
            "parts": 4,
            "part_size": 8,
            "repeats": 5,
            "points": [
                {"step": 0, "scale": 61.0, "interval": [50.0, 70.0], "said": ""},
                {"step": 9, "scale": None, "interval": None, "said": "measure more steps"},
            ],
        },
    )
    markdown = replace(result, follow_ups=kept).report(tmp_path).with_suffix(".md").read_text()
    assert "| sgd | wild | 0.5 | [0.4, 0.6] | -0.25 |" in markdown
    assert "| lr | 0.1 | 0.2 | yes |\n| momentum | 0.0 | 0.5 | no |" in markdown.replace("| 0 |", "| 0.0 |")
    assert "| 0 | 61 | [50, 70] |  |\n| 9 | refused |  | measure more steps |" in markdown


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
@pytest.mark.slow
def test_a_browser_opens_it_without_an_error(page, tmp_path):
    """The script runs: titles become tips, every legend has its series, and nothing was asked of the network."""
    probe = (
        "document.title = [document.querySelectorAll('svg').length, document.querySelectorAll('[data-said]').length,"
    )
    probe += "document.querySelectorAll('svg title').length].join(' ');"
    probe += "document.querySelector('[data-legend]').dispatchEvent(new Event('click'));"
    probe += "document.title += ' ' + document.querySelector('[data-series]').style.display;"
    probed = tmp_path / "probed.html"
    probed.write_text(page.read_text().replace("</body>", f"<script>{probe}</script></body>"))
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    done = subprocess.run([BROWSER, *options, probed.as_uri()], capture_output=True, text=True, check=True, timeout=120)
    plots, said, titles, display = re.search(r"<title>(\d+) (\d+) (\d+) (\w*)</title>", done.stdout).groups()
    assert int(plots) == page.read_text().count("<svg")
    assert int(said) > 20
    assert (titles, display) == ("0", "none")


def test_an_empty_plot_says_so():
    assert plot([Line("a", ())], Axis("x"), Axis("y")) == "<p>nothing to draw</p>"


def test_no_cell_of_a_csv_is_a_formula():
    """Names from a study file reach spreadsheets; numbers stay numbers."""
    hostile = ["=1+1", "+a", "-a", "@SUM(A1)", "\tx", "\rx", '=HYPERLINK("http://x")']
    table = Table("=t", tuple(hostile), ((*["-0.5", "+3", "-1,024", "-inf", "plain"], "=2", "-"),), "")
    for text in (_csv([table]), _long([table])):
        cells = [cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row]
        assert [cell for cell in cells if cell.startswith(("=", "+", "@", "\t", "\r"))] == ["+3"]
        assert {cell for cell in cells if cell.startswith("-")} == {"-0.5", "-1,024", "-inf", "-"}
        assert "'=1+1" in cells
