import pytest

import descend.graph as g
from descend.errors import ConfigurationError, TextError


def test_parents_come_as_arguments_lists_or_keywords_and_learn_of_their_children():
    a, b, c = (g.Input(name=name) for name in "abc")
    total = g.Sum(a, [b], parents=c)
    assert total.parents == [a, b, c]
    assert [one.children for one in (a, b, c)] == [[total]] * 3
    child = g.Relu(name="child")
    g.Identity(a, children=[child])
    assert child.parents[0].parents == [a]
    child(b)
    assert child.parents[1] is b
    assert b.children == [total, child]


def test_names_count_up_before_they_are_given(monkeypatch):
    monkeypatch.setattr(g.Layer, "global_count", 0)
    assert [g.Input().name, g.Input(name="x").name, g.Input().name] == ["layer1", "x", "layer2"]


def test_unknown_keywords_are_refused_with_the_nearest_field():
    with pytest.raises(ConfigurationError) as caught:
        g.Convolution(num_dim=2, kernel=3)
    first, second = caught.value.problems
    assert first.startswith(
        "Convolution has no field 'num_dim'; did you mean 'num_dims'? its fields are num_dims, out_channels,"
    )
    assert second.startswith("Convolution has no field 'kernel'; did you mean 'kernel_size'?")
    assert isinstance(caught.value, ValueError)


def test_wrong_types_are_refused_with_field_value_and_expectation():
    with pytest.raises(ConfigurationError) as caught:
        g.Convolution(num_dims="a", out_channels=2.5, kernel_size="ab", has_bias="yes", conv_tensor_op_mode="FAST")
    assert list(caught.value.problems) == [
        "Convolution.num_dims is 'a'; expected an integer",
        "Convolution.out_channels is 2.5; expected an integer",
        "Convolution.kernel_size is 'ab'; expected a list of: an integer",
        "Convolution.has_bias is 'yes'; expected True or False or None",
        "Convolution.conv_tensor_op_mode is 'FAST'; expected one of DEFAULT_TENSOR_OPS, NO_TENSOR_OPS, USE_TENSOR_OPS, "
        "USE_TENSOR_OPS_ALLOW_CONVERSION",
    ]
    with pytest.raises(ConfigurationError, match=r"Relu: 3 is given in parents; expected a Layer"):
        g.Relu(3)
    with pytest.raises(ConfigurationError, match=r"Relu: 3 is given in weights; expected a Weights"):
        g.Relu(weights=[3])
    with pytest.raises(ConfigurationError, match=r"Relu\.datatype is 'HALF'"):
        g.Relu(datatype="HALF")


def test_attributes_are_plain_and_may_be_changed():
    layer = g.FullyConnected(num_neurons=3, device="GPU", parallel_strategy={"height_groups": 2})
    layer.num_neurons = 4
    layer.name = "fc"
    fields = layer.to_fields()
    assert (fields["num_neurons"], fields["name"], fields["device_allocation"]) == (4, "fc", "GPU")
    assert fields["parallel_strategy"] == g.ParallelStrategy(height_groups=2)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_rates_that_no_rule_can_use(bad):
    assert g.SGD(0.1, 0.9).problems() == []
    with pytest.raises(
        ConfigurationError, match=rf"^the default optimizer: SGD: learn_rate must be a finite number >= 0, got {bad!r}"
    ):
        g.check_optimizer(g.SGD(bad), "the default optimizer")
    with pytest.raises(
        ConfigurationError, match=r"^f:1:1: the default optimizer: Adam: beta2 must be a number >= 0 and < 1, got 1\.0"
    ):
        g.check_optimizer(g.Adam(0.1, 0.9, 1.0, where="f:1:1"), "the default optimizer")


def test_traversal_reaches_all_layers_parents_first():
    x = g.Input(name="x")
    a, b = g.Relu(x, name="a"), g.Relu(x, name="b")
    total = g.Sum(b, a, name="sum")
    late = g.Identity(name="late")
    a.add_parent(late)
    assert [layer.name for layer in g.traverse_layer_graph(total)] == ["x", "b", "late", "a", "sum"]


class Blend(g.kinds.base.SameShape):
    """A kind without a message of its own."""

    share: float = 0.0
    places: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    hard: bool = False
    most: int | None = None
    where_to: g.DeviceAllocation = g.DeviceAllocation.DEFAULT_DEVICE


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"share": 0.1, "places": [3], "names": ["a b"], "hard": True, "most": 0, "where_to": "GPU"},
        {"places": [1, -(2**40)], "names": ["", "b"]},
    ],
    ids=str,
)
def test_a_kind_without_a_message_has_a_text_and_a_binary_form(fields):
    x = g.Input(data_field="x", name="x")
    y = Blend(x, name="y", device="CPU", weights=[g.Weights(name="w")], **fields)
    model = g.Model(1, objective_function=g.LayerTerm(y, 2.0))
    again = g.from_text(g.to_text(model))
    assert again == model
    read = next(layer for layer in again.layers if layer.name == "y")
    assert type(read) is Blend
    assert {name: getattr(read, name) for name in Blend.own_fields()} == {
        name: getattr(y, name) for name in Blend.own_fields()
    }
    binary = g.text.parse_binary(g.text.render_binary(model), message="Model")
    assert g.text.to_value(binary, g.CLASSES) == model


def test_a_kind_that_is_not_there_is_refused_with_the_nearest():
    text = 'layer { name: "y" own_kind { kind: "Blond" } }'
    with pytest.raises(TextError, match=r"f:1:1: there is no kind of layers .Blond.; did you mean .Blend."):
        g.from_text(text, "f")
    for kind in ("Layer", "Relu", ""):
        with pytest.raises(TextError, match=f"there is no kind of layers '{kind}'"):
            g.from_text(text.replace("Blond", kind))
    wrong = 'layer { name: "y" own_kind { kind: "Blend" setting { name: "shape" numbers: 1 } } }'
    with pytest.raises(TextError, match="Blend has no field 'shape'; did you mean 'share'"):
        g.from_text(wrong)


def test_several_parents_and_children_are_attached_at_once():
    a, b, c, d = (g.Identity(name=name) for name in "abcd")
    c.add_parent([a, b])
    assert (c.parents, a.children, b.children) == ([a, b], [c], [c])
    a.add_child((d, b))
    assert (a.children, d.parents, b.parents) == ([c, d, b], [a], [a])
    c.add_parent("by name")
    assert c.parents == [a, b, "by name"]
