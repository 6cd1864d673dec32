"""What an author of a kind of layers defines, with a kind of its own for each test."""

import pytest

import descend.graph as g
from descend.graph.layer_kind import Incoming, LayerKind, WeightSlot, shown


class Doubled(LayerKind):
    """The smallest kind that has a shape."""

    defaults = {"scale": 2.0, "axis": 1}  # noqa: RUF012  # as every kind has them
    scale: float = 0.0
    axis: int | None = None
    bias: bool = False

    def output_shape(self, inputs):
        return (2 * inputs[0].shape[0],)


@pytest.mark.parametrize(("shape", "text"), [((16, 5, 5), "16 x 5 x 5"), ((3,), "3"), ((), "nothing")])
def test_a_shape_is_written_with_x_between_the_sizes(shape, text):
    assert shown(shape) == text


@pytest.mark.parametrize(("shape", "size"), [((2, 3, 4), 24), ((3,), 3), ((), 1)])
def test_an_incoming_tensor_knows_its_size_and_its_layer(shape, size):
    one = Incoming("fc", shape)
    assert one.size == size
    assert str(one) == f"'fc' gives {shown(shape)}"


def test_a_kind_that_overrides_nothing_more_has_one_output_no_weights_and_no_products():
    kind, inputs = Doubled(), (Incoming("x", (3,)),)
    for children in (0, 1, 5):
        assert kind.output_shapes(inputs, children) == ((6,),)
    assert kind.weight_slots(inputs) == ()
    assert kind.multiply_adds(((3,),), (6,)) == 0
    assert (kind.num_parents, kind.num_children, kind.refusal, kind.index_parents) == (1, 1, None, ())
    assert not kind.borrows_weights
    assert not kind.normalizes


def test_a_kind_without_a_shape_says_so():
    class Shapeless(LayerKind):
        pass

    with pytest.raises(NotImplementedError, match=r"Shapeless defines neither output_shape\(\) nor refusal"):
        Shapeless().output_shapes((), 1)


def test_a_setting_without_a_default_is_the_field():
    kind = Doubled()
    assert kind.setting("bias") is False
    kind.bias = True
    assert kind.setting("bias") is True


def test_a_zero_that_differs_from_the_unset_value_counts():
    """axis is None where it is not set, so a written 0 is a 0; scale is 0 where it is not set."""
    kind = Doubled()
    assert (kind.setting("scale"), kind.setting("axis")) == (2.0, 1)
    kind.scale, kind.axis = 0.0, 0
    assert (kind.setting("scale"), kind.setting("axis")) == (2.0, 0)


def test_weights_are_trained_and_filled_row_by_row_unless_a_kind_says_otherwise():
    slot = WeightSlot("bias", (3,), g.ConstantInitializer())
    assert (slot.fan_in, slot.fan_out, slot.trainable, slot.column_major, slot.optimizer) == (0, 0, True, False, None)


def test_a_setting_is_the_default_where_a_field_is_zero_or_unset():
    assert g.LeakyRelu().setting("negative_slope") == 0.01
    assert g.LeakyRelu(negative_slope=0.0).setting("negative_slope") == 0.01
    assert g.LeakyRelu(negative_slope=0.2).setting("negative_slope") == 0.2
    assert g.Convolution().setting("has_bias") is True
    assert g.Convolution(has_bias=False).setting("has_bias") is False
    assert g.FullyConnected().setting("has_bias") is False
