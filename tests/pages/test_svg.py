"""SVG documents: whatever a name holds, an XML parser reads it back and nothing else."""

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from descend.pages.svg import NAMESPACE, attribute, document, text
from descend.terminal.display import printable


@given(st.text())
def test_any_text_is_content_and_attribute_and_nothing_else(name):
    svg = document({"xmlns": NAMESPACE, "id": name}, [f"<text class={attribute(name)}>{text(name)}</text>"])
    root = ET.fromstring(svg)
    (child,) = root
    assert (child.text or "") == printable(name)
    assert root.get("id") == child.get("class") == printable(name)


def test_a_document_keeps_the_order_of_attributes_and_the_separator():
    svg = document({"width": 3, "height": 4}, ["<g/>"], "\n")
    assert svg == '<svg width="3" height="4">\n<g/>\n</svg>'
