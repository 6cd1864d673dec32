"""ONNX files against the modules that they are written from, run by onnxruntime."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import descend
from descend import zoo
from descend.errors import Unsupported
from descend.graph import check, kinds
from descend.lower import PlainModule
from descend.lower.onnx import OPSET, export
from descend.lower.onnx.graph_exporter import exporter
from descend.runtime import generator

ops = descend.ops


def made(make, *shapes, outputs=None):
    """The module in evaluation, with weights and running values drawn, and the ONNX model of the same."""
    inputs = [descend.Input(data_field=f"x{i}", name=f"p{i}") for i in range(len(shapes))]
    y = make(*inputs)
    model = descend.Model(0, layers=[y], name="net")
    plan = check(model, {f"x{i}": shape for i, shape in enumerate(shapes)})
    wanted = outputs or [y.name]
    module = PlainModule(plan, lambda name: generator(3, name), wanted).eval()
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, tensor in module.named_weights().items():
            if "variance" in name or "scale" in name:
                tensor.uniform_(0.5, 1.5, generator=draw)
            elif "mean" in name or "bias" in name:
                tensor.normal_(0, 0.1, generator=draw)
    weights = {name: tensor.detach().numpy() for name, tensor in module.named_weights().items()}
    return module, export(plan, wanted, weights)


def drawn(samples, shapes, low=-2.0, high=2.0, seed=0):
    draw = np.random.default_rng(seed)
    return [draw.uniform(low, high, (samples, *shape)).astype(np.float32) for shape in shapes]


def run(model, *xs):
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return session.run(None, {name: xs[int(name[1:])] for name in names})


def agree(make, *shapes, low=-2.0, high=2.0, tolerance=1e-5):
    module, model = made(make, *shapes)
    for samples in (1, 3):
        xs = drawn(samples, shapes, low, high)
        with torch.no_grad():
            want = module(*map(torch.from_numpy, xs)).numpy()
        (got,) = run(model, *xs)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * max(1.0, np.abs(want).max()))


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (lambda x: zoo.LeNet(10)(x), [(1, 28, 28)]),
        (lambda x: zoo.lenet(x), [(1, 28, 28)]),
        (lambda x: zoo.small_lenet(x), [(1, 8, 8)]),
        (lambda x: zoo.MLP([16, 8, 4], dropout=0.25)(x), [(12,)]),
        (lambda x: zoo.ResNet18(10, small_images=True, zero_init_residual=False)(x), [(3, 32, 32)]),
        pytest.param(lambda x: zoo.ResNet50(10, zero_init_residual=False)(x), [(3, 64, 64)], marks=pytest.mark.slow),
        pytest.param(lambda x: zoo.WideResNet50_2(10)(x), [(3, 64, 64)], marks=pytest.mark.slow),
        pytest.param(lambda x: zoo.AlexNet(10)(x), [(3, 224, 224)], marks=pytest.mark.slow),
        (lambda x: zoo.TransformerEncoderLayer(8, 2, 12)(zoo.PositionalEncoding(8)(x, 5)), [(5, 8)]),
        (lambda x, memory: zoo.TransformerDecoderLayer(8, 2, 12)(x, memory), [(5, 8), (4, 8)]),
        (lambda x: zoo.modules.LSTMCell(5)(x)[0], [(3,)]),
        (lambda x: zoo.modules.GRU(5)(x)[0], [(3,)]),
    ],
    ids=[
        "LeNet",
        "lenet",
        "small",
        "MLP",
        "ResNet18",
        "ResNet50",
        "Wide",
        "AlexNet",
        "encoder",
        "decoder",
        "LSTM",
        "GRU",
    ],
)
def test_the_zoo_is_what_onnxruntime_computes(make, shapes):
    agree(make, *shapes)


IMAGE, ROW = (4, 6, 5), (7,)


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (lambda x: descend.FullyConnected(x, num_neurons=3, transpose=True), [IMAGE]),
        (lambda x: descend.ChannelwiseFullyConnected(x, output_channel_dims=[2, 3]), [IMAGE]),
        (lambda x: descend.ChannelwiseFullyConnected(x, output_channel_dims=3, transpose=True, bias=False), [(4, 6)]),
        (lambda x: descend.ChannelwiseScaleBias(x), [IMAGE]),
        (lambda x: descend.EntrywiseScaleBias(x), [IMAGE]),
        (
            lambda x: descend.Convolution(
                x,
                num_dims=2,
                out_channels=6,
                kernel_size=[3, 2],
                stride=[2, 1],
                padding=[1, 0],
                dilation=[1, 2],
                groups=2,
            ),
            [IMAGE],
        ),
        (lambda x: descend.Convolution(x, num_dims=1, out_channels=2, kernel_size=3, has_bias=False), [(4, 6)]),
        (lambda x: descend.Convolution(x, num_dims=3, out_channels=2, kernel_size=2), [(2, 4, 4, 3)]),
        (
            lambda x: descend.Deconvolution(
                x, num_dims=2, out_channels=2, kernel_size=3, stride=2, padding=1, output_padding=1, groups=2
            ),
            [IMAGE],
        ),
        (lambda x: descend.BatchNormalization(x), [IMAGE]),
        (lambda x: descend.BatchNormalization(x), [ROW]),
        (lambda x: descend.EntrywiseBatchNormalization(x, epsilon=1e-3), [IMAGE]),
        (lambda x: descend.LayerNorm(x, start_dim=1, scale=True, bias=True), [IMAGE]),
        (lambda x: descend.LayerNorm(x), [IMAGE]),
        (lambda x: descend.InstanceNorm(x), [IMAGE]),
        (
            lambda x: descend.LocalResponseNormalization(x, window_width=3, lrn_alpha=0.1, lrn_beta=0.75, lrn_k=1),
            [IMAGE],
        ),
        (lambda x: descend.LocalResponseNormalization(x, window_width=2, lrn_alpha=0.1, lrn_beta=0.5, lrn_k=1), [ROW]),
        *[
            (
                lambda x, mode=mode: descend.Pooling(
                    x, num_dims=2, pool_mode=mode, pool_dims_i=3, pool_strides_i=2, pool_pads_i=1
                ),
                [IMAGE],
            )
            for mode in ("max", "average", "average_no_pad")
        ],
        (lambda x: descend.Softmax(x), [IMAGE]),
        (lambda x: descend.Softmax(x, softmax_mode="channel"), [IMAGE]),
        (lambda x: descend.LogSoftmax(x), [IMAGE]),
        (lambda x: descend.ChannelwiseSoftmax(x), [IMAGE]),
        (lambda x: descend.ChannelwiseSoftmax(x, dim=-1), [IMAGE]),
        (lambda x: descend.ChannelwiseSoftmax(x, dim=1, single_dim_mode=True), [IMAGE]),
        (lambda x: descend.Relu(x), [IMAGE]),
        (lambda x: descend.LeakyRelu(x, negative_slope=0.2), [IMAGE]),
        (lambda x: descend.Elu(x), [IMAGE]),
        (lambda x: descend.Identity(x), [IMAGE]),
        (lambda x: descend.StopGradient(x), [IMAGE]),
        (lambda x: descend.IdentityZero(x, freeze=True), [IMAGE]),
        (lambda x: descend.SeluDropout(x, keep_prob=0.5), [IMAGE]),
        (lambda x: descend.Reshape(x, dims=[5, -1]), [IMAGE]),
        (lambda x: descend.TensorPermute(x, axes=[2, 0, 1]), [IMAGE]),
        (lambda x: descend.Tessellate(x, dims=[5, 6, 12]), [IMAGE]),
        (lambda x: descend.Upsample(x, num_dims=2, upsample_mode="nearest", scale_factors_i=2), [IMAGE]),
        (lambda x: descend.BilinearResize(x, height=9, width=4), [IMAGE]),
        (lambda x, y: descend.Concatenation(x, y, axis=1), [IMAGE, (4, 2, 5)]),
        (lambda x, y: descend.Sum(x, y, x), [IMAGE, IMAGE]),
        (lambda x, y: descend.Hadamard(x, y, x), [IMAGE, IMAGE]),
        (lambda x, y: descend.WeightedSum(x, y, scaling_factors=[2, -0.5]), [IMAGE, IMAGE]),
        (lambda x, y: descend.MatMul(x, y, transpose_a=True, transpose_b=True), [(2, 5, 3), (2, 4, 5)]),
        (lambda x, y: descend.MatMul(x, y), [(5, 3), (3, 2)]),
        (lambda x: descend.Reduction(x, mode="mean"), [IMAGE]),
        *[
            (lambda x, mode=mode: descend.MultiDimReduction(x, mode=mode, axes=[0, 2]), [IMAGE])
            for mode in ("sum", "product", "max", "min")
        ],
        (lambda x: descend.MultiDimReduction(x, axes=[0, 1, 2]), [IMAGE]),
        (lambda x: descend.ChannelwiseMean(x), [IMAGE]),
        (lambda x: descend.Variance(x), [IMAGE]),
        (lambda x, y: descend.Covariance(x, y, biased=True), [IMAGE, IMAGE]),
        (lambda x: descend.BatchwiseReduceSum(x), [IMAGE]),
        (lambda x: descend.L1Norm(x), [IMAGE]),
        (lambda x: descend.L2Norm2(x), [IMAGE]),
        (lambda x, y: descend.MeanSquaredError(x, y), [IMAGE, IMAGE]),
        (lambda x, y: descend.MeanAbsoluteError(x, y), [IMAGE, IMAGE]),
        (lambda x, y: descend.CategoricalAccuracy(x, y), [ROW, ROW]),
        (lambda x: descend.Argmax(x), [ROW]),
        (lambda x: descend.Argmin(x), [ROW]),
        (lambda x: descend.Sort(x), [ROW]),
        (lambda x: descend.Sort(x, descending=True), [ROW]),
        (lambda x: descend.Sum(x, descend.Constant(value=1.5, num_neurons=[7])), [ROW]),
        (lambda x: descend.Sum(x, descend.Bernoulli(prob=0.5, neuron_dims=[7])), [ROW]),
        (lambda x: descend.Sum(x, descend.MiniBatchSize()), [(1,)]),
        (lambda x: descend.Sum(x, descend.MiniBatchIndex()), [(1,)]),
        (lambda x, h: descend.GRU(x, h, hidden_size=3, num_layers=2), [(4, 5), (2, 3)]),
    ],
)
def test_layers_are_what_onnxruntime_computes(make, shapes):
    agree(make, *shapes)


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (lambda x: descend.Embedding(x, num_embeddings=5, embedding_dim=3, padding_idx=2), [(2, 4)]),
        (lambda x: descend.OneHot(x, size=4), [(1,)]),
        (lambda x, i: descend.Gather(x, i), [(6,), (9,)]),
        (lambda x, i: descend.Gather(x, i, axis=0), [(6, 3), (9,)]),
        (lambda x, i: descend.Gather(x, i, axis=1), [(3, 6), (9,)]),
        (lambda x, i: descend.Scatter(x, i, dims=[5]), [(6,), (6,)]),
        (lambda x, i: descend.Scatter(x, i, dims=[5, 3], axis=0), [(6, 3), (6,)]),
        (lambda x, i: descend.Scatter(x, i, dims=[3, 5], axis=1), [(3, 6), (6,)]),
    ],
)
def test_indices_out_of_range_are_what_they_are_in_training(make, shapes):
    agree(make, *shapes, low=-1.5, high=7.0)


UNARY = [name for name in ops.__all__ if name != "Operator" and getattr(ops, name)().count_inputs() == 1]
BINARY = [name for name in ops.__all__ if name != "Operator" and getattr(ops, name)().count_inputs() == 2]
FIELDS = {"Clamp": {"min": -0.5, "max": 0.75}}
RANGES = {
    "Acosh": (1.1, 3.0),
    "Log": (0.1, 3.0),
    "Sqrt": (0.1, 3.0),
    "Rsqrt": (0.1, 3.0),
    "Log1p": (-0.5, 2.0),
    "Pow": (0.2, 2.0),
}
RANGES |= dict.fromkeys(("Acos", "Asin", "Atanh", "BinaryCrossEntropy", "SigmoidBinaryCrossEntropy"), (0.1, 0.9))


@pytest.mark.parametrize("name", [one for one in UNARY if one != "ErfInv"])
def test_operators_of_one_tensor(name):
    fields = FIELDS.get(
        name, {"constant": 0.75} if name.endswith("Constant") or name in ("Scale", "ConstantSubtract") else {}
    )
    low, high = RANGES.get(name, (-2.0, 2.0))
    agree(lambda x: descend.OperatorLayer(x, ops=[getattr(ops, name)(**fields)]), (3, 4), low=low, high=high)


@pytest.mark.parametrize("name", BINARY)
def test_operators_of_two_tensors(name):
    low, high = RANGES.get(name, (-2.0, 2.0))
    agree(lambda x, y: descend.OperatorLayer(x, y, ops=[getattr(ops, name)()]), (3, 4), (3, 4), low=low, high=high)


@pytest.mark.parametrize(("true", "false"), [(True, True), (False, True), (True, False), (False, False)])
def test_select_takes_constants_and_tensors(true, false):
    fields = {"constant_if_true": true, "constant_if_false": false, "value_if_true": 2.0, "value_if_false": -3.0}
    count = 1 + (not true) + (not false)

    def make(predicate, *branches):
        return descend.Select(descend.Round(predicate), *branches, value=1.0, **fields)

    agree(make, *[(3, 4)] * count)


def test_exact_cases_of_operators():
    """Zeros, ties and divisions by zero, which drawn numbers do not meet."""
    x = np.array([[0.0, 0.0, 1.0, 1.0, -1.0, 0.5]], np.float32)
    y = np.array([[0.0, 1.0, 0.0, 1.0, 0.0, 0.5]], np.float32)
    two = (
        "LogicalAnd",
        "LogicalOr",
        "LogicalXor",
        "SafeDivide",
        "Equal",
        "LessEqual",
        "GreaterEqual",
        "BooleanAccuracy",
    )
    for name in two:
        module, model = made(
            lambda a, b, name=name: descend.OperatorLayer(a, b, ops=[getattr(ops, name)()]), (6,), (6,)
        )
        want = module(torch.from_numpy(x), torch.from_numpy(y)).numpy()
        np.testing.assert_array_equal(run(model, x, y)[0], want, err_msg=name)
    for name in ("LogicalNot", "SafeReciprocal", "Sign", "Round"):
        module, model = made(lambda a, name=name: descend.OperatorLayer(a, ops=[getattr(ops, name)()]), (6,))
        np.testing.assert_array_equal(run(model, x)[0], module(torch.from_numpy(x)).numpy(), err_msg=name)


def test_cross_entropy_leaves_out_labels_of_zero():
    module, model = made(descend.CrossEntropy, (3,), (3,))
    p, t = np.array([[0.0, 0.25, 0.75]], np.float32), np.array([[0.0, 1.0, 0.0]], np.float32)
    np.testing.assert_allclose(run(model, p, t)[0], [[-np.log(0.25)]], rtol=1e-6)
    assert module(torch.from_numpy(p), torch.from_numpy(t)).isfinite().all()
    _, indexed = made(lambda a, b: descend.CrossEntropy(a, b, use_labels=True), (3,), (1,))
    np.testing.assert_allclose(run(indexed, p, np.array([[2.0]], np.float32))[0], [[-np.log(0.75)]], rtol=1e-6)


def test_pieces_of_several_children():
    def make(x):
        pieces = descend.Slice(x, axis=1, slice_points=[1, 2, 5], name="cut")
        first, second = descend.Identity(pieces, name="first"), descend.Identity(pieces, name="second")
        return descend.Concatenation(second, first, axis=1, name="y")

    agree(make, (2, 6))


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
    text = (Path(__file__).parents[3] / "docs" / "bridges.md").read_text()
    assert [name for name in WITHOUT if name not in text] == []
