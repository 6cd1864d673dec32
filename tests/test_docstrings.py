"""Docstrings of the package become reStructuredText."""

import textwrap

import pytest

from tools.docstrings import inline, rst, table


def converted(text):
    return "\n".join(rst(textwrap.dedent(text).strip()))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`lr` and `a b`", "``lr`` and ``a b``"),
        ("`x`s", "``x``\\ s"),
        ("a * b, |g|, p_", "a \\* b, \\|g\\|, p\\_"),
        ("snake_case", "snake_case"),
        ("see [here](docs/fit.md).", "see here."),
        ("https://a.org/x_y.", "https://a.org/x_y."),
    ],
)
def test_inline(text, expected):
    assert inline(text) == expected


def test_labelled_paragraphs_are_fields():
    assert converted("Runs:  after_step.\nReads: gradients,\n    and weights.") == (
        ":Runs: after_step.\n:Reads: gradients,\n    and weights.\n"
    )


def test_sections_stay_for_napoleon():
    text = converted("""
        Sums.

        Args:
            x: A `Tensor`.
            *more: Others, a*b.

        Raises:
            ValueError: It is not.
        """)
    assert "Args:\n    x: A ``Tensor``.\n    *more: Others, a\\*b.\n" in text
    assert "Raises:\n    ValueError: It is not." in text


def test_equations_and_programs():
    text = converted("""
        One.

            m = β m + g
            d = m

        Two.

            result = descend.fit(model)
        """)
    assert text.count(".. raw:: html") == 1
    assert ".. code-block:: python\n\n   result = descend.fit(model)" in text


def test_a_table():
    lines = table(["| where | what |", "|---|---|", "| paper | uses |g| and `a` |"])
    assert lines[3:] == ["   * - where", "     - what", "   * - paper", "     - uses \\|g\\| and ``a``", ""]


def test_fenced_code():
    assert ".. code-block:: python\n\n   import descend\n\n   x = 1\n" in converted("""
        Text.

        ```python
        import descend

        x = 1
        ```
        """)
