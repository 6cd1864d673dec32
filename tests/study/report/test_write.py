"""The files of a report: they say what the comparison says, load nothing, and are not formulas."""

import csv
import io
import json
import re

import pytest

from descend.errors import StorageError
from descend.pages import draw
from descend.pages.parts import Table, as_csv
from descend.study.report.write import _long, write


@pytest.fixture(scope="module")
def page(result, tmp_path_factory):
    return result.report(tmp_path_factory.mktemp("report"))


def test_nothing_is_fetched_and_names_are_escaped(page):
    text = page.read_text()
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|src=|href=\"(?!#|data:,\")|@import|url\((?!#)", text)
    assert "digits &lt;&amp;&gt; more" in text
    assert "<&>" not in text


def test_the_verdict_and_every_trial_are_in_it(page, result):
    text = page.read_text()
    for name in result.records:
        assert name in text
    assert "refused: 2 batch sizes cannot show" in text
    assert "diverged at update" in text


def test_the_tables_are_there_as_markdown_and_csv(page, result):
    markdown = page.with_suffix(".md").read_text()
    for head in ("Cost", "Results of the arms", "Tunability: batch 32, 20 steps", "Batch size", "Warnings"):
        assert f"\n## {head}\n" in markdown
    results = markdown.split(". Results**")[1].split("**")[0]
    assert results.count("\n| ") == 1 + 2 * 2 * 2
    cells = list(csv.DictReader(page.with_suffix(".tables.csv").open()))
    there = {(cell["table"], cell["column"]) for cell in cells}
    assert {("results", "median of re-runs"), ("tunability, batch 32, 20 steps", "learning-rate tolerance")} <= there
    rows = list(csv.DictReader(page.with_suffix(".csv").open()))
    assert [row["trial"] for row in rows] == list(result.records)


def test_no_cell_of_a_csv_is_a_formula():
    """Names from a study file reach spreadsheets; numbers stay numbers."""
    hostile = ["=1+1", "+a", "-a", "@SUM(A1)", "\tx", "\rx", '=HYPERLINK("http://x")']
    table = Table("=t", tuple(hostile), ((*["-0.5", "+3", "-1,024", "-inf", "plain"], "=2", "-"),), "")
    for text in (as_csv([table]), _long([table])):
        cells = [cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row]
        assert [cell for cell in cells if cell.startswith(("=", "+", "@", "\t", "\r"))] == ["+3"]
        assert {cell for cell in cells if cell.startswith("-")} == {"-0.5", "-1,024", "-inf", "-"}
        assert "'=1+1" in cells


def test_the_same_records_give_the_same_bytes(page, result, tmp_path):
    draw._drawn.clear()  # so that they are drawn once more
    again = write(result, tmp_path / "again.html")
    for kind in (".html", ".md", ".csv", ".tables.csv"):
        assert again.with_suffix(kind).read_bytes() == page.with_suffix(kind).read_bytes()
    parts = {one.name: one.read_bytes() for one in page.with_suffix(".parts").iterdir()}
    assert {one.name: one.read_bytes() for one in again.with_suffix(".parts").iterdir()} == parts


def test_tables_and_figures_are_files_of_their_own(page):
    """What an earlier report left is gone; files of others stay."""
    parts = page.with_suffix(".parts")
    names = sorted(one.name for one in parts.iterdir())
    assert names[0] == "figure-01-re-runs-of-the-winners-batch-32-20-steps.svg"
    text = page.read_text()
    for kind, ends in (("figure", (".svg", ".vl.json")), ("table", (".csv", ".tex"))):
        count = len(re.findall(rf'id="{kind}-\d+"', text))  # those of series are longer
        assert count > 5
        assert [sum(name.startswith(kind) and name.endswith(end) for name in names) for end in ends] == [count, count]
    spec = json.loads((parts / "figure-01-re-runs-of-the-winners-batch-32-20-steps.vl.json").read_text())
    assert spec["$schema"].startswith("https://vega.github.io/schema/vega-lite/")


def test_parts_of_an_earlier_report_are_removed_and_files_of_others_stay(result, tmp_path):
    folder = tmp_path / "report.parts"
    folder.mkdir()
    for name in ("figure-99-old.svg", "table-99-old.tex", "mine.svg", "figure-of-mine.svg"):
        (folder / name).write_text("")
    write(result, tmp_path)
    names = {one.name for one in folder.iterdir()}
    assert {"mine.svg", "figure-of-mine.svg"} <= names
    assert not names & {"figure-99-old.svg", "table-99-old.tex"}


def test_without_the_library_there_are_tables_and_a_word(result, tmp_path, monkeypatch):
    monkeypatch.setattr(draw, "is_installed", lambda: False)
    page = write(result, tmp_path)
    text = page.read_text()
    assert "needs the library vl-convert-python: pip install vl-convert-python" in text
    assert "<svg" not in text
    assert "Table 3." in text
    assert not list(page.with_suffix(".parts").glob("*.svg"))
    assert list(page.with_suffix(".parts").glob("*.vl.json"))


def test_a_place_that_is_a_file_is_an_error(result, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot make the directory"):
        write(result, tmp_path / "file" / "report.html")
