"""What is printed of names from outside."""

import sys
import unicodedata
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest

from descend.terminal.display import MAX_LINE, printable, shortened


@pytest.mark.parametrize("text", ["", "conv1", "größe/層_1", "a b", "«x» 3 × 3 → ✓", "👍"])
def test_what_people_write_stays(text):
    assert printable(text) is text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m", r"\x1b[31m"),
        ("\x9b31m", r"\x9b31m"),  # one character that begins an escape sequence
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("user\u202etxt.exe", r"user\u202etxt.exe"),
        ("\u2066\u2069\u200f", r"\u2066\u2069\u200f"),
        ("a\u200bb\ufeff", r"a\u200bb\ufeff"),
        ("\u2028\u2029\x85", r"\u2028\u2029\x85"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_what_is_obeyed_is_escaped(text, shown):
    assert printable(text) == shown


def test_what_is_kept_stays():
    assert printable("a\n\tb\x1b", keep="\n\t") == "a\n\tb\\x1b"


def test_every_character_is_shown_in_one_line_of_well_formed_xml_and_utf8():
    """All 1,114,112 code points, surrogates included."""
    shown = printable("".join(map(chr, range(sys.maxunicode + 1))))
    assert not {unicodedata.category(one) for one in {*shown} - {" "}} & {"Cc", "Cf", "Cs", "Cn", "Zl", "Zp", "Zs"}
    assert ElementTree.fromstring(f"<a>{escape(shown)}</a>").text == shown
    assert shown.encode().decode() == shown


def test_long_lines_keep_their_ends():
    line = "begin" + "x" * 10_000 + "remedy"
    short = shortened(line)
    assert len(short) <= MAX_LINE
    assert short.startswith("beginxxx")
    assert short.endswith("xxxremedy")
    assert "8,0" in short  # how many are left out: some 8,000 of 10,011


@pytest.mark.parametrize("limit", [100, 101, 317, 1000, 2999, 3000])
def test_shortened_is_never_longer_than_asked(limit):
    for size in (0, 1, limit - 1, limit, limit + 1, limit + 2, 2 * limit, 4000, 10_000):
        short = shortened("x" * size, limit)
        assert len(short) <= limit
    assert (short == "x" * size) is (size <= limit)
