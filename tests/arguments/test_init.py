"""Checks of arguments: which values pass, and the sentence for the others."""

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from descend.arguments import (
    SHOWN,
    called,
    check_bool,
    check_choice,
    check_each,
    check_instance,
    check_integer,
    check_names,
    check_number,
    check_path,
    check_string,
    is_integer,
    is_number,
    require,
    shown,
    takes_arguments,
)
from descend.errors import ConfigurationError, DataError


@pytest.mark.parametrize("value", [0, 7, np.int64(3), np.uint8(0), 10**400])
def test_integers(value: object):
    assert is_integer(value)
    assert check_integer("n", value, minimum=0) is None


@pytest.mark.parametrize("value", [True, np.True_, 1.0, np.float32(1), "1", None, [1], math.nan, 1j])
def test_what_is_no_integer(value: object):
    assert not is_integer(value)
    assert (check_integer("n", value) or "").startswith("n must be an integer, got ")


def test_an_integer_within_bounds():
    assert check_integer("seed", "x", minimum=0) == "seed must be an integer >= 0, got 'x'"
    assert check_integer("seed", -1, minimum=0) == "seed must be an integer >= 0, got -1"
    assert check_integer("port", 65536, 1, 65535) == "port must be an integer >= 1 and <= 65535, got 65536"
    assert check_integer("port", 1, 1, 65535) is None
    assert check_integer("port", 65535, 1, 65535) is None


def test_other_values_may_be_allowed():
    assert check_integer("size", None, 1, also=(None, "auto")) is None
    assert check_integer("size", "auto", 1, also=(None, "auto")) is None
    assert check_integer("size", "max", 1, also=("auto", None)) == (
        "size must be an integer >= 1, 'auto' or None, got 'max'"
    )
    assert check_integer("size", False, 1, also=(0,)) == "size must be an integer >= 1 or 0, got False"


@pytest.mark.parametrize("value", [0.5, 1, np.float32(0.25), np.int8(1), Fraction(1, 3)])
def test_numbers(value: object):
    assert is_number(value)
    assert check_number("x", value, above=0) is None


@pytest.mark.parametrize("value", [True, np.False_, "0.5", None, math.nan, np.float32("nan"), 1j, np.zeros(2), 10**400])
def test_what_is_no_number(value: object):
    assert not is_number(value)
    assert (check_number("x", value, finite=False) or "").startswith("x must be a number, got ")


def test_a_number_within_bounds():
    assert check_number("lr", 0, above=0) == "lr must be a finite number > 0, got 0"
    assert check_number("lr", -0.5, at_least=0) == "lr must be a finite number >= 0, got -0.5"
    assert check_number("beta", 1.0, at_least=0, below=1) == "beta must be a number >= 0 and < 1, got 1.0"
    assert check_number("p", 1.5, above=0, at_most=1) == "p must be a number > 0 and <= 1, got 1.5"
    assert check_number("p", 1, above=0, at_most=1) is None
    assert check_number("beta", 0, at_least=0, below=1) is None


def test_infinities_pass_only_where_they_are_allowed():
    assert check_number("limit", math.inf) == "limit must be a finite number, got inf"
    assert check_number("limit", -math.inf, finite=False) is None
    assert check_number("limit", np.float32("inf"), above=0) == "limit must be a finite number > 0, got np.float32(inf)"
    assert check_number("limit", math.nan, finite=False) == "limit must be a number, got nan"


def test_a_flag():
    assert check_bool("verbose", True) is None
    assert check_bool("verbose", np.False_) is None
    assert check_bool("verbose", 1) == "verbose must be True or False, got 1"
    assert check_bool("verbose", None, also=(None,)) is None
    assert check_bool("verbose", "no", also=(None,)) == "verbose must be True or False or None, got 'no'"


def test_one_of_some_words():
    words = ("raise", "skip", "allow")
    assert check_choice("on_nonfinite", "skip", words) is None
    assert check_choice("on_nonfinite", "rise", words) == (
        "on_nonfinite must be one of 'raise', 'skip', 'allow', got 'rise'; did you mean 'raise'?"
    )
    assert check_choice("on_nonfinite", 5, words) == "on_nonfinite must be one of 'raise', 'skip', 'allow', got 5"
    assert check_choice("on_nonfinite", ["skip"], words) is not None


def test_a_string():
    assert check_string("name", "a\nb") is None
    assert check_string("name", 5) == "name must be a string, got 5"
    assert check_string("name", " ", empty=False) == "name must be a non-empty string, got ' '"
    assert check_string("name", "a\nb", one_line=True) == "name must be a string of one line, got 'a\\nb'"
    assert check_string("name", "a\x1b[0m", one_line=True) is not None


def test_a_path():
    assert check_path("run_dir", "runs/a") is None
    assert check_path("run_dir", Path("runs")) is None
    for wrong in (5, None, "", "a\0b", b"runs"):
        assert check_path("run_dir", wrong) == f"run_dir must be a str or a Path, got {wrong!r}"


def test_an_object_of_a_type():
    assert check_instance("where", Path(), Path) is None
    assert check_instance("where", 5, (str, Path)) == "where must be a str or a Path, got 5"
    assert check_instance("where", 5, Path, "a folder", remedy="make one") == "where must be a folder, got 5: make one"


def test_a_list_and_its_entries():
    assert check_each("args", ["a", "b"], check_string) == []
    assert check_each("args", ["a", 5], check_string) == ["args[1] must be a string, got 5"]
    for wrong in ('"', 5, None):
        assert check_each("args", wrong, check_string, "a list of strings") == [
            f"args must be a list of strings, got {wrong!r}"
        ]


def test_unknown_names_are_answered_with_the_nearest():
    assert check_names("Adam", ["beta1"], ["beta1", "beta2"]) == []
    assert check_names("Adam", ["beta_2", "q"], ["beta1", "beta2"]) == [
        "Adam has no option 'beta_2'; did you mean 'beta2'? Its options are beta1, beta2",
        "Adam has no option 'q'; its options are beta1, beta2",
    ]


def test_all_problems_are_in_one_error():
    require(None, [], check_integer("a", 1))
    with pytest.raises(ConfigurationError) as caught:
        require(check_integer("a", "x"), None, [check_bool("b", 2), None], where="fit")
    assert caught.value.problems == ("fit: a must be an integer, got 'x'", "fit: b must be True or False, got 2")
    with pytest.raises(DataError, match=r"^size must be an integer, got 'x'$"):
        require(check_integer("size", "x"), error=DataError)


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError


def test_no_error_grows_with_what_was_given():
    assert len(shown("x" * 10**6)) == SHOWN
    assert len(shown(list(range(10**4)))) == SHOWN
    assert shown(np.zeros((2, 2))) == "array([[0., 0.], [0., 0.]])"
    assert shown("a\x1b\n") == repr("a\x1b\n")
    assert shown(Broken()) == "a Broken"


def test_a_call_that_a_function_refuses_names_the_argument_and_an_error_within_stays():
    def broken(value):
        raise ValueError("of the function")

    assert called("rule", "a function of one number", abs, -2) == 2
    with pytest.raises(ConfigurationError, match=r"^rule must be a function of one number, got <built-in .*>: bad op"):
        called("rule", "a function of one number", abs, "x")
    with pytest.raises(ValueError, match="of the function"):
        called("rule", "a function of one number", broken, 1)


@pytest.mark.parametrize(
    ("function", "counts"),
    [
        (lambda: 0, {0}),
        (lambda x, y=1: 0, {1, 2}),
        (lambda *x: 0, {0, 1, 2}),
        (lambda *, x: 0, set()),
        (max, {0, 1, 2}),
    ],
)
def test_how_many_arguments_a_function_takes(function, counts):
    assert {count for count in range(3) if takes_arguments(function, count)} == counts
