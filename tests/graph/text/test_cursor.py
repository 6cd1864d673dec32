"""A place in a text that moves on: spaces, separators, joined texts and lists of numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from descend.graph.text.cursor import FLOAT, STRING, Cursor


def at(source, position=0):
    cursor = Cursor(source)
    cursor.position = position
    return cursor


@pytest.mark.parametrize(
    ("source", "offset"),
    [("a", 0), (" \t\r\n\f\va", 6), ("# note\n# more\n a", 15), ("# to the end", 12), ("", 0), ("  #", 3)],
)
def test_spaces_and_comments_stand_before_the_next_thing(source, offset):
    cursor = at(source)
    assert cursor.next_offset() == offset
    assert cursor.position == 0  # looking does not move on


@pytest.mark.parametrize(
    ("source", "position"), [(" , a", 2), (";a", 1), ("# x\n;a", 5), (" a", 0), (",, a", 1), ("", 0)]
)
def test_one_separator_is_stepped_over(source, position):
    cursor = at(source)
    cursor.separator()
    assert cursor.position == position


@pytest.mark.parametrize(
    ("source", "ended", "position"),
    [(" ] a", True, 2), ("],a", True, 2), ("] # x\n ; a", True, 8), (", ]", False, 0), ("", False, 0)],
)
def test_the_end_of_a_list_takes_the_separator_behind_it(source, ended, position):
    cursor = at(source)
    assert cursor.end_of_list() is ended
    assert cursor.position == position


@pytest.mark.parametrize(
    ("source", "joined", "rest"),
    [
        ('"a" b', "a", " b"),
        ("'a''b'", "ab", ""),
        ('"a" # note\n \'b\\\'c\'"d" e', "ab\\'cd", " e"),
        ('"a", "b"', "a", ', "b"'),
        ('"a" "b', "a", ' "b'),
    ],
)
def test_texts_that_follow_each_other_are_one(source, joined, rest):
    """Escapes are left as they are."""
    cursor = at(source, 3)
    assert cursor.joined(source[:3]) == joined
    assert source[cursor.position :] == rest


numbers = st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**9), 10**9), min_size=1)


@given(numbers, st.sampled_from([",", ", ", " ,\n"]))
def test_a_list_of_plain_numbers_is_read_at_once(values, comma):
    source = comma.join(map(repr, values)) + "]; name"
    cursor, found = at(source), []
    assert cursor.plain_numbers(found)
    assert found == values
    assert source[cursor.position :] == " name"


@pytest.mark.parametrize(
    "source",
    [
        "1, inf]",
        "1, 0x1F]",
        "1 # note\n]",
        "1, 2",
        "]",
        "1,]",
        "1 2]",
        "1, 02]",  # octal
        "1, 2f]",
        "1e999]",
        "'1']",
        "+1]",
        "1, -]",
    ],
)
def test_anything_unusual_is_left_to_the_slow_way(source):
    cursor, found = at(source), [7.0]
    assert not cursor.plain_numbers(found)
    assert (cursor.position, found) == (0, [7.0])


@pytest.mark.parametrize("word", ["0", "-0", "12", "1.", ".5", "1.5e3", "1E-3", "2f", "1.5F", "-0.5e+2"])
def test_numbers_of_the_format(word):
    assert FLOAT.fullmatch(word)


@pytest.mark.parametrize("word", ["", "01", "-00", ".", "1e", "+1", "1_0", "1.5ff", "0x1", "١"])
def test_words_that_are_no_numbers_of_the_format(word):
    assert not FLOAT.fullmatch(word)


@pytest.mark.parametrize(
    ("source", "matched"),
    [
        ('"a\\"b" c', '"a\\"b"'),
        ("'a\"b'", "'a\"b'"),
        ('"a\nb"', None),
        ('"a\\\nb"', None),
        ('"a', None),
        ('"a\\"', None),
    ],
)
def test_a_text_in_quotes_ends_on_its_line(source, matched):
    import re

    found = re.match(STRING, source)
    assert (found and found.group()) == matched
