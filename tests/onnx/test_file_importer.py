"""ONNX files that others wrote, against what onnxruntime or the torch module computes."""

import math

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from system_needs import library
from torch import nn

import descend
from descend import zoo
from descend.errors import StorageError, Unsupported
from tests.onnx.files import FLOAT, agree, drawn, node, write

S = (3, 6, 4)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("ReduceSum", "x", "zero")],
        [node("Expand", "x", "more")],
        [node("Squeeze", "x", "zero")],
        [node("Concat", "x", "x", axis=0)],
        [node("Softmax", "x", axis=0)],
        [node("NonZero", "x")],
        [node("MaxPool", "x", kernel_shape=[2, 2], dilations=[2, 2])],
        [node("TopK", "x", "axis")],
        [node("CumSum", "x", "first")],
        [node("Einsum", "x", "x", equation="bijk,ajik->bijk")],
        [node("Pad", "x", "sample")],
        [node("Add", "x", "each_sample")],
    ],
    ids=lambda nodes: nodes[0].op_type,
)
def test_what_works_on_samples_or_has_no_layer_is_refused_by_name(tmp_path, nodes):
    constants = {
        "zero": np.array([0]),
        "more": np.array([1, 2, 3, 6, 4]),
        "axis": np.array([1]),
        "first": np.array(0),
        "sample": np.array([1, 0, 0, 0, 0, 0, 0, 0]),
        "each_sample": drawn(2, 3, 6, 4),
    }
    path = write(tmp_path / "m.onnx", nodes, {"x": S}, constants=constants)
    with pytest.raises(Unsupported, match=rf"node 'the_{nodes[0].op_type}' \({nodes[0].op_type}\) "):
        descend.onnx.load(path)


def branch(name, *nodes, constants=()):
    out = helper.make_tensor_value_info(nodes[-1].output[0], FLOAT, None)
    return helper.make_graph(
        nodes, name, [], [out], [numpy_helper.from_array(a, n) for n, a in dict(constants).items()]
    )


@pytest.mark.parametrize("condition", [True, False])
def test_of_a_choice_by_a_constant_the_branch_is_taken(tmp_path, condition):
    one = branch("one", node("MatMul", "x", "w", out="p"), node("Add", "p", "b", out="q"), constants={"b": drawn(3)})
    other = branch("other", node("Neg", "x", out="r"))
    choice = node("If", "is_it", out="chosen", then_branch=one, else_branch=other)
    constants = {"a": np.array(1), "c": np.array(1 if condition else 2), "w": drawn(3, 3, seed=1)}
    nodes = [node("Equal", "a", "c", out="is_it"), choice, node("Relu", "chosen")]
    model = agree(write(tmp_path / "m.onnx", nodes, {"x": (3,)}, constants=constants), drawn(2, 3))
    assert [type(layer).__name__ for layer in model.layers] == [
        "Input",
        "FullyConnected" if condition else "Negative",
        "Relu",
    ]


def test_choices_by_the_data_and_loops_are_refused_by_name(tmp_path):
    body = helper.make_graph(
        [node("Relu", "v", out="w"), node("Identity", "go", out="goes_on")],
        "body",
        [helper.make_tensor_value_info(name, kind, []) for name, kind in (("i", 7), ("go", 9), ("v", FLOAT))],
        [helper.make_tensor_value_info("goes_on", 9, []), helper.make_tensor_value_info("w", FLOAT, None)],
    )
    nodes = [
        node("Greater", "x", "zero", out="t"),
        node(
            "If",
            "t",
            out="a",
            then_branch=branch("one", node("Neg", "x", out="n")),
            else_branch=branch("other", node("Abs", "x", out="m")),
        ),
        node("Loop", "three", "yes", "x", body=body),
    ]
    constants = {"zero": np.float32(0), "three": np.array(3), "yes": np.array(True)}
    with pytest.raises(Unsupported) as caught:
        descend.onnx.load(write(tmp_path / "m.onnx", nodes, {"x": (1,)}, constants=constants))
    assert [problem.partition(": ")[2] for problem in caught.value.problems] == [
        "node 'the_If' (If) chooses between graphs by the data, and a model has the same layers for all",
        "node 'the_Loop' (Loop) repeats a graph of its own, and a model's layers are computed once: unroll it (torch "
        "writes an EmbeddingBag so: take an Embedding and the sum, mean or maximum of its vectors)",
    ]


def test_values_that_nothing_gives_are_named(tmp_path):
    path = write(tmp_path / "m.onnx", [node("Add", "x", "lost")], {"x": S}, outputs=("y", "z"))
    with pytest.raises(Unsupported) as caught:
        descend.onnx.load(path)
    assert [problem.partition(": ")[2] for problem in caught.value.problems] == [
        "node 'the_Add' (Add) takes 'lost', which nothing before it gives",
        "output 'z' is given by no node",
    ]


def test_all_that_cannot_be_had_is_found_in_one_pass(tmp_path):
    nodes = [
        node("NonZero", "x", out="a"),
        node("Relu", "a", out="b"),
        helper.make_node("Fancy", ["x"], ["c"], name="own", domain="com.example"),
        node("Det", "x", out="d"),
        node("Add", "b", "c"),
    ]
    path = write(tmp_path / "m.onnx", nodes, {"x": S})
    with pytest.raises(Unsupported) as caught:
        descend.onnx.load(path)
    assert [problem.partition(": ")[2].split(" has")[0] for problem in caught.value.problems] == [
        "node 'the_NonZero' (NonZero)",
        "node 'own' (Fancy)",
        "node 'the_Det' (Det)",
    ]


def test_sizes_that_the_file_leaves_open_are_asked_for(tmp_path):
    path = tmp_path / "m.onnx"
    write(path, [node("Relu", "x")], {"x": ("h", "w")})
    with pytest.raises(Unsupported, match=r"input 'x' is \(\?, \?, \?\), .* pass fields=\{'x': \(\.\.\.\)\}"):
        descend.onnx.load(path)
    model = descend.onnx.load(path, fields={"x": (4, 5)})
    x = torch.randn(2, 4, 5)
    assert torch.equal(model.to_torch()(x), x.relu())
    with pytest.raises(Unsupported, match="the file has no input 'xx'; did you mean 'x'"):
        descend.onnx.load(path, fields={"xx": (4, 5)})


def external(path, location):
    """A file whose only weight lies elsewhere."""
    write(path, [node("MatMul", "x", "w")], {"x": (2,)}, constants={"w": np.eye(2, dtype=np.float32)})
    model = onnx.load(path)
    tensor = model.graph.initializer[0]
    (path.parent / "inside.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    onnx.save(model, path)
    return path


def test_values_outside_the_file_are_read_from_its_folder_alone(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(np.eye(2, dtype=np.float32).tobytes())
    model = descend.onnx.load(external(folder / "m.onnx", "inside.bin"))
    x = torch.randn(3, 2)
    torch.testing.assert_close(model.to_torch()(x), x)
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    for location in ("../secret.bin", str(tmp_path / "secret.bin"), "link.bin", ""):
        with pytest.raises(StorageError, match=r"tensor 'w' would be read from '.*', outside the file's folder"):
            descend.onnx.load(external(folder / "m.onnx", location))
    with pytest.raises(StorageError, match="tensor 'w' cannot be read"):
        descend.onnx.load(external(folder / "m.onnx", "missing.bin"))


def test_files_that_are_none_are_refused(tmp_path):
    with pytest.raises(StorageError, match="is not a file"):
        descend.onnx.load(tmp_path / "none.onnx")
    (tmp_path / "m.onnx").write_bytes(b"\x00\x01 no protobuf")
    with pytest.raises(StorageError, match="no ONNX file"):
        descend.onnx.load(tmp_path / "m.onnx")


def test_a_few_bytes_cannot_ask_for_all_memory(tmp_path):
    nodes = [node("Expand", "c", "sizes", out="d"), node("Add", "x", "d")]
    constants = {"c": np.ones(1, np.float32), "sizes": np.array([10**6, 10**6])}
    with pytest.raises(Unsupported, match=r"node 'the_Expand' .* constant of more than 100,000,000 entries"):
        descend.onnx.load(write(tmp_path / "m.onnx", nodes, {"x": (1, 4)}, constants=constants))


class Attention(nn.Module):
    """Causal attention in two heads, written by hand; `joined` puts samples and heads in one dimension."""

    def __init__(self, joined):
        super().__init__()
        self.qkv, self.out, self.joined = nn.Linear(8, 24), nn.Linear(8, 8), joined

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = (part.view(n, t, 2, 4).transpose(1, 2) for part in self.qkv(x).split(8, 2))
        if self.joined:
            q, k, v = (part.reshape(n * 2, t, 4) for part in (q, k, v))
        mask = torch.full((t, t), -1e9).triu(1)
        share = (q @ k.transpose(-2, -1) / math.sqrt(4) + mask).softmax(-1)
        return self.out((share @ v).view(n, 2, t, 4).transpose(1, 2).reshape(n, t, 8))


class GPT(nn.Module):
    """A small transformer with a table that is its classifier too."""

    def __init__(self, joined):
        super().__init__()
        self.table, self.places = nn.Embedding(11, 8), nn.Parameter(torch.randn(5, 8))
        self.norm1, self.norm2, self.attention = nn.LayerNorm(8), nn.LayerNorm(8), Attention(joined)
        self.dense = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8))
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        x = self.table(tokens) + self.places
        x = x + self.attention(self.norm1(x))
        return self.head(x + self.dense(self.norm2(x)))


class Residual(nn.Module):
    """Two convolutions with batch norm, a shortcut and a classifier."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.an, self.bn, self.short = nn.BatchNorm2d(8), nn.BatchNorm2d(8), nn.Conv2d(3, 8, 1)
        self.out = nn.Linear(8, 5)

    def forward(self, x):
        y = torch.relu(self.bn(self.b(torch.relu(self.an(self.a(x))))) + self.short(x))
        return self.out(nn.functional.adaptive_avg_pool2d(y, 1).flatten(1))


class Recurrent(nn.Module):
    """Two layers of gated recurrent units, of which the outputs and the last states count."""

    def __init__(self):
        super().__init__()
        self.layers, self.out = nn.GRU(4, 6, num_layers=2, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        y, last = self.layers(x)
        return self.out(y.tanh()) + last[-1].sum(1).view(-1, 1, 1)


CONVOLUTIONS = nn.Sequential(
    nn.Conv2d(3, 8, 3, stride=2, padding=1),
    nn.LeakyReLU(0.1),
    nn.MaxPool2d(2),
    nn.Conv2d(8, 8, 3, groups=4),
    nn.SiLU(),
    nn.AvgPool2d(2, 1),
    nn.GroupNorm(2, 8),
    nn.Flatten(),
    nn.Linear(8 * 4 * 4, 7),
    nn.LogSoftmax(1),
)
NETWORKS = {
    "MLP": (nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.BatchNorm1d(20), nn.Linear(20, 3), nn.Softmax(1)), (10,)),
    "convolutions": (CONVOLUTIONS, (3, 28, 28)),
    "residual": (Residual(), (3, 16, 16)),
    "GPT": (GPT(joined=False), None),
    "GPT, heads joined": (GPT(joined=True), None),
    "GRU": (Recurrent(), (5, 4)),
    "torch's encoder": (nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2), (5, 8)),
}


@pytest.mark.slow
@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.filterwarnings("ignore")
def test_torch_modules_come_in_through_torchs_own_exporter(tmp_path, name, dynamo):
    if dynamo:
        library("onnxscript")
    module, shape = NETWORKS[name]
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(11, (2, 5), generator=draw) if shape is None else torch.randn(2, *shape, generator=draw)
    more = torch.cat([x, x.flip(0), x])
    module.eval()
    path = str(tmp_path / "net.onnx")
    free = (
        {"dynamic_shapes": ({0: torch.export.Dim("n", min=1, max=64)},)}
        if dynamo
        else {"dynamic_axes": {"x": {0: "n"}}}
    )
    torch.onnx.export(module, (x,), path, dynamo=dynamo, input_names=["x"], output_names=["y"], **free)
    loaded = descend.onnx.load(path)
    got = loaded.to_torch().eval()(more)
    torch.testing.assert_close(got, module(more), rtol=1e-5, atol=1e-5)


class LastState(nn.Module):
    """A network that goes both ways, of which the last cell states alone are taken."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 4, batch_first=True, bidirectional=True)

    def forward(self, x):
        return torch.cat([*self.lstm(x)[1][1]], -1)


class ClassToken(nn.Module):
    """Attention with a mask over a token of its own and what is given, with heads that are unbound from one product."""

    def __init__(self):
        super().__init__()
        self.token, self.qkv = nn.Parameter(torch.randn(1, 1, 8)), nn.Linear(8, 24)
        self.register_buffer("mask", torch.tensor([False, False, True, False, True, False]))

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        q, k, v = self.qkv(x).reshape(-1, 6, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1)).masked_fill(self.mask.expand(len(x), 1, 1, 6), -1e9).softmax(-1)
        return (weights @ v).transpose(1, 2).reshape(-1, 6, 8)[:, 0]


class Pairs(nn.Module):
    """Products of pairs of rows, picked by two lists of places."""

    def forward(self, x):
        return (x @ x.transpose(1, 2))[:, [1, 2, 4], [0, 0, 3]]


FIXED = {
    "torch's encoder": NETWORKS["torch's encoder"][0],
    "last state": LastState(),
    "class token": ClassToken(),
    "pairs": Pairs(),
}


@pytest.mark.slow
@pytest.mark.parametrize("samples", [1, 2, 5])
@pytest.mark.parametrize("name", FIXED)
@pytest.mark.filterwarnings("ignore")
def test_a_file_for_a_fixed_number_of_samples_takes_any(tmp_path, name, samples):
    """5 is also the length of a sequence, and 2 the number of heads and of directions."""
    module, shape = FIXED[name], (5, 8)
    draw = torch.Generator().manual_seed(0)
    x, path = torch.randn(samples, *shape, generator=draw), str(tmp_path / "net.onnx")
    torch.onnx.export(module.eval(), (x,), path, dynamo=False, input_names=["x"], output_names=["y"])
    more = torch.randn(3, *shape, generator=draw)
    got = descend.onnx.load(path).to_torch().eval()(more)
    torch.testing.assert_close(got, module(more), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("alike", [True, False])
def test_a_constant_for_a_fixed_number_of_samples_says_the_same_of_all(tmp_path, alike):
    constant = np.stack([drawn(3), drawn(3, seed=0 if alike else 1)])
    path = write(tmp_path / "m.onnx", [node("Add", "x", "c")], {"x": (3,)}, constants={"c": constant})
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(model, path)
    if alike:
        agree(path, drawn(2, 3, seed=2))
        return
    with pytest.raises(
        Unsupported, match=r"node 'the_Add' \(Add\) takes a constant that is another one for each sample"
    ):
        descend.onnx.load(path)


CLASSIFIERS = {
    "Gemm": [node("Flatten", "e", out="row"), node("Gemm", "row", "table", transB=1)],
    "MatMul": [node("Transpose", "table", out="t", perm=[1, 0]), node("MatMul", "e", "t")],
}


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_a_table_that_is_a_classifier_too_stays_one_parameter(tmp_path, classifier):
    nodes = [node("Gather", "table", "x", out="e"), *CLASSIFIERS[classifier]]
    path = tmp_path / "m.onnx"
    write(path, nodes, {"x": (1,)}, constants={"table": drawn(7, 3)})
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    onnx.save(model, path)
    loaded = agree(path, np.array([[0], [6], [2]]))
    assert [one.name for one in loaded.weights] == ["table"]
    module = loaded.to_torch()
    module(torch.tensor([[3]])).sum().backward()
    assert (module.table.grad != 0).all()  # as a classifier for every row, as a table for row 3 too


def test_out_and_in_again_gives_the_same_numbers_and_can_be_trained(tmp_path):
    x = descend.Input(data_field="samples", name="images")
    network = zoo.small_lenet(x)
    model = descend.Model(objective_function=descend.L2Norm2(network), name="net")
    fields = {"samples": (1, 8, 8)}
    path = descend.onnx.save(model, tmp_path / "net.onnx", fields=fields, outputs=network)
    again = descend.onnx.load(path)
    images = torch.rand(3, 1, 8, 8)
    want = model.to_torch(fields=fields, outputs=network)(images)
    torch.testing.assert_close(again.to_torch()(images), want, rtol=1e-6, atol=1e-7)
    assert {one.name for one in again.weights} == {
        one.name for one in descend.graph.check(model, fields).weights.values()
    }
    labels = descend.Input(data_field="labels", name="labels")
    (end,) = [layer for layer in again.layers if layer.name == "probabilities"]
    accuracy = descend.Metric(descend.CategoricalAccuracy(end, labels), name="accuracy")
    trained = descend.Model(1, objective_function=descend.CrossEntropy(end, labels), metrics=[accuracy])
    rule = descend.SGD(learn_rate=0.05, momentum=0.9)
    trainer = descend.Trainer(mini_batch_size=64, random_seed=1)
    result = descend.run(trainer, trained, descend.zoo.digits(), rule, run_dir=tmp_path / "run")
    assert result.history[-1]["accuracy"] > 0.5
    first = {one.name: one.initializer.array for one in again.weights}
    assert not np.allclose(first["conv1_kernel"], result.weights["conv1_kernel"])


def test_a_loaded_model_has_a_text_that_starts_alike(tmp_path):
    path = write(tmp_path / "m.onnx", [node("Gemm", "x", "w")], {"x": (2,)}, constants={"w": drawn(2, 3)})
    model = descend.onnx.load(path)
    again = descend.from_text(descend.to_text(model))
    x = torch.randn(4, 2)
    torch.testing.assert_close(again.to_torch(fields={"x": (2,)})(x), model.to_torch()(x), rtol=1e-6, atol=1e-7)


def test_a_node_that_cannot_be_had_is_named_with_its_torch_module(tmp_path):
    """As torch's exporter notes it; an EmbeddingBag is written as a list of bags."""
    bag = helper.make_node("SequenceEmpty", [], ["s"], name="n16")
    scope = ": app.Net/deep.tags: torch.nn.modules.sparse.EmbeddingBag/embedding_bag: aten.embedding_bag.padding_idx"
    bag.metadata_props.add(key="namespace", value=scope)
    outside = node("GridSample", "x", "x")
    outside.metadata_props.add(key="namespace", value=": app.Net/grid_sampler: aten.grid_sampler.default")
    with pytest.raises(Unsupported) as caught:
        descend.onnx.load(write(tmp_path / "m.onnx", [bag, outside], {"x": (1, 2, 2)}))
    assert [problem.partition(": ")[2] for problem in caught.value.problems] == [
        "node 'n16' (SequenceEmpty) of EmbeddingBag 'deep.tags' makes a list of tensors, which no layer gives (torch "
        "writes an EmbeddingBag so: take an Embedding and the sum, mean or maximum of its vectors)",
        "node 'the_GridSample' (GridSample) has no layer here: the operator is not known",
    ]
