"""The files of a report: they say what the comparison says, ask nobody for anything, and are no formulas."""

import csv
import io
import re
import shutil
import subprocess

import pytest

from descend.errors import StorageError
from descend.study.report.tables import Table
from descend.study.report.write import _csv, _long, write

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def page(result, tmp_path_factory):
    return result.report(tmp_path_factory.mktemp("report"))


def test_nothing_is_fetched_and_names_are_escaped(page):
    text = page.read_text()
    assert not re.search(r"https?://|src=|href=|@import|url\(", text)
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
    for head in ("Cost", "Results of the arms", "Tunability: batch 32, 20 updates", "Batch size", "Lints"):
        assert f"\n## {head}\n" in markdown
    results = markdown.split("**results**")[1].split("**")[0]
    assert results.count("\n| ") == 1 + 2 * 2 * 2
    cells = list(csv.DictReader(page.with_suffix(".tables.csv").open()))
    there = {(cell["table"], cell["column"]) for cell in cells}
    assert {("results", "median of re-runs"), ("tunability, batch 32, 20 updates", "stable width")} <= there
    rows = list(csv.DictReader(page.with_suffix(".csv").open()))
    assert [row["trial"] for row in rows] == list(result.records)


def test_no_cell_of_a_csv_is_a_formula():
    """Names from a study file reach spreadsheets; numbers stay numbers."""
    hostile = ["=1+1", "+a", "-a", "@SUM(A1)", "\tx", "\rx", '=HYPERLINK("http://x")']
    table = Table("=t", tuple(hostile), ((*["-0.5", "+3", "-1,024", "-inf", "plain"], "=2", "-"),), "")
    for text in (_csv([table]), _long([table])):
        cells = [cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row]
        assert [cell for cell in cells if cell.startswith(("=", "+", "@", "\t", "\r"))] == ["+3"]
        assert {cell for cell in cells if cell.startswith("-")} == {"-0.5", "-1,024", "-inf", "-"}
        assert "'=1+1" in cells


def test_the_same_records_give_the_same_bytes(page, result, tmp_path):
    again = write(result, tmp_path / "again.html")
    for kind in (".html", ".md", ".csv", ".tables.csv"):
        assert again.with_suffix(kind).read_bytes() == page.with_suffix(kind).read_bytes()


def test_a_place_that_is_a_file_is_an_error(result, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot make the directory"):
        write(result, tmp_path / "file" / "report.html")


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
@pytest.mark.slow
def test_a_browser_opens_it_without_an_error(page, tmp_path):
    """The script runs: titles become tips, every legend has its series, and nothing was asked of the network."""
    probe = (
        "document.title = [document.querySelectorAll('svg').length, document.querySelectorAll('[data-said]').length,"
    )
    probe += "document.querySelectorAll('svg title').length].join(' ');"
    probe += "document.querySelector('[data-legend]').dispatchEvent(new Event('click'));"
    probe += "document.title += ' ' + document.querySelector('[data-series]').style.display;"
    probed = tmp_path / "probed.html"
    probed.write_text(page.read_text().replace("</body>", f"<script>{probe}</script></body>"))
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    done = subprocess.run([BROWSER, *options, probed.as_uri()], capture_output=True, text=True, check=True, timeout=120)
    plots, said, titles, display = re.search(r"<title>(\d+) (\d+) (\d+) (\w*)</title>", done.stdout).groups()
    assert int(plots) == page.read_text().count("<svg")
    assert int(said) > 20
    assert (titles, display) == ("0", "none")
