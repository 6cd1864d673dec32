"""Pages: numbers of tables and figures, and texts from outside."""

import jinja2

from descend.pages import html
from descend.pages.chart import Axis, Chart, Line
from descend.pages.html import Live, number, page, text_with_code
from descend.pages.parts import Figure, Section, Table

CHART = Chart((Line("a", ((1.0, 2.0),)),), Axis("x"), Axis("y"))
EMPTY = Chart((), Axis("x"), Axis("y"))


def test_tables_and_figures_are_counted_apart_and_empty_figures_left_out():
    table = Table("of: Things & more", ("a",), (("1",),))
    given = ("text", Figure("First", CHART), table, Figure("No", EMPTY), Figure("Last", CHART), table)
    (section,), reason = number([Section("s", given)], charts=False)
    parts = section.parts
    assert reason == ""
    assert parts[0] == "text"
    assert [one.stem for one in parts[1:]] == [
        "figure-01-first",
        "table-01-of-things-more",
        "figure-02-last",
        "table-02-of-things-more",
    ]
    assert parts[1].spec["description"] == "First"


def test_charts_that_cannot_be_drawn_leave_a_reason(monkeypatch):
    monkeypatch.setattr(html, "drawn_or_nothing", lambda specs, *more: ([""] * len(specs), "no library"))
    (section,), reason = number([Section("s", (Figure("First", CHART),))])
    (figure,) = section.parts
    assert (figure.svg, reason) == ("", "no library")


def test_the_template_is_compiled_once_for_all_pages(monkeypatch):
    compiled, original = [], jinja2.Environment.compile

    def counting(self, source, *more, **options):
        compiled.append(source)
        return original(self, source, *more, **options)

    html._environment.cache_clear()
    monkeypatch.setattr(jinja2.Environment, "compile", counting)
    first, second = page("A", []), page("B", [])
    assert len(compiled) == len(set(compiled)) > 0
    assert "A" in first
    assert second == page("B", [])


def test_code_is_marked_and_everything_is_escaped():
    assert text_with_code("run `a <b>` & <i>") == "run <code>a &lt;b&gt;</code> &amp; &lt;i&gt;"


def test_a_page_has_no_characters_that_a_browser_obeys():
    hostile = "<script>x</script>\x1b\u202e"
    sections, _ = number([Section(hostile, (hostile, Table(hostile, (hostile,), ((hostile,),))))])
    text = page(hostile, sections, reason=hostile, subtitle=hostile, live=Live(hostile, hostile, hostile))
    assert "<script>x" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert text.count("&lt;script&gt;x") > 5


def test_only_a_page_that_is_served_asks_for_news():
    assert "fetch(" not in page("t", [])
    assert "connect-src 'none'" in page("t", [])
    assert "fetch(" in page("t", [], live=Live("1", "stamp"))
