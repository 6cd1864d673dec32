"""Plots: what is drawn where, against places worked out from the numbers."""

import itertools
import re
import xml.etree.ElementTree as ET

import pytest

from descend.study.report.svg import Axis, Line, plot


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


def test_an_empty_plot_says_so():
    assert plot([Line("a", ())], Axis("x"), Axis("y")) == "<p>nothing to draw</p>"


def test_series_differ_by_colour_and_guides_are_grey():
    lines = [Line("a", ((0.0, 1.0), (1.0, 2.0))), Line("b", ((0.0, 2.0),)), Line("c", ((0.0, 1.0),), colour=-1)]
    text = plot(lines, Axis("x"), Axis("y"))
    colours = re.findall(r'data-series="\d">.*?fill="(#\w+)"><title>(\w):', text)
    assert len({colour for colour, _ in colours}) == 3
    assert ("#999999", "c") in colours


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 17.0), (0.861, 0.863), (5.0, 5.0)])
def test_ticks_are_round_and_within_the_axis(low, high):
    text = plot([Line("a", ((0.0, low), (1.0, high)))], Axis("x"), Axis("y"))
    ticks = [float(tick) for tick in re.findall(r'text-anchor="end">([^<]+)<', text)]
    assert 2 <= len(ticks) <= 8
    room = (high - low) * 0.05 or 1
    assert all(low - room <= tick <= high + room for tick in ticks)
    gaps = {round(b - a, 9) for a, b in itertools.pairwise(ticks)}
    assert len(gaps) == 1


def test_the_same_numbers_give_the_same_text():
    lines = [Line("a", ((1.0, 2.0), (3.0, 4.0)), band=((1.0, 1.0, 3.0), (3.0, 2.0, 5.0)))]
    assert plot(lines, Axis("x"), Axis("y")) == plot(lines, Axis("x"), Axis("y"))
