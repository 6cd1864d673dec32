"""Tables as CSV and LaTeX."""

import csv
import io

from descend.pages.parts import Table, as_csv, as_latex


def test_csv_keeps_numbers_and_takes_the_edge_off_formulas():
    table = Table("t", ("a", "=b"), (("-0.5", "@x"), ("1,024", "-")))
    assert list(csv.reader(io.StringIO(as_csv([table])))) == [["a", "'=b"], ["-0.5", "'@x"], ["1,024", "-"]]


def test_latex_escapes_every_character_that_tex_obeys():
    r"""And nothing else: `\input` in a name would read a file."""
    table = Table("results", ("arm", "value"), (("a_b & 50 % #1 $x$ {y} ~ ^ \\input{/etc/passwd}", "0.5"),), "≥ 3")
    text = as_latex(table, "tab:results")
    assert r"a\_b \& 50 \% \#1 \$x\$ \{y\} \textasciitilde{} \textasciicircum{}" in text
    assert r"\textbackslash{}input\{/etc/passwd\}" in text
    assert r"\begin{tabular}{lr}" in text  # numbers to the right
    assert r"\caption{Results. $\ge$ 3}" in text
    assert r"\label{tab:results}" in text
    assert text.count(r"\\") == 2


def test_a_table_without_remarks_has_a_plain_caption():
    assert r"\caption{Cost.}" in as_latex(Table("cost", ("a",), ()), "t")
