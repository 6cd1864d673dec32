"""Shape inference: fields of readers, numbers of parents, layers behind a mistake, and weights that are borrowed."""

import pytest

import descend.graph as g
from descend.errors import GraphError
from descend.graph.checking.nodes import NodeGraph
from descend.graph.checking.problems import ProblemList
from descend.graph.checking.shapes import MAX_ENTRIES, ShapeInference
from descend.graph.checking.weight_table import WeightTable
from tests.graph.checked import of_text, problems, scalar


def inferred(*layers, fields=None):
    """Outputs by name, and the problems."""
    problems = ProblemList()
    graph, table = NodeGraph(layers, problems), WeightTable(problems)
    graph.add_layers(layers)
    placed = graph.placed()
    ShapeInference(fields or {"x": (3, 4)}, graph, table, problems).run(placed)
    return {node.layer.name: node.outputs for node in placed}, problems.found


def test_shapes_go_from_the_fields_through_inserted_layers():
    x = g.Input(data_field="x", name="x")
    a, b = g.Reshape(x, dims=[12], name="a"), g.FullyConnected(x, num_neurons=5, name="b")
    outputs, found = inferred(x, a, b, g.Concatenation(a, b, name="c"))
    assert found == []
    assert outputs == {
        "x": ((3, 4),),
        "x_split": ((3, 4), (3, 4)),
        "a": ((12,),),
        "b": ((5,),),
        "c": ((17,),),
        "c_dummy": ((17,),),
    }


def test_each_piece_has_its_own_shape():
    cut = g.Slice(g.Input(data_field="x", name="x"), axis=1, slice_points=[0, 1, 4], name="cut")
    outputs, _ = inferred(cut.parents[0], cut, g.Relu(cut, name="thin"), g.Relu(cut, name="wide"))
    assert outputs["cut"] == ((3, 1), (3, 3))
    assert (outputs["thin"], outputs["wide"]) == (((3, 1),), ((3, 3),))


@pytest.mark.parametrize(
    ("layer", "parents", "problem"),
    [
        (g.Relu, 0, "needs 1 parent and has none"),
        (g.Relu, 2, "needs 1 parent and has 2: 'x', 'x'"),
        (g.MatMul, 1, "needs 2 parents and has 1: 'x'"),
        (g.Sum, 0, "needs at least 1 parent and has none"),
        (g.MiniBatchSize, 1, "needs no parents and has 1: 'x'"),
    ],
)
def test_a_wrong_number_of_parents_is_counted(layer, parents, problem):
    x = g.Input(data_field="x", name="x")
    wrong = layer(*[x] * parents, name="y")
    outputs, found = inferred(x, wrong)
    assert found == [f"layer 'y' ({layer.__name__}) {problem}"]
    assert outputs["y"] is None


def test_a_field_that_no_reader_offers_is_named_with_the_nearest():
    _, found = inferred(g.Input(data_field="sample", name="x"), fields={"samples": (3,), "labels": (2,)})
    assert found == [
        "layer 'x' (Input) reads a field 'sample' that no reader offers; did you mean 'samples'? "
        "the fields are samples, labels"
    ]


@pytest.mark.parametrize(("entries", "fits"), [(MAX_ENTRIES, True), (MAX_ENTRIES + 1, False)])
def test_an_output_may_have_as_many_numbers_as_the_bound(entries, fits):
    _, found = inferred(g.Constant(num_neurons=[entries], name="big"))
    assert (found == []) is fits


def test_what_is_wrong_whatever_the_input_is_said_behind_a_mistake_too():
    """Whether 7 groups divide the channels depends on the input, which is not known; keep_prob does not."""
    lost = g.Relu("nowhere", name="lost")
    drop = g.Dropout(lost, keep_prob=2, name="drop")
    grouped = g.Convolution(drop, num_dims=1, out_channels=7, kernel_size=1, groups=7, name="grouped")
    _, found = inferred(lost, drop, grouped)
    assert [problem.split(" has ")[0] for problem in found] == ["layer 'drop' (Dropout)"]


def test_weights_that_a_later_layer_makes_are_borrowed_and_the_layers_behind_wait():
    own = g.Weights(name="w")
    norms = g.RowwiseWeightsNorms(weights=[own], name="norms")
    behind = g.Relu(norms, name="behind")
    x = g.Input(data_field="x", name="x")
    outputs, found = inferred(norms, behind, x, g.FullyConnected(x, num_neurons=5, weights=[own], name="fc"))
    assert found == []
    assert (outputs["norms"], outputs["behind"], outputs["behind_dummy"]) == (((5,),),) * 3


def test_an_objective_term_of_many_numbers_is_named_by_the_term_and_its_place():
    collected, x = ProblemList(), g.Input(data_field="x", name="x")
    graph, table = NodeGraph([x], collected), WeightTable(collected)
    graph.add_layers([x])
    graph.add_readers(g.Model(1, x, objective_function=g.LayerTerm(x, where="f:9:9")))
    ShapeInference({"x": (3,)}, graph, table, collected).run(graph.placed())
    assert collected.found == [
        "f:9:9: an objective term needs one number a sample, and 'x' gives 3: "
        "put a loss such as CrossEntropy or a Reduction behind it"
    ]


def test_fields_that_no_reader_offers():
    x = g.Input(name="x")
    assert (
        problems(g.Model(1, objective_function=scalar(x)), {})[0]
        == "layer 'x' (Input) has no data_field; the fields are none"
    )


def test_a_problem_is_not_repeated_by_the_layers_behind_it():
    x = g.Input(data_field="samples")
    for neurons in (0, 3, 3, 3, 3):
        x = g.FullyConnected(x, num_neurons=neurons)
    found = problems(g.Model(1, objective_function=scalar(x)))
    assert len(found) == 1


def test_fields_of_layers_behind_a_mistake_are_looked_at_and_their_inputs_are_not():
    """What depends on the input, as whether 3 groups divide its channels, waits until that is known."""
    source = """
layer { name: 'x' input { data_field: 'samples' } }
layer { name: 'a' parents: 'xx' relu {} }
layer { name: 'b' parents: 'a' dropout { keep_prob: 1.9 } }
layer { name: 'c' parents: 'b' pooling { num_dims: 2 pool_dims_i: 2 pool_strides_i: 1 pool_mode: 'maxx' } }
layer { name: 'd' parents: 'c' convolution { num_dims: 2 out_channels: 9 kernel_size: 3 groups { value: 3 } } }
layer { name: 'e' parents: 'd' slice { axis: 1 slice_points: [0, 5000, 9000] } }
layer { name: 'f' parents: 'e' identity {} }
layer { name: 'g' parents: 'e' concatenation { axis: 3 } }
layer { name: 'h' parents: 'f' parents: 'g' matmul {} }
layer { name: 'i' parents: 'h' fully_connected {} }
layer { name: 'j' parents: 'i' reshape { dims: [-1, -1] } }
"""
    found = [problem for problem in of_text(source) if "objective" not in problem]
    assert [problem.split(" (")[0].split("layer ")[1] for problem in found] == ["'a'", "'b'", "'c'", "'i'", "'j'"]
    assert "keep_prob 1.9" in found[1]
    assert "maxx" in found[2]
    assert "num_neurons" in found[3]


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (lambda x: g.Constant(value=1.0, num_neurons=(10**5, 10**5, 10**5), name="big"), "Constant"),
        (lambda x: g.Tessellate(g.Reshape(x, dims=(1, 4)), dims=(10**15, 4), name="big"), "Tessellate"),
    ],
)
def test_an_output_that_no_memory_holds_is_refused_from_its_numbers_alone(layer, kind):
    model = g.Model(layers=[layer(g.Input(data_field="x", name="x"))])
    with pytest.raises(
        GraphError, match=rf"layer 'big' \({kind}\) gives [\d,]+ numbers for each sample, more than any"
    ):
        g.check(model, {"x": (4,)})


def test_the_check_names_the_layer_whose_pieces_do_not_fit():
    x = g.Input(data_field="x")
    cut = g.Slice(x, slice_points=[0, 1, 2], name="cut")
    model = g.Model(1, objective_function=g.Reduction(cut))
    with pytest.raises(GraphError, match=r"layer 'cut' \(Slice\) has slice_points for 2 pieces and 1 child"):
        g.check(model, {"x": (4,)})


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda x, like: g.FullyConnected(x, hint_layer=like, name="l"), (2, 3)),
        (lambda x, like: g.FullyConnected(x, num_neurons=4, hint_layer=like, name="l"), (4,)),
        (lambda x, like: g.Reshape(g.Reshape(x, dims=[6]), hint_layer=like, name="l"), (2, 3)),
        (lambda x, like: g.Constant(value=1.0, hint_layer=like, name="l"), (2, 3)),
        (lambda x, like: g.Uniform(hint_layer=like, name="l"), (2, 3)),
        (lambda x, like: g.WeightsLayer(hint_layer=like, name="l"), (2, 3)),
        (lambda x, like: g.Tessellate(x, hint_layer=like, name="l"), (2, 3)),
        (lambda x, like: g.Relu(x, hint_layer=like, name="l"), (3, 2)),
    ],
    ids=lambda value: "",
)
def test_a_layer_without_dimensions_takes_those_of_its_hint(layer, shape):
    x, like = g.Input(data_field="x", name="x"), g.Input(data_field="like", name="like")
    made = layer(x, like)
    plan = g.check(g.Model(layers=[made, like]), {"x": (3, 2), "like": (2, 3)})
    assert next(one for one in plan.layers if one.name == "l").output_shape == shape


def test_a_hint_may_stand_behind_and_name_one_that_has_a_hint():
    x = g.Input(data_field="x", name="x")
    first, second = g.Constant(name="first"), g.Constant(name="second")
    first.hint_layer, second.hint_layer = second, x
    outputs, found = inferred(first, second, x)
    assert not found
    assert outputs["first"] == outputs["second"] == ((3, 4),)


def test_layers_that_hint_at_each_other_are_named():
    first, second = g.Constant(name="first"), g.Constant(name="second")
    first.hint_layer, second.hint_layer = second, first
    _, found = inferred(first, second)
    assert "layer 'first' (Constant) takes the dimensions of 'second', which is computed from it" in found


@pytest.mark.parametrize("asked", ["independent", "samples"])
def test_points_of_a_slice_are_where_a_reader_has_joined_arrays(asked):
    x = g.Input(data_field="samples", name="x")
    cut = g.Slice(x, get_slice_points_from_reader=asked, name="cut")
    pieces = [g.Relu(cut, name=f"piece{i}") for i in range(3)]
    model = g.Model(layers=pieces)
    plan = g.check(model, {"samples": (9,)}, {"samples": (2, 4, 3)})
    assert [one.output_shape for one in plan.layers if one.name.startswith("piece") and not one.inserted] == [
        (2,),
        (4,),
        (3,),
    ]
    with pytest.raises(GraphError, match="and no reader joins such a field: write slice_points"):
        g.check(model, {"samples": (9,)})
    cut.slice_points = (0, 1, 2, 3)
    with pytest.raises(GraphError, match="and slice_points as well: leave one out"):
        g.check(model, {"samples": (9,)}, {"samples": (2, 4, 3)})
