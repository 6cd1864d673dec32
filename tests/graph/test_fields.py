"""Fields of descriptions: the types that annotations stand for, the values each takes, and the messages of others."""

import dataclasses
import inspect
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pytest

import descend
import descend.graph as g
from descend.errors import ConfigurationError
from descend.graph.fields import FieldType, described, described_openly, field_types, refuse_unknown, take_all


class Base:
    message: ClassVar[str] = "M"
    name: str = ""
    where: str | None = None


class Kind(Base):
    size: int = 0
    rates: tuple[float, ...] = ()
    format: g.DataType | None = None

    def problems(self) -> Iterator[str]:
        return iter(())


def test_fields_are_those_of_all_bases_from_the_base_up():
    """Constants of the class and the place in a text are no fields."""
    assert dict(field_types(Kind)) == {
        "name": FieldType(str),
        "size": FieldType(int),
        "rates": FieldType(float, many=True),
        "format": FieldType(g.DataType, optional=True),
    }
    assert list(field_types(Kind, Base)) == ["size", "rates", "format"]


TAKEN = [
    (FieldType(int), 3, 3),
    (FieldType(int), np.int32(3), 3),
    (FieldType(float), 3, 3.0),
    (FieldType(float), np.array(3), 3.0),
    (FieldType(bool), 1, True),
    (FieldType(bool), np.bool_(False), False),
    (FieldType(str), "a", "a"),
    (FieldType(g.DataType), "FP16", g.DataType.FP16),
    (FieldType(g.DataType), 3, g.DataType.FP16),
    (FieldType(int, many=True), 3, (3,)),
    (FieldType(int, many=True), range(3), (0, 1, 2)),
    (FieldType(int, many=True), "3 -1", (3, -1)),
    (FieldType(float, many=True), "", ()),
    (FieldType(str, many=True), "a b", ("a b",)),
    (FieldType(int, optional=True), None, None),
]


@pytest.mark.parametrize(("kind", "value", "taken"), TAKEN, ids=str)
def test_a_value_is_brought_to_its_type_where_nothing_is_lost(kind, value, taken):
    found = kind.take(value)
    assert found == taken
    assert type(found) is type(taken)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (FieldType(int), True),
        (FieldType(int), 3.0),
        (FieldType(int), "3"),
        (FieldType(int), None),
        (FieldType(float), True),
        (FieldType(float), "3"),
        (FieldType(float), b"3"),
        (FieldType(float), 3j),
        (FieldType(bool), 2),
        (FieldType(bool), "True"),
        (FieldType(bool), 1.0),
        (FieldType(str), 3),
        (FieldType(str), b"a"),
        (FieldType(g.DataType), "HALF"),
        (FieldType(g.DataType), 9),
        (FieldType(g.DataType), True),
        (FieldType(int, many=True), [1, 2.5]),
        (FieldType(int, many=True), "1 2.5"),
        (FieldType(int, many=True), None),
        (FieldType(g.Layer), g.Relu),  # a class is no layer
    ],
    ids=str,
)
def test_other_values_are_refused(kind, value):
    with pytest.raises(TypeError):
        kind.take(value)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (FieldType(int), "an integer"),
        (FieldType(float, many=True), "a list of: a number"),
        (FieldType(bool, optional=True), "True or False or None"),
        (FieldType(str), "a string"),
        (FieldType(g.ShardingStrategy), "one of FULL, GRID_ROWS, GRID_COLS"),
        (FieldType(g.Optimizer, optional=True), "Optimizer or None"),
    ],
    ids=str,
)
def test_a_type_says_what_it_expects(kind, expected):
    assert kind.expected == expected


def test_all_values_of_a_wrong_type_are_named_and_long_ones_are_cut():
    types = {"a": FieldType(int), "b": FieldType(int), "c": FieldType(int)}
    with pytest.raises(ConfigurationError) as caught:
        take_all("Kind", types, {"a": "x", "b": 1, "c": "y" * 100})
    assert list(caught.value.problems) == [
        "Kind.a is 'x'; expected an integer",
        f"Kind.c is '{'y' * 76}...; expected an integer",
    ]
    assert take_all("Kind", types, {"c": np.int64(2)}) == {"c": 2}  # what is not given is left out


def test_all_unknown_names_are_named_with_the_nearest():
    refuse_unknown("Kind", ["a"], iter(["a", "b"]))
    with pytest.raises(ConfigurationError) as caught:
        refuse_unknown("Kind", ["sise", "size", "zzz"], iter(["size", "rates"]))
    assert list(caught.value.problems) == [
        "Kind has no field 'sise'; did you mean 'size'? its fields are size, rates",
        "Kind has no field 'zzz'; its fields are size, rates",
    ]
    with pytest.raises(ConfigurationError, match="Kind has no field 'a'; its fields are none"):
        refuse_unknown("Kind", ["a"], [])


@described
class Frozen:
    size: int = 0
    rates: tuple[float, ...] = ()


@described_openly
class Open:
    size: int = 0


def test_a_description_is_frozen_unless_it_is_open():
    one = Open(1)
    one.size = 2
    assert one == Open(2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Frozen(1).size = 2


def test_the_place_in_a_text_is_kept_and_makes_no_difference():
    assert Frozen(1, where="f:1:1").where == "f:1:1"
    assert Frozen(1).where is None
    assert Frozen(1, where="f:1:1") == Frozen(1)
    assert "where" not in repr(Frozen(1, where="f:1:1"))


def test_help_shows_the_fields():
    assert list(inspect.signature(Frozen).parameters) == ["size", "rates", "where"]
    assert inspect.signature(Frozen).parameters["size"].default == 0


def test_numpy_numbers_and_any_iterable_are_taken():
    layer = g.Convolution(
        num_dims=np.int64(2), kernel_size=np.array([3, 5]), stride=2, has_bias=np.bool_(False), conv_tensor_op_mode=1
    )
    assert (layer.num_dims, layer.kernel_size, layer.stride, layer.has_bias) == (2, (3, 5), (2,), False)
    assert layer.conv_tensor_op_mode is g.ConvTensorOpsMode.NO_TENSOR_OPS
    matrix = np.arange(6.0).reshape(2, 3)
    assert g.ValueInitializer(np.nditer(matrix, order="F")).values == (0.0, 3.0, 1.0, 4.0, 2.0, 5.0)


def test_a_list_of_numbers_may_be_one_text():
    x = g.Input()
    assert g.Slice(x, slice_points="0 784  794").slice_points == (0, 784, 794)
    assert g.Pooling(x, pool_dims="3 3").pool_dims == (3, 3)
    assert g.Pooling(x, pool_dims="2").pool_dims == (2,)
    assert g.WeightedSum(x, scaling_factors="1 -0.5 1e3").scaling_factors == (1.0, -0.5, 1000.0)
    assert g.Reshape(x, dims="").dims == ()
    with pytest.raises(ConfigurationError, match=r"Slice.slice_points is '0 2.5'; expected a list of: an integer"):
        g.Slice(x, slice_points="0 2.5")
    with pytest.raises(ConfigurationError, match=r"Reshape.dims is '3x3'; expected a list of: an integer"):
        g.Reshape(x, dims="3x3")


def test_descriptions_are_values():
    assert g.SGD(0.1, momentum=0.9) == g.SGD(learn_rate=0.1, momentum=0.9)
    assert g.Adam() != g.AdaGrad()
    assert hash(g.SGD(0.1)) == hash(g.SGD(0.1, where="elsewhere"))
    with pytest.raises(ConfigurationError, match="SGD has no field 'learn_rat'; did you mean 'learn_rate'"):
        g.SGD(learn_rat=1)
    with pytest.raises(ConfigurationError, match=r"Adam\.beta1 is 'x'; expected a number"):
        g.Adam(beta1="x")
    with pytest.raises(ConfigurationError, match="SGD got 'learn_rate' twice"):
        g.SGD(0.1, learn_rate=0.2)
    with pytest.raises(ConfigurationError, match="SGD has 3 fields"):
        g.SGD(0.1, 0.2, True, 4)


def test_values_by_position_that_fit_a_later_field_are_said_to_need_a_name() -> None:
    with pytest.raises(ConfigurationError) as found:
        descend.CosineDecayLearningRate(1e-3, 0.0, 10)  # pyright: ignore[reportArgumentType]
    assert found.value.problems == (
        "CosineDecayLearningRate.weights is 0.001; expected a string",
        "its fields are weights, lr_max, lr_min, decay_steps, initial_warmup_learning_rate, warmup_steps, in this "
        "order: name them, as in CosineDecayLearningRate(lr_max=0.001)",
    )
    with pytest.raises(ConfigurationError) as found:  # no later field is a text
        descend.CosineDecayLearningRate("a", 0.1, "x")  # pyright: ignore[reportArgumentType]
    assert found.value.problems == ("CosineDecayLearningRate.lr_min is 'x'; expected a number",)
