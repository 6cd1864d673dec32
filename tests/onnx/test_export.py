"""ONNX files of whole networks against the modules that they are written from, run by onnxruntime."""

from pathlib import Path

import pytest

import descend
from descend import modules, zoo
from descend.errors import Unsupported
from descend.graph import kinds
from descend.onnx.graph_exporter import OPSET, exporter
from tests.onnx.exported import agree, made

NETWORKS = {
    "LeNet": (lambda x: zoo.LeNet(10)(x), [(1, 28, 28)]),
    "small": (lambda x: zoo.small_lenet(x), [(1, 8, 8)]),
    "MLP": (lambda x: zoo.MLP([16, 8, 4], dropout=0.25)(x), [(12,)]),
    "encoder": (lambda x: zoo.TransformerEncoderLayer(8, 2, 12)(zoo.PositionalEncoding(8)(x, 5)), [(5, 8)]),
    "decoder": (lambda x, memory: zoo.TransformerDecoderLayer(8, 2, 12)(x, memory), [(5, 8), (4, 8)]),
    "LSTM": (lambda x: modules.LSTMCell(5)(x)[0], [(3,)]),
    "GRU": (lambda x: modules.GRU(5)(x)[0], [(3,)]),
}
LARGE = {
    "lenet": (lambda x: zoo.lenet(x), [(1, 28, 28)]),
    "ResNet18": (lambda x: zoo.ResNet18(10, small_images=True, zero_init_residual=False)(x), [(3, 32, 32)]),
    "ResNet50": (lambda x: zoo.ResNet50(10, zero_init_residual=False)(x), [(3, 64, 64)]),
    "Wide": (lambda x: zoo.WideResNet50_2(10)(x), [(3, 64, 64)]),
    "AlexNet": (lambda x: zoo.AlexNet(10)(x), [(3, 224, 224)]),
}


@pytest.mark.parametrize("name", [*NETWORKS, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)])
def test_the_zoo_is_what_onnxruntime_computes(name):
    make, shapes = (NETWORKS | LARGE)[name]
    agree(make, *shapes)


def test_names_are_those_of_layers_fields_and_weights():
    module, model = made(lambda x: zoo.MLP([5, 2], name="net")(x), (3,))
    assert {node.name for node in model.graph.node} >= {"net_fc1", "net_fc1_activation", "net_fc2"}
    assert [one.name for one in model.graph.output] == ["net_fc2"]
    assert [one.name for one in model.graph.input] == ["x0"]
    assert {one.name for one in model.graph.initializer} >= set(module.named_weights())
    assert [(one.domain, one.version) for one in model.opset_import] == [("", OPSET)]
    sizes = model.graph.input[0].type.tensor_type.shape.dim
    assert (sizes[0].dim_param, sizes[1].dim_value) == ("samples", 3)


def test_layers_without_a_form_in_onnx_are_all_named():
    def make(x):
        x = descend.ErfInv(x, name="inverse")
        return descend.DFTAbs(descend.UniformHash(x, name="hash"), name="fourier")

    with pytest.raises(Unsupported) as caught:
        made(make, (2, 4))
    assert [problem.split(" has ")[0] for problem in caught.value.problems[:3]] == [
        "layer 'hash': UniformHash",
        "layer 'fourier': DFTAbs",
        "layer 'inverse': operator ErfInv",
    ]


def test_what_the_outputs_do_not_need_is_left_out():
    def make(x, label):
        return descend.CrossEntropy(descend.Softmax(x, name="p"), label, name="loss")

    _, model = made(make, (3,), (3,), outputs=["p"])
    assert [one.name for one in model.graph.input] == ["x0"]
    assert "loss" not in {node.name for node in model.graph.node}


# Random numbers in evaluation, hashes, transforms and moving images have no form in ONNX, or none that is exact.
WITHOUT = {"Gaussian", "Uniform", "UniformHash", "DFTAbs", "Rotation", "CompositeImageTransformation", "Cutout", "Crop"}
WITHOUT |= {"InTopK", "TopKCategoricalAccuracy"}


def test_kinds_without_a_form_are_those_of_the_documents():
    class Planned:
        def __init__(self, layer):
            self.layer = layer

    each = [getattr(kinds, name) for name in kinds.__all__]
    layers = [kind for kind in each if issubclass(kind, descend.Layer) and kind.refusal is None]
    assert {kind.__name__ for kind in layers if exporter(Planned(kind())) is None} >= WITHOUT
    text = (Path(__file__).parents[2] / "docs" / "bridges.md").read_text()
    assert [name for name in WITHOUT if name not in text] == []
