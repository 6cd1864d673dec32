"""What messages hold whatever they quote, and suggestions."""

import pickle
import warnings

import pytest

from descend.errors import DataError, DescendError, GraphError, TextError, missing_library, nearest, table


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
    assert nearest("Adma", ["Adamax", "Adam"]) == "; did you mean 'Adam'?"  # two letters in the other order


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


SCRIPT = """
import functools, torch, descend
module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
module.register_module('unused', torch.nn.Linear(1, 1))
module.forward = lambda x: module[1](module[0](x))
def train():
    return descend.fit(
        module, 'mse', (torch.randn(8, 3), torch.randn(8, 2)), batch_size=20, micro_batch_size=4,
        optimizer=functools.partial(torch.optim.SGD, lr=0.1), stop=descend.Epochs(1), verbose=False,
    )
train()
descend.optim.Adam([{'params': []}, {'params': [torch.ones(1, requires_grad=True)]}])
"""


def test_warnings_are_at_the_users_line():
    """Through callbacks, context managers and torch."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(compile(SCRIPT, "/home/user/script.py", "exec"), {})
    assert len(caught) >= 4
    assert {(one.filename, one.lineno) for one in caught} == {
        ("/home/user/script.py", 7),  # fit
        ("/home/user/script.py", 12),  # the optimizer
    }


def test_a_missing_library_is_named_as_pip_names_it():
    assert missing_library("a table", "pyarrow.csv") == "a table needs the library pyarrow: pip install pyarrow"
    assert missing_library("an image", "PIL.Image") == "an image needs the library pillow: pip install pillow"
