"""Where values of a text stand: lines and columns, and the places of messages and lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from descend.graph import text
from descend.graph.text.source_map import Parsed, SourceMap, TextPosition


@given(st.text("ab\n\r\té", max_size=30), st.data())
def test_lines_and_columns_are_counted_from_1(source, data):
    """By counting: a line ends with a line feed alone, and a column is a character."""
    offset = data.draw(st.integers(0, len(source)))
    before = source[:offset]
    assert SourceMap("f", source).at(offset) == f"f:{before.count(chr(10)) + 1}:{offset - before.rfind(chr(10))}"


def test_the_text_is_left_out_of_the_repr():
    assert repr(SourceMap("f", "a very long text")) == "SourceMap(file='f')"


def place(offset, *parts):
    made = TextPosition(offset)
    made.parts += parts
    return made


def test_the_parts_of_a_message_are_grouped_by_field_in_their_order():
    inner = place(4)
    assert place(0, ("a", 1), ("b", inner), ("a", 7)).by_field() == {"a": [1, 7], "b": [inner]}


@pytest.mark.parametrize(
    ("path", "column"),
    [
        ("", 1),
        ("name", 3),
        ("layer", 5),
        ("layer[0]", 5),
        ("layer[1]", 9),
        ("layer[1].name", 10),
        ("layer[9]", 9),  # a list in brackets is one part, so later entries stand where the last part does
        ("layer[0].name", 5),  # a default that was not written stands where its message does
        ("name.deeper", 3),
        ("nothing", 1),
    ],
)
def test_a_path_leads_to_the_value_or_to_what_encloses_it(path, column):
    positions = place(0, ("name", 2), ("layer", place(4)), ("layer", place(8, ("name", 9))))
    assert Parsed(None, SourceMap("f", "x" * 20), positions).where(path) == f"f:1:{column}"


def test_a_binary_form_has_the_name_of_its_file_alone():
    parsed = text.parse_binary(b"", "f.protobin", "Model")
    assert parsed.where("layer[3].name") == "f.protobin"
    assert parsed.where() == "f.protobin"


def test_places_of_values():
    source = 'name: "m"\nlayer { name: "a" }\nlayer [{ name: "b" },\n  { relu {} }]\namp { enabled: true }'
    parsed = text.parse(source, "f", "Model")
    found = {
        path: parsed.where(path)
        for path in ("name", "layer[0].name", "layer[2].relu", "layer[1]", "amp.enabled", "amp.init_scale", "")
    }
    assert found == {
        "name": "f:1:1",
        "layer[0].name": "f:2:9",
        "layer[2].relu": "f:4:5",
        "layer[1]": "f:3:8",
        "amp.enabled": "f:5:7",
        "amp.init_scale": "f:5:1",
        "": "f:1:1",
    }
