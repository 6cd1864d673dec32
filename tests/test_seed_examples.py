"""The code examples of LBANN's documents, as they stand there, with `descend` under the name `lbann`.

Where a document lost words when it was copied, they are put back: the objective and the layers of the model, the text
that is merged, and the call of `run`. Callbacks have LBANN's prefix there, and readers are Protobuf messages.
"""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from google.protobuf import text_format

import descend
from descend.experiment.text import classes
from descend.graph import text
from descend.graph.text.schema import message_info

DIGITS = Path(descend.zoo.__file__).parent / "digits"


class Lbann:
    """The names that the examples use."""

    lbann_pb2 = SimpleNamespace(LbannPB=lambda: message_info("LbannPB").new())

    def __getattr__(self, name):
        return getattr(descend, name.removeprefix("Callback") or name)

    @staticmethod
    def run(trainer, model, reader, optimizer, **options):
        return descend.run(trainer, model, text.to_value(reader, classes()), optimizer, **options)


@pytest.fixture
def reader_file(tmp_path):
    """Digits as MNIST's files, and a reader of them as LBANN's model_zoo/data_readers has one."""
    for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        (tmp_path / kind).write_bytes(gzip.decompress((DIGITS / f"{kind}.gz").read_bytes()))
    roles = (("train", "true"), ("test", "false"))
    readers = "\n".join(
        f"""
        reader {{
          name: "mnist"
          role: "{role}"
          shuffle: {shuffle}
          data_filedir: "{tmp_path}/"
          data_filename: "images-idx3-ubyte"
          label_filename: "labels-idx1-ubyte"
          validation_fraction: {0.1 if role == "train" else 0}
          fraction_of_data_to_use: 1.0
          transforms {{ scale {{ scale: 0.0625 }} }}
        }}"""
        for role, shuffle in roles
    )
    path = tmp_path / "data_reader_mnist.prototext"
    path.write_text(f"data_reader {{ {readers} }}")
    return path


SIMPLE = """
# Input data
image = lbann.Input(data_field="samples")
label = lbann.Input(data_field="labels")

# Softmax classifier
y = lbann.FullyConnected(image, num_neurons = 10, has_bias = True)
pred = lbann.Softmax(y)

# Loss function and accuracy
loss = lbann.CrossEntropy([pred, label])
acc = lbann.CrossEntropy([pred, label])

# Setup trainer
mini_batch_size = 64
trainer = lbann.Trainer(mini_batch_size)

# Setup model
num_epochs = 5
model = lbann.Model(num_epochs,
                    layers=lbann.traverse_layer_graph([image, label]),
                    objective_function=loss,
                    metrics=[lbann.Metric(acc, name='accuracy', unit='%')],
                    callbacks=[lbann.CallbackPrint(), lbann.CallbackTimer()])

# Setup optimizer
opt = lbann.SGD(learn_rate=0.01, momentum=0.9)

# Load data reader from prototext
import google.protobuf.text_format
data_reader_proto = lbann.lbann_pb2.LbannPB()
with open(reader_file, 'r') as f:
    google.protobuf.text_format.Merge(f.read(), data_reader_proto)
data_reader_proto = data_reader_proto.data_reader

# Run experiment
status = lbann.run(trainer, model, data_reader_proto, opt, run_dir=run_dir)
"""


def played(code, **names):
    exec(compile(code, "example", "exec", dont_inherit=True), names)
    return names


def test_the_simple_example_runs_and_learns(reader_file, tmp_path, capsys):
    names = played(SIMPLE, lbann=Lbann(), reader_file=reader_file, run_dir=tmp_path / "run")
    rows = [row for row in names["status"].history if row["mode"] == "train"]
    assert len(rows) == 5
    assert rows[-1]["objective"] < 0.6 * rows[0]["objective"]
    out = capsys.readouterr().out
    assert "model0 (instance 0) training epoch 4 objective function : " in out
    assert "model0 (instance 0) test accuracy : " in out


def test_its_text_is_the_same_experiment(reader_file, tmp_path):
    """`save_prototext` writes what the prototext frontend reads, as one file or as three."""
    names = played(SIMPLE.partition("# Run experiment")[0], lbann=Lbann(), reader_file=reader_file)
    reader = text.to_value(names["data_reader_proto"], classes())
    whole = tmp_path / "experiment.prototext"
    descend.save_prototext(
        whole, trainer=names["trainer"], model=names["model"], data_reader=reader, optimizer=names["opt"]
    )
    loaded = descend.load(whole)
    assert loaded.model == names["model"]
    assert loaded.optimizer == names["opt"]
    parsed = text.parse(whole.read_text()).message
    parts = []
    for part in ("model", "optimizer", "data_reader", "trainer"):
        message = message_info("LbannPB").new()
        getattr(message, part).CopyFrom(getattr(parsed, part))
        (tmp_path / f"{part}.prototext").write_text(text.render(message))
        parts.append(tmp_path / f"{part}.prototext")
    assert descend.load(*parts) == loaded


def test_fields_are_keyword_arguments_and_zero_where_nothing_is_said():
    """ "Message fields are optional keyword arguments ... if one is not provided, it is logically zero"."""
    layer = descend.FullyConnected()
    assert (layer.num_neurons, layer.has_bias, layer.transpose) == (0, False, False)
    assert descend.Input().data_field == ""
    assert descend.SGD() == descend.SGD(learn_rate=0.0, momentum=0.0, nesterov=False)


def test_layers_are_inserted_where_the_intention_is_obvious():
    """ "If a layer expects one child but has multiple, a split layer is inserted ... dummy layers will be inserted"."""
    image = descend.Input(data_field="samples", name="image")
    a, b = descend.Relu(image, name="a"), descend.Relu(image, name="b")
    loss = descend.MeanSquaredError(a, b, name="loss")
    descend.Tanh(b, name="unused")
    plan = descend.graph.check(descend.Model(1, [image], objective_function=loss), {"samples": (4,)})
    inserted = {layer.name for layer in plan.layers if layer.inserted}
    assert inserted == {"image_split", "b_split", "unused_dummy", "loss_eval"}
    assert len(plan.notes) == 3


def test_ambiguous_outputs_are_refused():
    """ "This does not work if there is any ambiguity": a slice of three pieces with two children."""
    x = descend.Input(data_field="x", name="x")
    cut = descend.Slice(x, slice_points=[0, 1, 2, 3], name="cut")
    loss = descend.MeanSquaredError(descend.Identity(cut), descend.Identity(cut), name="loss")
    with pytest.raises(descend.errors.GraphError, match=r"'cut' .Slice. has slice_points for 3 pieces and 2 children"):
        descend.graph.check(descend.Model(1, objective_function=loss), {"x": (3,)})


def test_weights_have_the_defaults_of_the_documents():
    """Zeros without an initializer, the default rule without an optimizer, He normal where a layer makes them."""
    x = descend.Input(data_field="x", name="x")
    own = descend.Weights(name="own")
    y = descend.Convolution(x, num_dims=1, out_channels=2, kernel_size=3, has_bias=False, weights=[own])
    y = descend.Convolution(y, num_dims=1, out_channels=2, kernel_size=3, name="conv")
    plan = descend.graph.check(descend.Model(1, objective_function=descend.L2Norm2(y)), {"x": (1, 8)})
    assert plan.weights["own"].initializer == descend.ConstantInitializer(0.0)
    assert plan.weights["own"].optimizer is None
    assert plan.weights["conv_kernel"].initializer == descend.HeNormalInitializer()
    assert plan.weights["own"].shape == (2, 1, 3)


def test_modules_are_called_several_times_and_share_their_weights():
    """ "Once created, a Module is callable, taking a layer as input and returning a layer as output"."""
    code = """
x = lbann.Input(data_field="samples")
fc = lbann.modules.FullyConnectedModule(4, activation=lbann.Relu, name="shared", bias=True)
cell = lbann.modules.LSTMCell(4, name="cell")
y, state = cell(fc(x), [lbann.Constant(value=0, num_neurons=[4]), lbann.Constant(value=0, num_neurons="4")])
y, state = cell(fc(y), state)
net = lbann.models.LeNet(3)
conv = lbann.modules.Convolution2dModule(4, 3, stride=1, padding=1, activation=lbann.Relu, name="conv")
layers = list(lbann.traverse_layer_graph(y))
obj = lbann.ObjectiveFunction([lbann.LayerTerm(lbann.L2Norm2(y), scale=0.5), lbann.L2WeightRegularization(scale=1e-4)])
model = lbann.Model(epochs=3, layers=layers, objective_function=obj, metrics=[], callbacks=[lbann.CallbackPrint()])
"""
    names = played(code, lbann=Lbann())
    model = names["model"]
    assert sorted(weights.name for weights in model.weights) == [
        "cell_fc_bias",
        "cell_fc_matrix",
        "shared_bias",
        "shared_matrix",
    ]
    plan = descend.graph.check(model, {"samples": (4,)})
    assert len(plan.objective.terms) == len(plan.objective.l2) == 1


def test_readers_of_the_examples_are_texts_that_protobuf_itself_reads(reader_file):
    message = message_info("LbannPB").new()
    text_format.Merge(reader_file.read_text(), message)
    assert [one.role for one in message.data_reader.reader] == ["train", "test"]
    assert json.dumps(text.render(message))
