"""What messages hold whatever they quote, and suggestions."""

import pickle

import pytest

from descend.errors import DataError, DescendError, GraphError, TextError, nearest, table


def test_no_line_is_longer_than_2000_characters():
    error = DataError(["a" * 5_000_000 + " remedy", "first\n" + "\x1b" * 3000])
    assert all(len(line) <= 2000 for line in str(error).split("\n"))
    assert error.problems[0].endswith(" remedy")


def test_escape_sequences_are_written_out_and_lines_stay():
    error = DescendError("name '\x1b[2J\u202e'\n\tat x")
    assert error.problems == ("name '\\x1b[2J\\u202e'\n\tat x",)
    assert str(error) == error.problems[0]


@pytest.mark.parametrize("kind", [GraphError, TextError])
def test_a_newline_in_a_name_makes_no_line_of_its_own(kind):
    error = kind(["layer 'a\nerror: all is lost'", "another"])
    assert str(error) == "layer 'a\\nerror: all is lost'\nanother"


def test_errors_travel_between_processes():
    error = pickle.loads(pickle.dumps(GraphError(["a\x07", "b"])))
    assert isinstance(error, GraphError)
    assert str(error) == "a\\x07\nb"


def test_the_nearest_name_is_suggested_in_its_own_spelling():
    assert nearest("BETA2", ["beta1", "Beta2", "eps"]) == "; did you mean 'Beta2'?"
    assert nearest("learn", ["learn_rate", "momentum"]) == "; did you mean 'learn_rate'?"
    assert nearest("zzz", ["beta1"]) == ""


def test_a_table_counts_what_it_leaves_out():
    lines = table("differ:", [(f"w{i}", "(2,)", "(3,)") for i in range(6)], "do this", shown=2)
    assert lines == [
        "differ:",
        "    weights  expected  found",
        "    w0       (2,)      (3,)",
        "    w1       (2,)      (3,)",
        "    and 4 more",
        "do this",
    ]
