"""Drawing: SVG that can be read, with every text escaped; and what is said where it cannot be done."""

import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from system_needs import library

from descend.errors import Unsupported
from descend.pages import draw as drawing
from descend.pages.chart import Axis, Chart, Line, vega_lite
from descend.pages.draw import draw, drawn_or_nothing

library("vl_convert", "vl-convert-python")
HOSTILE = "<script>alert(1)</script>&\"'\x1b"


def chart(name="a", label="y"):
    points = ((1.0, 0.1), (2.0, 0.8), (3.0, 0.9))
    return vega_lite(Chart((Line(name, points), Line("b", points)), Axis("x"), Axis(label)))


def test_pictures_are_svg_and_names_are_text():
    (picture,) = draw([chart(HOSTILE, HOSTILE)], [HOSTILE])
    root = ET.fromstring(picture)
    assert root.get("role") == "img"
    assert root.get("aria-label") == "<script>alert(1)</script>&\"'\\x1b"
    texts = {node.text for node in root.iter() if node.tag.endswith("text")}
    assert "<script>alert(1)</script>&\"'\\x1b" in texts
    assert not [node for node in root.iter() if node.tag.endswith("script")]
    assert "currentColor" in picture


def test_places_agree_with_the_numbers():
    """Three points whose x are in equal steps stand so; what is higher stands further up."""
    (picture,) = draw([chart()])
    groups = [node for node in ET.fromstring(picture).iter() if "mark-symbol role-mark" in node.get("class", "")]
    places = [
        tuple(map(float, mark.get("transform")[len("translate(") : -1].split(",")))
        for mark in groups[0]
        if mark.get("d")
    ]
    (a, top), (b, middle), (c, bottom) = places
    assert b - a == pytest.approx(c - b, abs=0.1)
    assert (top - middle) / (middle - bottom) == pytest.approx(7, rel=0.01)


def test_the_same_specification_gives_the_same_bytes_and_is_remembered(monkeypatch):
    drawing._drawn.clear()
    first = draw([chart("once")])
    drawing._drawn.clear()
    assert draw([chart("once")]) == first
    monkeypatch.setattr(drawing, "_converted", lambda texts, seconds: pytest.fail("drawn twice"))
    assert draw([chart("once"), chart("once")]) == first * 2


def test_clip_paths_of_two_pictures_have_different_names():
    one, two = draw([chart("one"), chart("two")])
    names = [{node.get("id") for node in ET.fromstring(text).iter() if node.get("id")} for text in (one, two)]
    assert names[0]
    assert names[1]
    assert not names[0] & names[1]


def test_without_the_library_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(drawing, "is_installed", lambda: False)
    with pytest.raises(Unsupported, match="pip install vl-convert-python"):
        draw([chart()])
    assert drawn_or_nothing([chart()], ["a"]) == ([""], drawing.MISSING)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import time; time.sleep(60)", "had not ended after 0.2 s"),
        ("raise SystemExit('no memory')", "ended with 1: no memory"),
        ("pass", "ended with 0"),
    ],
)
def test_a_process_that_fails_is_an_error_in_words(monkeypatch, program, said):
    monkeypatch.setattr(drawing, "_PROGRAM", program)
    drawing._drawn.clear()
    with pytest.raises(Unsupported, match=said):
        draw([chart("never")], seconds=0.2 if "sleep" in program else 60.0)


def test_nothing_of_the_library_is_loaded_here():
    code = "import sys, descend.pages.draw as d; d.draw([{'mark': 'point', 'data': {'values': []}}]); "
    code += "sys.exit('vl_convert' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
