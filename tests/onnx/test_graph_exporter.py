"""A graph while it is written: names, constants, and the few shapes that every layer needs."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from descend.graph import Identity, Relu, SeluDropout
from descend.onnx.graph_exporter import OPSET, GraphExporter, exporter, exports


class Planned:
    """As much of a planned layer as choosing its function takes."""

    def __init__(self, layer):
        self.layer = layer


def writing():
    w = GraphExporter(["taken"])
    w.layer, w.batch = "fc1", "x"
    return w


def run(w, output, x):
    """What the nodes so far give for x, by ONNX's own reference."""
    graph = helper.make_graph(
        w.nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *x.shape[1:]])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        list(w.initializers.values()),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_operatorsetid("", OPSET)])
    return ReferenceEvaluator(model).run(None, {"x": x})[0]


X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 12


def test_nodes_are_named_by_layer_and_operator_and_no_name_comes_twice():
    w = writing()
    assert [w("Relu", "x"), w("Relu", "x")] == ["fc1/Relu", "fc1/Relu_2"]
    assert [w.fresh("taken"), w.fresh("taken"), w.fresh("new")] == ["taken_2", "taken_3", "new"]
    assert [one.name for one in w.nodes] == [one.output[0] for one in w.nodes]


def test_the_last_node_of_a_layer_has_its_name():
    w = writing()
    w("Relu", "x")
    last = w("Neg", "fc1/Relu")
    assert w.finish(last, begun=0) == "fc1"
    assert [(one.name, one.output[0]) for one in w.nodes] == [("fc1/Relu", "fc1/Relu"), ("fc1", "fc1")]


def test_a_layer_that_passes_on_its_input_is_an_identity_with_its_name():
    w = writing()
    before = w("Relu", "x")
    w.layer = "same"
    assert w.finish(before, begun=len(w.nodes)) == "same"
    assert [(one.op_type, one.name) for one in w.nodes] == [("Relu", "fc1/Relu"), ("Identity", "same")]


def test_equal_constants_are_one_and_others_are_not():
    w = writing()
    assert w.number(1) == w.number(1.0)
    assert w.ints(1, 2) == w.ints(1, 2)
    each = {
        w.number(1),
        w.number(2),
        w.ints(1),
        w.ints(1, 1),
        w.array(np.ones((1, 1), np.float32)),
        w.number(-0.0),
        w.number(0.0),
    }
    assert len(each) == len(w.initializers) - 1 == 7  # the other is ints(1, 2)


def test_shapes_count_the_samples_of_the_batch():
    w = writing()
    for made, want in [
        (w.reshaped("x", 4, 3), X.reshape(2, 4, 3)),
        (w.flat("x"), X.reshape(2, 12)),
        (w.per_sample(w.number(0.5), (3,)), np.full((2, 3), 0.5)),
        (w.numbers(w("Greater", "x", w.number(0))), (X > 0).astype(np.float32)),
        (w.samples(), [2]),
    ]:
        np.testing.assert_array_equal(run(w, made, X), want)


def test_weights_keep_names_and_values_whatever_their_strides():
    w = writing()
    w.weights({"kernel": X[0].T})
    np.testing.assert_array_equal(run(w, w("MatMul", "x", "kernel"), X), X @ X[0].T)


def test_a_kind_is_written_as_its_base_class_unless_it_has_a_function_of_its_own(monkeypatch):
    monkeypatch.setattr("descend.onnx.graph_exporter._WRITINGS", {})

    @exports(Relu)
    def relu(w, planned, x):
        return w("Relu", x)

    class Mine(Relu):
        pass

    assert exporter(Planned(Relu())) is relu
    assert exporter(Planned(Mine())) is relu
    assert exporter(Planned(Identity())) is None


@pytest.mark.parametrize("kind", [Identity, SeluDropout])
def test_what_does_nothing_in_evaluation_writes_no_node(kind):
    import descend.onnx.export  # noqa: F401  registers the families

    w = writing()
    assert exporter(Planned(kind()))(w, None, "x") == "x"
    assert not w.nodes
