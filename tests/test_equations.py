"""Equations of docstrings become MathML that says the same."""

import re
import unicodedata
import xml.etree.ElementTree as ElementTree

import pytest

from descend.rule_index import rules
from tools.equations import is_equation, mathml

BLOCKS = re.compile(r"(?:^    \S.*\n(?:    .*\n)*)(?:\n(?:    .*\n)+)*", re.MULTILINE)


def tree(text):
    return ElementTree.fromstring(mathml(text))


def tags(text):
    return [element.tag for element in tree(text).iter()]


@pytest.mark.parametrize(
    ("text", "markup"),
    [
        ("mₜ₋₁", "<msub><mi>m</mi><mrow><mi>t</mi><mo>−</mo><mn>1</mn></mrow></msub>"),
        ("gₜ²", "<msubsup><mi>g</mi><mrow><mi>t</mi></mrow><mrow><mn>2</mn></mrow></msubsup>"),
        ("a / (b + c)", "<mfrac><mi>a</mi><mrow><mi>b</mi><mo>+</mo><mi>c</mi></mrow></mfrac>"),
        ("√(x)", "<msqrt><mrow><mi>x</mi></mrow></msqrt>"),
        ("x^(2)", "<msup><mi>x</mi><mrow><mn>2</mn></mrow></msup>"),
        ("v̂", "<mover accent='true'><mi>v</mi><mo>^</mo></mover>"),
        ("lr", "<mi mathvariant='normal'>lr</mi>"),
        ("1 < 2", "<mn>1</mn>"),
    ],
)
def test_markup(text, markup):
    assert re.sub(r"<mspace[^>]*/>", "", mathml(text)).count(markup) == 1


def test_a_function_is_divided_with_its_argument():
    (fraction,) = tree("φ(‖p‖) / ‖u‖").iter("mfrac")
    assert "".join(fraction[0].itertext()) == "φ(‖p‖)"


def test_lines_are_rows_and_gaps_are_columns():
    assert tags("a = b        c = d\ne = f").count("mtr") == 2
    assert tags("a = b        c = d\ne = f").count("mtd") == 3


def test_what_has_no_counterpart_stays():
    assert "".join(tree("clip(x").itertext()) == "clip(x"


def plain(text):
    """Letters, digits and signs alone; brackets, strokes and roots are drawn and are no text."""
    folded = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    return re.sub(r"[\s()/^_`√¯\u0302\u0304]", "", folded)


@pytest.mark.parametrize("name", rules())
def test_equations_of_a_rule_are_all_there(name):
    blocks = [block for block in BLOCKS.findall(rules()[name].equations + "\n") if is_equation(block)]
    assert blocks
    for block in blocks:
        assert plain("".join(tree(block).itertext())) == plain(block)


def test_a_program_is_no_equation():
    assert not is_equation("result = descend.fit(model)")
