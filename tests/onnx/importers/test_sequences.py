"""Recurrent nodes against onnxruntime."""

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

import descend
from descend.errors import Unsupported
from tests.onnx.files import agree, drawn, node, write

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
OUTPUTS = {"RNN": ["h", "last"], "GRU": ["h", "last"], "LSTM": ["h", "last", "cell"]}
# The samples to the front: (length, directions, samples, size) and (directions, samples, size).
BACK = {"h": [2, 0, 1, 3], "last": [1, 0, 2], "cell": [1, 0, 2]}


def recurrent(path, kind, wanted, *, ways=1, states=False, bias=True, lengths=False, length=5, **options):
    """A file of one node whose sequence has the samples first."""
    gates, own = GATES[kind] * 3, {"linear_before_reset": 1} if kind == "GRU" else {}
    constants = {"w": drawn(ways, gates, 4), "r": drawn(ways, gates, 3, seed=1)}
    inputs, sizes = ["t", "w", "r", "", "", "", ""], {"x": (length, 4)}
    nodes = [node("Transpose", "x", out="t", perm=[1, 0, 2])]
    if bias:
        constants["b"], inputs[3] = drawn(ways, 2 * gates, seed=2), "b"
    if lengths:
        constants["n"], inputs[4] = np.array([length, length], np.int32), "n"
    for place, name in enumerate(("s", "c")[: (2 if kind == "LSTM" else 1) * states], 5):
        nodes.append(node("Transpose", name, out=f"{name}_t", perm=[1, 0, 2]))
        inputs[place], sizes[name] = f"{name}_t", (ways, 3)
    while not inputs[-1]:
        inputs.pop()
    names = [name if name in wanted else "" for name in OUTPUTS[kind]]
    nodes.append(helper.make_node(kind, inputs, names, name="net", hidden_size=3, **own, **options))
    nodes += [node("Transpose", name, out=f"y_{name}", perm=BACK[name]) for name in wanted]
    return write(path / "m.onnx", nodes, sizes, [f"y_{name}" for name in wanted], constants), sizes


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize(("direction", "states"), [("forward", True), ("reverse", False), ("bidirectional", True)])
def test_every_direction_and_output(tmp_path, kind, direction, states):
    ways = 2 if direction == "bidirectional" else 1
    path, sizes = recurrent(tmp_path, kind, OUTPUTS[kind], ways=ways, states=states, direction=direction)
    agree(path, *(drawn(2, *shape, seed=i) for i, shape in enumerate(sizes.values())))


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("options", [{"bias": False}, {"lengths": True}, {"length": 1}])
def test_what_a_node_may_leave_out_or_say(tmp_path, kind, options):
    path, sizes = recurrent(tmp_path, kind, ["h"], **options)
    agree(path, drawn(2, *sizes["x"]))


@pytest.mark.parametrize(
    ("kind", "wanted"), [("LSTM", ["last"]), ("LSTM", ["cell"]), ("RNN", ["last"]), ("GRU", ["last"])]
)
def test_last_states_alone_make_no_layer_that_nothing_takes(tmp_path, kind, wanted):
    path, sizes = recurrent(tmp_path, kind, wanted)
    model = agree(path, drawn(2, *sizes["x"]))
    ends = [layer.name for layer in model.layers if not layer.children]
    assert ends == [f"y_{wanted[0]}"]


def test_a_plain_network_may_have_another_activation(tmp_path):
    path, sizes = recurrent(tmp_path, "RNN", ["h", "last"], ways=2, direction="bidirectional", activations=["Relu"] * 2)
    agree(path, drawn(2, *sizes["x"]))


def test_weights_are_shared_by_all_steps_and_trained(tmp_path):
    path, sizes = recurrent(tmp_path, "LSTM", ["h"], length=7)
    model = agree(path, drawn(2, *sizes["x"]))
    assert sorted(one.name for one in model.weights) == ["b_hh_bias", "b_ih_bias", "r_hh_matrix", "w_ih_matrix"]
    assert all(one.optimizer is None for one in model.weights)  # trained, with the default rule


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("GRU", {"activations": ["Relu", "Tanh"]}, "has the activations relu, tanh, and here there are sigmoid, tanh"),
        ("LSTM", {"activations": ["Sigmoid", "Tanh", "Relu"]}, "has the activations sigmoid, tanh, relu"),
        ("LSTM", {"clip": 1.0}, "clips its gates"),
        ("LSTM", {"input_forget": 1}, "clips its gates, or forgets what it takes in"),
        ("RNN", {"length": 2001}, "is written out step by step, has 2001 of them, and 2000 are allowed"),
    ],
)
def test_another_kind_is_refused_by_name(tmp_path, kind, options, message):
    path, _ = recurrent(tmp_path, kind, ["h"], **options)
    with pytest.raises(Unsupported, match=rf"node 'net' \({kind}\) {message}"):
        descend.onnx.load(path)


def test_a_reset_before_the_product_is_refused(tmp_path):
    constants = {"w": drawn(1, 9, 4), "r": drawn(1, 9, 3, seed=1)}
    nodes = [node("Transpose", "x", out="t", perm=[1, 0, 2]), node("GRU", "t", "w", "r", hidden_size=3)]
    path = write(tmp_path / "m.onnx", nodes, {"x": (5, 4)}, constants=constants)
    with pytest.raises(Unsupported, match=r"node 'the_GRU' \(GRU\) resets before the product with the state"):
        descend.onnx.load(path)


@pytest.mark.parametrize("options", [{}, {"layout": 1}, {"bias": False}, {"last": True}])
def test_a_gru_is_onnxs(tmp_path, options):
    options = dict(options)
    layout, last = options.get("layout", 0), options.get("last", False)
    constants = {"w": drawn(1, 9, 4), "r": drawn(1, 9, 3, seed=1), "b": drawn(1, 18, seed=2)}
    if options.get("bias") is False:
        del constants["b"]
    turned = [] if layout else [node("Transpose", "x", out="t", perm=[1, 0, 2])]
    outputs = ["", "g"] if last else ["g"]
    gates = ["w", "r", *(["b"] if "b" in constants else [])]
    one = helper.make_node(
        "GRU",
        ["x" if layout else "t", *gates],
        outputs,
        name="gru",
        hidden_size=3,
        linear_before_reset=1,
        layout=layout,
    )
    back = helper.make_node("Transpose", ["g"], ["y"], name="back", perm=[1, 0, 2] if last else [2, 0, 1, 3])
    path = write(
        tmp_path / "m.onnx",
        [*turned, one, back if not layout else node("Relu", "g")],
        {"x": (5, 4)},
        constants=constants,
    )
    if not layout:
        agree(path, drawn(2, 5, 4))
        return
    wanted = onnx.reference.ReferenceEvaluator(str(path)).run(None, {"x": drawn(2, 1, 4)})  # onnxruntime has none
    got = descend.onnx.load(path, fields={"x": (1, 4)}).to_torch()(torch.from_numpy(drawn(2, 1, 4)))
    np.testing.assert_allclose(got.detach().numpy(), wanted[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_gru_goes_out_and_comes_in_again(tmp_path, layers):
    x = descend.Input(data_field="x", name="x")
    start = descend.Reshape(descend.Input(data_field="h", name="h"), dims=[layers, 3])
    y = descend.GRU(x, start, hidden_size=3, num_layers=layers, name="y")
    model, fields = descend.Model(layers=[y]), {"x": (5, 4), "h": (3 * layers,)}
    path = descend.onnx.save(model, tmp_path / "net.onnx", fields=fields, outputs=y)
    given = [torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)) for shape in fields.values()]
    want = model.to_torch(fields=fields, outputs=y)(*given)
    loaded = descend.onnx.load(path)
    torch.testing.assert_close(loaded.to_torch()(*given), want, rtol=1e-5, atol=1e-6)
    kinds = [type(layer).__name__ for layer in loaded.layers]
    assert kinds.count("GRU") == layers
    assert all(one.optimizer is None for one in loaded.weights)  # trained, with the default rule
