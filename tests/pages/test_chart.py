"""Specifications of charts: which rows are drawn where, worked out from the numbers."""

import json
import math

import pytest
from system_needs import library

from descend.pages.chart import COLOURS, HEIGHT, Axis, Chart, Line, vega_lite


def spec_of(*lines, x=None, y=None):
    return vega_lite(Chart(lines, x or Axis("x"), y or Axis("y")))


def layers(spec, kind):
    return [layer for layer in spec["layer"] if layer["mark"]["type"] == kind]


def rows(layer):
    return layer["data"]["values"]


def domain(spec, axis):
    return spec["layer"][0]["encoding"][axis]["scale"]["domain"]


def test_what_is_not_finite_or_has_no_logarithm_is_left_out():
    points = ((1.0, 10.0), (10.0, float("inf")), (0.0, 5.0), (100.0, 1000.0))
    spec = spec_of(Line("a<b", points, band=((1.0, 5.0, 20.0), (100.0, 500.0, 2000.0))), x=Axis("x", log=True))
    (dots,), (line,), (band,) = (layers(spec, kind) for kind in ("point", "line", "area"))
    assert [(row["x"], row["y"]) for row in rows(dots)] == [(1.0, 10.0), (100.0, 1000.0)]
    assert len(rows(line)) == 2
    assert [(row["y"], row["high"]) for row in rows(band)] == [(5.0, 20.0), (500.0, 2000.0)]
    assert rows(dots)[0]["said"] == "a<b: x 1, y 10"
    assert json.loads(json.dumps(spec, allow_nan=False)) == spec


def test_axes_hold_every_point_band_and_interval_with_a_little_room():
    line = Line("a", ((1.0, 1.0), (3.0, 2.0)), band=((1.0, 0.0, 2.0), (3.0, 1.0, 5.0)), bars=((2.0, 0.5, 1.0, 6.0),))
    assert domain(spec_of(line), "x") == pytest.approx([1 - 0.08, 3 + 0.08])
    assert domain(spec_of(line), "y") == pytest.approx([0 - 0.24, 6 + 0.24])
    low, high = domain(spec_of(line, x=Axis("x", log=True)), "x")
    assert low * high == pytest.approx(1 * 3)  # the same part of the axis on both sides
    assert low < 1


def test_failures_are_crosses_at_the_worse_edge():
    points = ((1.0, 1.0), (10.0, 3.0))
    for on_top, edge in ((False, HEIGHT - 5), (True, 5)):
        spec = spec_of(Line("a", points, failed=(20.0,), failed_on_top=on_top))
        (cross,) = [layer for layer in layers(spec, "point") if rows(layer)[0].get("said") == "a: x 20, failed"]
        assert cross["encoding"]["y"] == {"value": edge} | cross["encoding"]["y"]
        assert domain(spec, "x")[1] > 20


def test_points_beyond_the_limits_of_an_axis_stand_at_its_edge():
    spec = spec_of(Line("a", ((1.0, 0.1), (2.0, 0.8), (3.0, 0.9)), joined=False), y=Axis("y", limits=(0.7, 0.9)))
    inside, below = layers(spec, "point")
    assert [row["y"] for row in rows(inside)] == [0.8, 0.9]
    assert rows(below) == [{"series": "a", "x": 1.0, "said": "a: x 1, y 0.1"}]
    assert below["encoding"]["shape"] == {"value": "triangle-down"}


def test_series_differ_without_colour():
    """Lines by dash, points by shape; guides are grey and dashed."""
    lines = [Line(name, ((0.0, 1.0), (1.0, 2.0))) for name in "abc"] + [
        Line("guide", ((0.0, 1.0), (1.0, 1.0)), colour=-1)
    ]
    look = spec_of(*lines)["encoding"]
    dashes = look["strokeDash"]["scale"]["range"]
    assert len(set(map(tuple, dashes))) == 4
    assert look["color"]["scale"]["range"][:3] == list(COLOURS[:3])
    assert look["color"]["scale"]["range"][3] not in COLOURS[:7]
    scattered = [Line(name, ((0.0, 1.0), (1.0, 2.0)), joined=False) for name in "abc"]
    shapes = spec_of(*scattered)["encoding"]["shape"]["scale"]["range"]
    assert len(set(shapes)) == 3


def test_two_series_of_one_name_stay_two():
    names = spec_of(Line("a", ((0.0, 1.0),)), Line("a", ((1.0, 1.0),)))["encoding"]["color"]["scale"]["domain"]
    assert len(set(names)) == 2


def test_names_of_places_are_texts_of_the_axis():
    chart = Chart((Line("", ((0.0, 1.0), (1.0, 2.0)), joined=False),), Axis("", names=("a'b", 'c"d')), Axis("y"))
    axis = vega_lite(chart)["layer"][0]["encoding"]["x"]["axis"]
    assert axis["values"] == [0, 1]
    assert json.loads(axis["labelExpr"].removesuffix("[datum.value]")) == ["a'b", 'c"d']
    assert vega_lite(chart)["encoding"]["color"]["legend"] is None


@pytest.mark.parametrize(("low", "high"), [(1.0, 1000.0), (0.01, 0.5), (0.42, 0.47), (1e-7, 10.0), (5.0, 5.0)])
def test_ticks_of_logarithms_lie_within_and_are_few(low, high):
    spec = spec_of(Line("a", ((low, 1.0), (high, 2.0))), x=Axis("x", log=True))
    ticks = spec["layer"][0]["encoding"]["x"]["axis"]["values"]
    first, last = domain(spec, "x")
    assert 2 <= len(ticks) <= 8
    assert all(first <= tick <= last for tick in ticks)


def test_a_chart_without_points_is_empty():
    assert Chart((Line("a", ((0.0, float("nan")),)),), Axis("x"), Axis("y")).is_empty
    assert not Chart((Line("a", ((0.0, 0.0),)),), Axis("x"), Axis("y")).is_empty


EXTREMES = (1e308, -1e308, 1e300, -1e300, 1e301, 5e-324, 1e-300, -5e-324, 0.0, 1.0, float("inf"), float("nan"), 10**300)


@pytest.mark.parametrize("log", [False, True])
def test_any_two_numbers_make_a_specification_without_infinities(log):
    """Whatever their distance: Vega subtracts and divides the ends of an axis."""
    for a in EXTREMES:
        for b in EXTREMES:
            chart = Chart((Line("x", ((1.0, a), (2.0, b), (b, 3.0))),), Axis("x"), Axis("y", log=log))
            spec = vega_lite(chart)
            json.dumps(spec, allow_nan=False)
            for layer in spec["layer"]:
                low, high = layer["encoding"]["y"]["scale"]["domain"]
                assert math.isfinite(high - low)
                assert low < high
                assert not log or low > 0
                ticks = layer["encoding"]["y"]["axis"].get("values", [])
                assert all(math.isfinite(tick) for tick in ticks)


@pytest.mark.parametrize("limits", [(-1e308, 1e308), (-math.inf, math.inf), (0.0, 1e308)])
def test_limits_are_drawn_as_far_as_axes_reach(limits):
    spec = vega_lite(Chart((Line("x", ((1.0, 1.0),)),), Axis("x"), Axis("y", limits=limits)))
    json.dumps(spec, allow_nan=False)


def test_numbers_at_the_ends_are_drawn():
    library("vl_convert", "vl-convert-python")
    from descend.pages.draw import draw

    for values in ((1e300, -1e300), (1e308, 1.0, 2.0), (1e-300, 1e300)):
        points = tuple(enumerate(values))
        (svg,) = draw([vega_lite(Chart((Line("x", points),), Axis("x"), Axis("y", log=min(values) > 0)))])
        assert "NaN" not in svg
