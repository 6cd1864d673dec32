"""The table of layers: published counts, and what the command prints."""

import subprocess
import sys

import pytest

import descend
from descend import zoo
from descend.experiment.check import Checked
from descend.experiment.inspect.layer_table import layer_table
from descend.graph import Incoming, check


def checked(make, shape):
    y = make(descend.Input(data_field="x", name="x"))
    plan = check(descend.Model(1, objective_function=descend.Reduction(y, name="total")), {"x": shape})
    return Checked(plan, {})


# Billions of multiply-adds that torchvision publishes for its models of these names and images of 3 x 224 x 224.
@pytest.mark.parametrize(("kind", "billions"), [(zoo.ResNet18, 1.81), (zoo.ResNet34, 3.66), (zoo.ResNet50, 4.09)])
def test_multiply_adds_are_the_published_ones(kind, billions):
    lines = layer_table(checked(kind(1000), (3, 224, 224)), batch_size=2).splitlines()
    (line,) = [line for line in lines if "multiply-adds for the forward pass" in line]
    assert round(int(line.split()[0].replace(",", "")) / 1e9, 2) == billions


@pytest.mark.parametrize(
    ("layer", "shapes", "count"),
    [
        (descend.FullyConnected(num_neurons=3), [(2, 5)], 30),
        (descend.ChannelwiseFullyConnected(output_channel_dims=[3]), [(4, 5)], 60),
        (descend.Convolution(num_dims=1, out_channels=6, kernel_size=2, groups=2), [(4, 3)], 6 * 2 * 2 * 2),
        (descend.Deconvolution(num_dims=1, out_channels=6, kernel_size=2, groups=2), [(4, 3)], 12 * 3 * 2),
        (descend.MatMul(transpose_a=True), [(7, 5, 2), (7, 5, 3)], 7 * 2 * 3 * 5),
        (descend.GRU(hidden_size=3, num_layers=2), [(4, 5), (2, 3)], 4 * (9 * 5 + 9 * 3 + 9 * 3 + 9 * 3)),
        (descend.Relu(), [(9,)], 0),
    ],
    ids=repr,
)
def test_multiply_adds_of_one_layer(layer, shapes, count):
    output = layer.output_shape(tuple(Incoming("p", shape) for shape in shapes))
    assert layer.multiply_adds(tuple(shapes), output) == count


def test_a_line_says_what_a_layer_is_and_needs():
    lines = layer_table(checked(lambda x: descend.FullyConnected(x, num_neurons=3, name="fc"), (5,)), 10).splitlines()
    assert lines[0].split() == ["layer", "kind", "parents", "output", "trained", "multiply-adds", "bytes", "weights"]
    assert lines[2].split() == [
        "fc",
        "FullyConnected",
        "x",
        "3",
        "15",
        "15",
        "120",
        "fc_linearity_weights",
        "(3",
        "x",
        "5)",
    ]
    assert "360 bytes of outputs at a mini-batch of 10, and 120 of weights and gradients" in lines[-2] + lines[-3]


def test_parents_are_those_that_were_given_and_operators_have_their_names():
    def make(x):
        y = descend.Tanh(x, name="y")
        return descend.OperatorLayer(
            descend.Add(y, x, name="sum"), ops=[descend.ops.Exp(), descend.ops.Abs()], name="z"
        )

    rows = {line.split()[0]: line.split() for line in layer_table(checked(make, (5,))).splitlines()}
    assert rows["sum"][:4] == ["sum", "Add", "y,", "x"]
    assert rows["z"][:4] == ["z", "Exp", "Abs", "sum"]


WITHOUT_TORCH = """
import sys
from descend.__main__ import app
try:
    app(sys.argv[1:])
finally:
    assert "torch" not in sys.modules
"""


def test_the_command_prints_the_table_without_torch(tmp_path):
    file = tmp_path / "demo.prototext"
    parts = vars(zoo.demo_experiment("digits"))
    descend.save_prototext(file, **{name: parts[name] for name in ("trainer", "model", "data_reader", "optimizer")})
    command = [sys.executable, "-c", WITHOUT_TORCH, "show", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "multiply-adds for the forward pass of a sample" in done.stdout
    assert "at a mini-batch of 64" in done.stdout


def test_names_are_printed_without_escape_sequences():
    x = descend.Input(data_field="x", name="in\x1b[2J")
    y = descend.FullyConnected(
        x, num_neurons=2, has_bias=False, weights=[descend.Weights(name="w\n\u202e")], name="a\tb"
    )
    plan = check(descend.Model(objective_function=descend.L2Norm2(y, name="n")), {"x": (2,)})
    table = layer_table(Checked(plan, {}), batch_size=1)
    assert all(line.isprintable() for line in table.split("\n"))
    assert r"in\x1b[2J" in table
    assert r"w\n\u202e" in table
    assert r"a\tb" in table
