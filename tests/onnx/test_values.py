"""Nodes and values of a file: what is read of them, and how each mistake is worded."""

from dataclasses import replace

import numpy as np
import pytest

from descend.graph import Input
from descend.onnx.values import (
    ConstantValue,
    Permuted,
    ShapeValue,
    Tensor,
    UnsupportedNode,
    integers,
    text,
)
from tests.onnx.files import a_node

LAYER = Input(data_field="x", name="x")
X = Tensor(LAYER, (3, 4))


def refused(message):
    return pytest.raises(UnsupportedNode, match=message)


def test_an_attribute_is_of_the_type_of_its_default():
    node = a_node("Op", a=2, b=0.5, c=b"linear", d=[1, 2], e=float("nan"), f=[0.5])
    assert (node.get("a", 0), node.get("b", 1.0), node.get("missing", 7)) == (2, 0.5, 7)
    assert node.get("a", 1.0) == 2  # an integer is a number
    assert text(node.get("c", "")) == "linear"
    assert node.get("d", [0]) == [1, 2]
    with refused(r"has b 0\.5; expected an integer"):
        node.get("b", 1)
    with refused("has e nan; expected a number"):
        node.get("e", 1.0)
    with refused("has d .*; expected a word"):
        node.get("d", "")
    with refused(r"has f \[0\.5\]; expected a list of integers"):
        node.get("f", [0])


def test_lists_axes_and_orders_are_checked_against_the_dimensions():
    node = a_node("Op", strides=[2, 1], axis=-1, far=4, perm=[0, 2, 1], twice=[0, 0])
    assert node.int_list("strides", [1, 1], 1) == (2, 1)
    assert node.axis(3, 0) == 2
    assert node.perm(3) == [0, 2, 1]
    assert a_node("Transpose").perm(3) == [2, 1, 0]
    with refused(r"has strides \[2, 1\]; expected 3 integers of at least 1"):
        node.int_list("strides", [1, 1, 1], 1)
    with refused(r"has strides \[2, 1\]; expected 2 integers of at least 2"):
        node.int_list("strides", [2, 2], 2)
    with refused("has far 4, and its input has 4 dimensions"):
        node.axis(4, 0, "far")
    with refused("which is not an order of 4 axes"):
        node.perm(4)


def test_an_input_that_differs_between_samples():
    assert a_node("Op", X).tensor() is X
    assert a_node("Op", X).tensor(0, 2) is X
    fixed = ConstantValue(np.ones(2))
    for value, message in [
        (None, "is given no input 1"),
        (fixed, "takes a constant as input 1"),
        (Permuted(LAYER, ((3,), (None,))), "samples are not its first dimension"),
        (Tensor(LAYER, (3, 4), joined=1), "is given samples joined with other dimensions"),
        (Tensor(LAYER, ()), "which no layer here takes"),
    ]:
        with refused(message):
            a_node("Op", value).tensor()
    with refused(r"is given \(samples, 3, 4\), which no layer here takes"):
        a_node("Op", X).tensor(0, 1)


def test_an_input_that_is_constant():
    node = a_node("Op", X, ConstantValue(np.array([3])), ConstantValue(np.array(0.5, np.float32)))
    assert node.fixed(1).array == [3]
    assert node.integer(1) == 3
    assert node.number(2, "alpha", 1.0) == 0.5
    assert a_node("Op", alpha=0.25).number(2, "alpha", 1.0) == 0.25  # where older operator sets have an attribute
    with refused("computes its input 1 from the data, and a constant is needed"):
        node.fixed(0)
    with refused("is given no input 4"):
        node.fixed(3)
    with refused("has 2 numbers as input 1; expected one"):
        a_node("Op", ConstantValue(np.array([1, 2]))).integer(0)
    with refused("has 2 entries of float64 as input 1; expected a number"):
        a_node("Op", ConstantValue(np.ones(2))).number(0, "alpha", 1.0)


def test_integers_are_an_input_in_newer_files_and_an_attribute_in_older_ones():
    assert a_node("Op", X, ConstantValue(np.array([1, -1]))).ints(1, "axes") == (1, -1)
    assert a_node("Op", X, axes=[1, -1]).ints(1, "axes") == (1, -1)
    assert a_node("Op", X).ints(1, "axes") is None
    assert a_node("Op", X, axes=[1, -1]).axes(1, 3) == (1, 2)
    with refused(r"has axes \[3\], and its input has 3 dimensions"):
        a_node("Op", X, axes=[3]).axes(1, 3)


def test_outputs_count_up_to_the_last_that_something_takes():
    node = replace(a_node("Op"), taken=(True, False, True, False))
    assert node.outputs == 3
    assert [node.takes(place) for place in range(6)] == [True, False, True, False, False, False]


def test_lists_of_sizes_hold_a_bounded_number_of_integers():
    assert integers(np.array([[1, 2], [3, 4]], np.int8)) == [1, 2, 3, 4]
    assert all(type(one) is int for one in integers(np.array([True, False])))
    with refused("takes 2 entries of float64 for a list of sizes or axes"):
        integers(np.ones(2))
    with refused("takes 10,001 entries"):
        integers(np.zeros(10_001, np.int64))
    with refused("makes a list of 10,001 sizes"):
        ShapeValue((1,) * 10_001)


def test_bytes_that_are_no_text_are_shown_and_do_not_raise():
    assert text(b"\xff") == "\ufffd"
