"""Legends as buttons: what they say, and which groups of the drawing are theirs."""

import re

import pytest
from system_needs import library

from descend.pages import draw
from descend.pages.chart import Axis, Chart, Line, vega_lite
from descend.pages.legend import split_legend

library("vl_convert", "vl-convert-python")

HOSTILE = "<b>&'"
LINES = (
    Line("one", ((1.0, 2.0), (2.0, 3.0)), band=((1.0, 1.0, 3.0), (2.0, 2.0, 4.0))),
    Line(HOSTILE, ((1.0, 4.0), (2.0, 1.0)), failed=(3.0,)),
    Line("target", ((1.0, 2.5), (2.0, 2.5)), marked=False, dashed=True, colour=-1),
)


def split(*lines):
    spec = vega_lite(Chart(lines, Axis("x"), Axis("y")))
    (svg,) = draw.draw([spec])
    return spec, svg, *split_legend(svg, spec)


def groups(svg, layers):
    """How many groups of the drawing belong to these layers."""
    return sum(len(re.findall(rf'class="[^"]* layer_{layer}_', svg)) for layer in layers)


def test_each_series_has_its_layers_and_its_symbol():
    spec, svg, shown, legend = split(*LINES)
    assert [one.name for one in legend] == ["one", HOSTILE, "target"]
    assert sorted(number for one in legend for number in one.layers) == list(range(len(spec["layer"])))
    for entry in legend:
        assert {spec["layer"][number]["data"]["values"][0]["series"] for number in entry.layers} == {entry.name}
        assert all(groups(svg, [number]) for number in entry.layers)
        assert entry.symbol.startswith("<svg")
    assert spec["encoding"]["color"]["scale"]["range"][0] in legend[0].symbol
    assert "4,4" in legend[2].symbol  # a dashed line
    assert "M-13,0L13,0" in legend[2].symbol
    assert "role-legend" in svg
    assert "role-legend" not in shown
    assert groups(shown, range(len(spec["layer"]))) == groups(svg, range(len(spec["layer"])))


def test_the_picture_ends_where_the_legend_began():
    _, svg, shown, _ = split(*LINES)
    before, after = (float(re.search(r'viewBox="0 0 \d+ ([\d.]+)"', text).group(1)) for text in (svg, shown))
    assert before - 80 < after < before - 10
    lowest = max(float(y) for y in re.findall(r"translate\([-\d.]+,([\d.]+)\)", shown))
    assert after > lowest  # the title of the axis is still there


@pytest.mark.parametrize("lines", [LINES[:1], (Line("", ((1.0, 2.0), (2.0, 3.0))),)])
def test_a_single_series_keeps_its_legend(lines):
    _, svg, shown, legend = split(*lines)
    assert shown == svg
    assert legend == ()


def test_what_was_not_drawn_has_none():
    spec = vega_lite(Chart(LINES, Axis("x"), Axis("y")))
    assert split_legend("", spec) == ("", ())


def test_a_line_beside_lone_points_is_drawn_once():
    """Vega-Lite would add points to a line that has a shape for its legend."""
    _, svg, _, _ = split(LINES[0], Line("lone", ((1.5, 2.0),)))
    labels = re.findall(r'aria-label="([^"]*)"', svg)
    assert len(labels) == len(set(labels)) == 3
