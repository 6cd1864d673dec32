"""What is true of every kind: it has a mirror in the text, and is lowered or refused with a reason."""

import pytest

import descend.graph as g
from descend.errors import GraphError
from descend.graph import kinds, text
from descend.graph.kinds import operator_layers
from descend.lower import module  # its families register their kinds
from descend.lower.registry import _LOWERINGS

LAYERS = {message: cls for message, cls in g.CLASSES.items() if message.startswith("Layer.")}
ONE_OPERATOR = [name for name in operator_layers.__all__ if name != "OperatorLayer"]
REFUSED = {"CategoricalRandom", "DiscreteRandom", "External", "Unpooling"}


def test_the_counts_are_those_of_the_reference():
    assert len(LAYERS) == 82
    assert len(ONE_OPERATOR) == 74
    assert len([name for name in g.ops.__all__ if name != "Operator"]) == 75
    assert {kind.__name__ for kind in LAYERS.values()} | set(ONE_OPERATOR) <= set(kinds.__all__)


@pytest.mark.parametrize("kind", LAYERS.values(), ids=lambda kind: kind.__name__)
def test_a_kind_is_lowered_or_refused_with_a_reason(kind):
    assert module.FAMILIES
    assert (kind in _LOWERINGS) != (kind.refusal is not None)
    assert (kind.__name__ in REFUSED) == (kind.refusal is not None)
    assert kind.__doc__


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_had_is_refused_by_name(name):
    x = g.Input(data_field="x")
    layer = getattr(g, name)(x, name="odd")
    with pytest.raises(GraphError, match=f"layer 'odd': kind {name} ") as caught:
        g.check(g.Model(1, objective_function=g.Reduction(layer)), {"x": (3,)})
    assert len(caught.value.problems) == 1


VALUES = {int: 3, float: 0.25, bool: True, str: "text"}


def filled(cls):
    """An object of a class with a value in every field."""
    types = cls.own_fields() if issubclass(cls, g.Layer) else g.fields.field_types(cls)
    return cls(**{name: value_of(kind) for name, kind in types.items()})


def value_of(kind):
    if issubclass(kind.base, g.ops.Operator):
        return tuple(filled(getattr(g.ops, name)) for name in g.ops.__all__ if name != "Operator")
    one = VALUES[kind.base] if kind.base in VALUES else list(kind.base)[-1]
    return (one, one) if kind.many else one


@pytest.mark.parametrize("name", [*(cls.__name__ for cls in LAYERS.values()), *ONE_OPERATOR])
@pytest.mark.parametrize("full", [False, True])
def test_text_and_binary_are_mirrors_of_every_kind(name, full):
    kind = getattr(g, name)
    layer = filled(kind) if full and name not in ONE_OPERATOR else kind()
    model = g.Model(1, layers=[layer], name="m")
    written = g.to_text(model)
    assert g.from_text(written) == model
    assert g.to_text(g.from_text(written)) == written
    binary = text.parse_binary(text.render_binary(model), message="Model")
    assert text.to_value(binary, g.CLASSES) == model


def test_processes_and_grids_change_nothing():
    """Sub-grids, layouts and strategies are accepted on one process."""
    x = g.Input(data_field="x", name="x", data_layout="model_parallel", grid_tag=0)
    strategy = {"height_groups": 2, "sample_groups": 2}
    y = g.FullyConnected(x, num_neurons=2, grid_tag=1, parallel_strategy=strategy, device="GPU", name="y")
    y = g.Cross_Grid_Sum(y, y, name="z")
    plan = g.check(g.Model(1, objective_function=g.L2Norm2(y)), {"x": (3,)})
    assert {layer.name: layer.output_shape for layer in plan.layers}["z"] == (2,)
