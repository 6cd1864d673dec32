"""Lines for the user: where they go, who hears them, and what is not printed."""

import pytest

from descend.callbacks.console import claim, is_muted, listening, muted, release, say, with_unit


class Bar:
    def __init__(self):
        self.lines = []

    def print(self, text, *, markup, highlight, soft_wrap):
        assert (markup, highlight, soft_wrap) == (False, False, True)
        self.lines.append(text)


def test_lines_go_through_the_newest_claim_and_back_to_standard_output(capsys):
    first, second = Bar(), Bar()
    claim(first)
    claim(second)
    say("[red]a[/red]")
    release(second)
    say("b")
    release(first)
    release(first)  # once more changes nothing
    say("c")
    assert (first.lines, second.lines) == (["b"], ["[red]a[/red]"])
    assert capsys.readouterr().out == "c\n"


def test_listeners_hear_each_line_as_it_is_printed_until_their_end(capsys):
    heard = []
    with listening(heard.append):
        say("one\n\ttwo \x1b[31m")
    say("after")
    assert heard == ["one\n\ttwo \\x1b[31m"]
    assert capsys.readouterr().out == "one\n\ttwo \\x1b[31m\nafter\n"


def test_nothing_is_printed_or_heard_while_muted_however_deep(capsys):
    heard = []
    with listening(heard.append), muted():
        with muted():
            assert is_muted()
        assert is_muted()
        say("silent")
    assert not is_muted()
    assert heard == []
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("value", "unit", "shown"), [(0.25, "%", "25%"), (0.25, "", "0.25"), (3.0, "s", "3s"), (1 / 3, "%", "33.3333%")]
)
def test_percentages_are_multiplied_by_100(value, unit, shown):
    assert with_unit(value, unit) == shown
