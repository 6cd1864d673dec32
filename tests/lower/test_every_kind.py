"""One table over all kinds of layers: NumPy's values, finite differences, and what holds for each whatever it computes.

A kind that is lowered and has no row fails `test_the_table_has_every_kind`; so does one whose fields no row sets.
"""

import hashlib
import math
from typing import NamedTuple

import numpy as np
import pytest
import torch

import descend
import descend.graph as g
from descend.errors import DataError
from descend.graph.kinds import integers
from descend.lower import module
from descend.lower.forward_context import ForwardContext
from descend.lower.registry import _LOWERINGS
from tests.lower import expressions as e
from tests.lower.single import Single, f64, random

TINY = math.sqrt(torch.finfo(torch.float64).tiny)


class Row(NamedTuple):
    """One layer, its inputs and its expression of (*inputs, *weights)."""

    kind: str
    fields: dict
    xs: tuple
    expression: object
    smooth: tuple = (0,)  # inputs with a gradient; the others have none
    samples: int = 2
    whole: bool = False  # works on the whole mini-batch
    evaluation: bool = False

    @property
    def layer(self):
        kind = getattr(descend, self.kind)
        return Single(lambda *s: kind(*s, name="layer", **self.fields), *(tuple(x.shape[1:]) for x in self.xs))

    def __repr__(self):
        shapes = " ".join("x".join(map(str, x.shape[1:])) for x in self.xs)
        return f"{self.kind} {self.fields} {shapes}"


def window(shape, out, size, **fields):
    return {"num_dims": len(shape) - 1, "out_channels": out, "kernel_size": size, **fields}


def convolutions():
    """Every dimension; strides, paddings and dilations that differ; windows that leave a rest; groups."""
    settings = [
        ((3, 7), 4, 3, {}),
        ((2, 9), 2, [4], {"stride": 3, "padding": 2, "dilation": 2}),
        ((4, 5), 6, 1, {"groups": 2, "has_bias": False}),
        ((2, 6, 5), 3, [3, 2], {"stride": [2, 1], "padding": [1, 0]}),
        ((4, 5, 7), 4, 3, {"stride": [1, 2], "padding": 2, "dilation": [2, 1], "groups": 4}),
        ((1, 1, 1), 2, 3, {"padding": 1}),
        ((2, 4, 3, 5), 2, [2, 1, 3], {"stride": [2, 1, 1], "padding": [0, 1, 1], "dilation": [1, 1, 2]}),
    ]
    for shape, out, size, fields in settings:
        own = {key: value for key, value in fields.items() if key not in ("has_bias", "num_dims")}
        yield Row(
            "Convolution",
            window(shape, out, size, **fields),
            (random(2, *shape),),
            lambda x, kernel, bias=None, own=own: e.convolution(x, kernel, bias, **own),
        )
    settings = [
        ((2, 4), 3, 3, {"stride": 2, "output_padding": 1}),
        ((4, 3), 6, 2, {"groups": 2, "has_bias": False}),
        ((2, 3, 2), 3, [3, 2], {"stride": [2, 3], "padding": [1, 0], "output_padding": [1, 2], "dilation": [2, 1]}),
        ((2, 2, 1, 3), 2, 2, {"stride": [1, 2, 1], "padding": [0, 0, 1]}),
    ]
    for shape, out, size, fields in settings:
        own = {
            ("extra" if key == "output_padding" else key): value for key, value in fields.items() if key != "has_bias"
        }
        yield Row(
            "Deconvolution",
            window(shape, out, size, **fields),
            (random(2, *shape),),
            lambda x, kernel, bias=None, own=own: e.deconvolution(x, kernel, bias, **own),
        )


def poolings():
    settings = [
        ((2, 7), 3, 2, 1, False),
        ((2, 5, 6), 2, 2, 0, False),
        ((1, 5, 4), (3, 2), (1, 3), (1, 0), True),
        ((3, 4, 4, 5), (2, 3, 2), (2, 1, 2), (0, 1, 1), True),
        ((2, 1, 1), 1, 1, 0, False),
        ((2, 5), 3, 2, 2, False),
        ((1, 1, 4), (4, 3), (1, 2), (3, 1), True),
        ((2, 1, 4, 1), (2, 2, 3), (1, 2, 1), (1, 1, 1), True),
    ]
    for mode in ("max", "average", "average_no_pad"):
        for shape, size, stride, padding, vectors in settings:
            end = "" if vectors else "_i"
            names = {"pool_dims" + end: size, "pool_strides" + end: stride, "pool_pads" + end: padding}
            yield Row(
                "Pooling",
                {"pool_mode": mode, "num_dims": len(shape) - 1, "has_vectors": vectors, **names},
                (random(2, *shape),),
                lambda x, a=(mode, size, stride, padding): e.pooling(x, *a),
            )


def weighted():
    x = random(2, 3, 2, 2)
    for bias in (False, True):
        for transpose in (False, True):
            turned = lambda w, t=transpose: w if t else w.T  # noqa: E731
            yield Row(
                "FullyConnected",
                {"num_neurons": 5, "has_bias": bias, "transpose": transpose},
                (x,),
                lambda x, w, b=0.0, t=turned: x.reshape(2, -1) @ t(w) + b,
            )
            yield Row(
                "ChannelwiseFullyConnected",
                {"output_channel_dims": [2, 5], "bias": bias, "transpose": transpose},
                (x,),
                lambda x, w, b=0.0, t=turned: (x.reshape(2, 3, -1) @ t(w) + b).reshape(2, 3, 2, 5),
            )
    yield Row(
        "ChannelwiseFullyConnected", {"output_channel_dims": 1}, (random(2, 1),), lambda x, w, b: x[..., None] @ w.T + b
    )
    for shape in ((3,), (3, 2), (1, 2, 2)):
        column = lambda w, i, shape=shape: w[:, i].reshape(-1, *(1,) * (len(shape) - 1))  # noqa: E731
        yield Row("ChannelwiseScaleBias", {}, (random(2, *shape),), lambda x, w, c=column: x * c(w, 0) + c(w, 1))
        yield Row(
            "EntrywiseScaleBias",
            {},
            (random(2, *shape),),
            lambda x, w, shape=shape: x * w[:, 0].reshape(shape) + w[:, 1].reshape(shape),
        )
    index = f64([0, 3.9, -1, 4, 1], [2, 2, -0.5, 1e9, 0])
    for padding in (None, 0, 2):
        yield Row(
            "Embedding",
            {"num_embeddings": 4, "embedding_dim": 3, "padding_idx": padding},
            (index,),
            lambda x, table, p=padding: e.looked_up(x, table, p),
            (),
        )
    yield Row("Embedding", {"num_embeddings": 4, "embedding_dim": 1}, (index.view(2, 5, 1),), e.looked_up, ())
    yield Row(
        "DistEmbedding",
        {"num_embeddings": 4, "embedding_dim": 3, "barrier_in_forward_prop": True},
        (index,),
        e.looked_up,
        (),
    )
    yield Row(
        "DistEmbedding",
        {"num_embeddings": 4, "embedding_dim": 3, "sparse_sgd": True, "learning_rate": 0.1},
        (index,),
        e.looked_up,
        (),
    )
    for layers, state in ((None, (1, 3)), (1, (3,)), (2, (2, 3))):
        yield Row(
            "GRU", {"hidden_size": 3, "num_layers": layers}, (random(2, 4, 2), random(2, *state, seed=1)), e.gru, (0, 1)
        )
    yield Row("GRU", {"hidden_size": 1}, (random(2, 1, 1), random(2, 1, 1, seed=1)), e.gru, (0, 1))
    yield Row("WeightsLayer", {"dims": [2, 3]}, (), lambda w: np.stack([w, w]), ())


def activations():
    x = random(2, 3, 2, low=-3, high=3)
    yield Row("Relu", {}, (x,), lambda x: np.maximum(x, 0))
    for slope in (0.0, 0.3):
        yield Row("LeakyRelu", {"negative_slope": slope}, (x,), lambda x, s=slope or 0.01: np.where(x > 0, x, s * x))
        yield Row("Elu", {"alpha": slope}, (x,), lambda x, a=slope or 1: np.where(x > 0, x, a * np.expm1(x)))
    for kind in ("Identity", "IdentityZero", "Dummy", "Split"):
        yield Row(kind, {}, (x,), lambda x: x)
    yield Row("Evaluation", {}, (random(2, 1),), lambda x: x)
    yield Row("StopGradient", {}, (x,), lambda x: x, ())
    yield Row("LogSoftmax", {}, (x,), lambda x: np.log(e.softmax(x, (1, 2))))
    for mode, axes in (("", (1, 2)), ("instance", (1, 2)), ("channel", (1,))):
        yield Row("Softmax", {"softmax_mode": mode}, (x,), lambda x, a=axes: e.softmax(x, a))
    yield Row("Softmax", {}, (random(2, 1),), np.ones_like)
    deep = random(2, 3, 2, 4)
    for dim, axes in ((0, (2, 3)), (-1, (1, 2)), (2, (1, 2)), (-3, (2, 3))):
        yield Row("ChannelwiseSoftmax", {"dim": dim}, (deep,), lambda x, a=axes: e.softmax(x, a))
    for dim in (0, 1, 2, -2):
        yield Row(
            "ChannelwiseSoftmax",
            {"dim": dim, "single_dim_mode": True},
            (deep,),
            lambda x, d=dim: e.softmax(x, (d % 3 + 1,)),
        )
    yield Row(
        "OperatorLayer",
        {"ops": [g.ops.Multiply(), g.ops.Tanh(), g.ops.Scale(constant=3)]},
        (x, random(2, 3, 2, seed=1)),
        lambda a, b: 3 * np.tanh(a * b),
        (0, 1),
    )


def one_number(x):
    return x.reshape(len(x), -1)


def losses():
    p, y = random(2, 3, 2, low=0.1, high=0.9), random(2, 3, 2, seed=1, low=0.1, high=0.9)
    yield Row("CrossEntropy", {}, (p, y), lambda p, y: -one_number(y * np.log(p)).sum(1, keepdims=True), (0, 1))
    label = f64([[0, 2], [1, 1]], [[2, 0], [0, 1]]).view(2, 1, 2, 2)
    classes = random(2, 3, 2, 2, low=0.1, high=0.9)
    yield Row(
        "CrossEntropy",
        {"use_labels": True},
        (classes, label),
        lambda p, y: (
            -np.array([[sum(np.log(p[n, int(y[n, 0, i, j]), i, j]) for i in (0, 1) for j in (0, 1))] for n in (0, 1)])
        ),
        (0,),
    )
    odd = f64([5], [1.7], [-1], [0])
    line = random(4, 3, low=0.1, high=0.9)
    picked = lambda p, y: -np.array([[0], [np.log(p[1, 1])], [0], [np.log(p[3, 0])]])  # noqa: E731
    yield Row("CrossEntropy", {"use_labels": True}, (line, odd), picked, (0,), samples=4)
    yield Row("MeanSquaredError", {}, (p, y), lambda p, y: one_number((p - y) ** 2).mean(1, keepdims=True), (0, 1))
    yield Row("MeanAbsoluteError", {}, (p, y), lambda p, y: one_number(abs(p - y)).mean(1, keepdims=True), (0, 1))
    yield Row("L2Norm2", {}, (p,), lambda x: one_number(x**2).sum(1, keepdims=True))
    yield Row("L1Norm", {}, (p,), lambda x: one_number(abs(x)).sum(1, keepdims=True))
    scores, labels = f64([1, 3, 3, 0], [2, 2, 2, 2], [0, 1, 2, 3]), f64([0, 0, 1, 0], [1, 0, 0, 0], [1, 0, 0, 0])
    same = lambda p, y: [[float(p[n].argmax() == y[n].argmax())] for n in range(3)]  # noqa: E731
    yield Row("CategoricalAccuracy", {}, (scores, labels), same, (), samples=3)
    for k in (1, 2, 3, 4):
        top = lambda p, y, k=k: [[float(y[n].argmax() in e.largest(p[n], k))] for n in range(3)]  # noqa: E731
        yield Row("TopKCategoricalAccuracy", {"k": k}, (scores, labels), top, (), samples=3)
        yield Row("InTopK", {"k": k}, (scores,), lambda x, k=k: e.in_top(x, k), (), samples=3)
    yield Row("InTopK", {"k": 3}, (random(2, 2, 3),), lambda x: e.in_top(x, 3), ())


def mathematics():
    a, b = random(2, 3, 4), random(2, 4, 5, seed=1)
    yield Row("MatMul", {}, (a, b), np.matmul, (0, 1))
    yield Row("MatMul", {"transpose_a": True}, (random(2, 4, 3), b), lambda a, b: a.swapaxes(1, 2) @ b, (0, 1))
    yield Row("MatMul", {"transpose_b": True}, (a, random(2, 5, 4)), lambda a, b: a @ b.swapaxes(1, 2), (0, 1))
    stack, other = random(2, 3, 2, 1), random(2, 3, 4, 2, seed=1)
    yield Row(
        "MatMul",
        {"transpose_a": True, "transpose_b": True},
        (stack, other),
        lambda a, b: a.swapaxes(2, 3) @ b.swapaxes(2, 3),
        (0, 1),
    )
    for shape in ((2, 5), (1, 3, 4), (2, 2, 3, 2), (2, 1)):
        yield Row("DFTAbs", {}, (random(2, *shape),), e.dft_abs)


def normalizations():
    for shape in ((3,), (3, 2), (2, 3, 2)):
        axes = (0, *range(2, len(shape) + 1))
        rest = (1,) * (len(shape) - 1)
        affine = lambda y, s, b, rest=rest: y * s.reshape(-1, *rest) + b.reshape(-1, *rest)  # noqa: E731
        for ddof, fields in ((1, {}), (0, {"no_bessel_correction": True, "epsilon": 0.1}), (1, {"epsilon": 0.01})):
            yield Row(
                "BatchNormalization",
                {**fields, "decay": 0.8},
                (random(4, *shape),),
                lambda x, s, b, *_, d=ddof, f=fields, a=axes, line=affine: line(
                    e.normalized(x, a, f.get("epsilon", 1e-5), d), s, b
                ),
                samples=4,
                whole=True,
            )
        yield Row(
            "BatchNormalization",
            {"statistics_group_size": -1},
            (random(4, *shape),),
            lambda x, s, b, m, v, line=affine: line(line(x, 1 / np.sqrt(v + 1e-5), -m / np.sqrt(v + 1e-5)), s, b),
            samples=4,
            evaluation=True,
        )
        yield Row(
            "EntrywiseBatchNormalization",
            {"decay": 0.9, "epsilon": 0.01},
            (random(4, *shape),),
            lambda x, *_: e.normalized(x, 0, 0.01),
            samples=4,
            whole=True,
        )
    for start in (0, 1, -1, -3):
        for scale, bias in ((False, False), (True, False), (False, True), (True, True)):
            fields = {"start_dim": start, "scale": scale, "bias": bias, "epsilon": 0.1 if scale else None}

            def layer_norm(x, *affine, f=fields):
                first = f["start_dim"] % 3 + 1
                y = e.normalized(x, tuple(range(first, 4)), f["epsilon"] or 1e-5)
                rest = list(affine)
                y = y * rest.pop(0) if f["scale"] else y
                return y + rest.pop(0) if f["bias"] else y

            yield Row("LayerNorm", fields, (random(2, 2, 3, 2),), layer_norm)
    for shape in ((2, 3), (2, 3, 2), (2, 1)):
        yield Row(
            "InstanceNorm",
            {"epsilon": 0.1},
            (random(2, *shape),),
            lambda x: e.normalized(x, tuple(range(2, x.ndim)), 0.1),
        )
    yield Row("InstanceNorm", {}, (random(2, 4),), np.zeros_like)
    for width in (1, 2, 3, 5, 9):
        fields = {"window_width": width, "lrn_alpha": 0.3, "lrn_beta": 0.75, "lrn_k": 2.0}
        for shape in ((4, 2, 3), (1, 2), (5,)):
            yield Row(
                "LocalResponseNormalization",
                fields,
                (random(2, *shape),),
                lambda x, w=width: e.local_response(x, w, 0.3, 0.75, 2.0),
            )


def reductions():
    x, y = random(2, 3, 2, 2), random(2, 3, 2, 2, seed=1)
    for mode, reduce in (("", np.sum), ("sum", np.sum), ("mean", np.mean), ("average", np.mean)):
        yield Row("Reduction", {"mode": mode}, (x,), lambda x, r=reduce: r(one_number(x), axis=1, keepdims=True))
    for mode, reduce in (("", np.sum), ("product", np.prod), ("max", np.max), ("min", np.min)):
        for axes in ((0,), (1, 2), (2, 0), (0, 1, 2)):
            yield Row(
                "MultiDimReduction",
                {"mode": mode, "axes": axes},
                (x,),
                lambda x, r=reduce, a=axes: r(x, axis=tuple(i + 1 for i in a)).reshape(
                    2, *([x.shape[i + 1] for i in range(3) if i not in a] or [1])
                ),
            )
    yield Row("BatchwiseReduceSum", {}, (x,), lambda x: np.broadcast_to(x.sum(0), x.shape), whole=True)
    yield Row("ChannelwiseMean", {}, (x,), lambda x: x.mean((2, 3)))
    yield Row("ChannelwiseMean", {}, (random(2, 4),), lambda x: x)
    for biased in (False, True):
        yield Row(
            "Variance",
            {"biased": biased},
            (x,),
            lambda x, b=biased: one_number(x).var(1, ddof=0 if b else 1, keepdims=True),
        )
        yield Row(
            "Covariance",
            {"biased": biased},
            (x, y),
            lambda x, y, b=biased: np.array([[np.cov(x[n].ravel(), y[n].ravel(), bias=b)[0, 1]] for n in (0, 1)]),
            (0, 1),
        )


def moves():
    x, y = random(2, 4, 3), random(2, 4, 3, seed=1)
    yield Row("Reshape", {"dims": [2, -1, 3]}, (x,), lambda x: x.reshape(2, 2, 2, 3))
    yield Row("Reshape", {"dims": [12]}, (x,), lambda x: x.reshape(2, 12))
    for axis in (0, 1):
        yield Row("Concatenation", {"axis": axis}, (x, y), lambda x, y, a=axis: np.concatenate([x, y], a + 1), (0, 1))
    yield Row("Concatenation", {}, (x, random(2, 1, 3)), lambda x, y: np.concatenate([x, y], 1), (0, 1))
    yield Row("Slice", {"slice_points": [1, 3]}, (x,), lambda x: x[:, 1:3])
    yield Row("Slice", {"axis": 1, "slice_points": [2, 3]}, (x,), lambda x: x[:, :, 2:3])
    for kind in ("Sum", "Cross_Grid_Sum", "Cross_Grid_Sum_Slice"):
        yield Row(kind, {}, (x, y, x), lambda x, y, z: x + y + z, (0, 1, 2))
        yield Row(kind, {}, (x,), lambda x: x)
    yield Row("WeightedSum", {"scaling_factors": [2, -0.5, 0]}, (x, y, x), lambda x, y, _: 2 * x - 0.5 * y, (0, 1, 2))
    yield Row("Hadamard", {}, (x, y, y), lambda x, y, z: x * y * z, (0, 1, 2))
    yield Row("TensorPermute", {"axes": [1, 0]}, (x,), lambda x: x.swapaxes(1, 2))
    yield Row("TensorPermute", {"axes": [2, 0, 1]}, (random(2, 2, 3, 4),), lambda x: x.transpose(0, 3, 1, 2))
    for dims in ((4, 3), (7, 2), (1, 8), (9, 9)):
        yield Row("Tessellate", {"dims": dims}, (x,), lambda x, d=dims: np.tile(x, (1, 3, 3))[:, : d[0], : d[1]])
    for shape, fields, factors in (
        ((2, 3), {"num_dims": 1, "scale_factors_i": 3}, (3,)),
        ((2, 3, 2), {"num_dims": 2, "has_vectors": True, "scale_factors": [3, 1]}, (3, 1)),
        ((1, 2, 1, 2), {"num_dims": 3, "scale_factors_i": 2}, (2, 2, 2)),
    ):
        yield Row(
            "Upsample",
            {"upsample_mode": "nearest", **fields},
            (random(2, *shape),),
            lambda x, f=factors: np.kron(x, np.ones((1, 1, *f))),
        )
    for descending in (False, True):
        yield Row(
            "Sort",
            {"descending": descending},
            (random(2, 5),),
            lambda x, d=descending: np.sort(x, 1)[:, ::-1] if d else np.sort(x, 1),
        )
    yield Row("Sort", {}, (random(2, 1),), lambda x: x)


def hashed(x):
    digests = [hashlib.md5(entry.tobytes()).digest() for entry in x.ravel()]
    return np.array([int.from_bytes(digest[:8], "little") / 2**64 for digest in digests]).reshape(x.shape)


def indices():
    ties = f64([1, 3, 3, 0], [2, 2, 2, 2], [-1, -1, -5, -5])
    yield Row("Argmax", {}, (ties,), lambda x: x.argmax(1)[:, None], (), samples=3)
    yield Row("Argmin", {}, (ties,), lambda x: x.argmin(1)[:, None], (), samples=3)
    number = f64([2.9], [-0.5], [4])
    hot = lambda x: [[float(math.floor(v) == i) for i in range(4)] for v in x[:, 0]]  # noqa: E731
    yield Row("OneHot", {"size": 4}, (number,), hot, (), samples=3)
    odd = f64([0, 2.5, -1, 3, 1], [1, 1, -0.1, 1e12, 2])
    yield Row("Gather", {}, (random(2, 3), odd), lambda x, i: e.picked(x, i, 1))
    for axis, shape in ((0, (3, 2)), (1, (2, 3))):
        yield Row("Gather", {"axis": axis}, (random(2, *shape), odd), lambda x, i, a=axis: e.picked(x, i, a + 1))
    yield Row("Scatter", {"dims": [3]}, (random(2, 5), odd), lambda x, i: e.placed(x, i, (3,), 1))
    for axis, shape, dims in ((0, (5, 2), (3, 2)), (1, (2, 5), (2, 4))):
        yield Row(
            "Scatter",
            {"axis": axis, "dims": dims},
            (random(2, *shape), odd),
            lambda x, i, a=axis, d=dims: e.placed(x, i, d, a + 1),
        )
    for dims in ((2, 3), (5, 1), (1, 4), (5, 4)):
        yield Row(
            "Crop", {"dims": dims}, (random(2, 5, 4), f64([0, 1], [0.5, 0.3])), lambda x, p, d=dims: e.cropped(x, p, d)
        )
    yield Row("Crop", {"dims": [2]}, (random(2, 7), f64([1], [0.999])), lambda x, p: e.cropped(x, p, (2,)))
    yield Row("UniformHash", {}, (random(2, 3, 2),), hashed, ())


def pictures():
    image, angle = random(2, 2, 4, 5), f64([30.0], [-200.0])
    yield Row("Rotation", {}, (image, angle), e.moved, ())
    numbers = f64([0.3, 0], [0.1, -0.2]), f64([1, 0.5], [-2, 0])
    yield Row("CompositeImageTransformation", {}, (image, angle, *numbers), e.moved, ())
    for height, width in ((4, 5), (7, 2), (1, 1)):
        yield Row(
            "BilinearResize",
            {"height": height, "width": width},
            (image,),
            lambda x, h=height, w=width: e.resized(x, h, w),
            (),
        )


def sources():
    yield Row("Constant", {"value": -2.5, "num_neurons": [2, 3]}, (), lambda: np.full((2, 2, 3), -2.5), ())
    yield Row("MiniBatchIndex", {}, (), lambda: np.array([[0.0], [1.0]]), (), whole=True)
    yield Row("MiniBatchSize", {}, (), lambda: np.full((2, 1), 2.0), (), whole=True)
    yield Row("Bernoulli", {"prob": 0.3, "neuron_dims": [2]}, (), lambda: np.zeros((2, 2)), (), evaluation=True)
    yield Row(
        "Gaussian",
        {"mean": 2, "stdev": 3, "neuron_dims": [2], "training_only": True},
        (),
        lambda: np.full((2, 2), 2.0),
        (),
        evaluation=True,
    )
    yield Row(
        "Uniform",
        {"min": 2, "max": 3, "neuron_dims": [2], "training_only": True},
        (),
        lambda: np.full((2, 2), 2.5),
        (),
        evaluation=True,
    )
    x = random(2, 3)
    yield Row("Dropout", {"keep_prob": 0.3}, (x,), lambda x: x, evaluation=True)
    yield Row("SeluDropout", {"keep_prob": 0.3, "alpha": 1.5, "scale": 2}, (x,), lambda x: x, evaluation=True)


TABLE = [
    row
    for family in (
        convolutions, poolings, weighted, activations, losses, mathematics, normalizations, reductions, moves, indices,
        pictures, sources,
    )
    for row in family()
]  # fmt: skip

# Kinds that draw numbers in training: their laws; kinds that need a graph around them.
RANDOM = ("Bernoulli", "Gaussian", "Uniform", "Dropout", "SeluDropout", "Cutout")
IN_A_GRAPH = ("Input", "RowwiseWeightsNorms")
OF_INTEGERS = tuple(integers.__all__)  # have tests of their own


def test_the_table_has_every_kind():
    assert module.FAMILIES
    lowered = {kind.__name__ for kind in _LOWERINGS}
    assert {row.kind for row in TABLE} | set(RANDOM) | set(IN_A_GRAPH) | set(OF_INTEGERS) == lowered
    assert len(lowered) == 82 - 4 + len(OF_INTEGERS)  # four are refused


# Fields that change nothing of what is computed, each with a test of its own that it is accepted or refused.
INERT = {
    ("Convolution", "conv_tensor_op_mode"),
    ("Deconvolution", "conv_tensor_op_mode"),
    ("BatchNormalization", "scale_init"),
    ("BatchNormalization", "bias_init"),
    ("BatchNormalization", "stats_aggregation"),
    ("Slice", "get_slice_points_from_reader"),
}


def test_some_row_sets_every_field():
    """A new field of a kind needs a row that sets it."""
    have = {(row.kind, name) for row in TABLE for name in row.fields}
    want = {
        (kind.__name__, name)
        for kind in _LOWERINGS
        if kind.__name__ not in (*IN_A_GRAPH, *OF_INTEGERS)
        for name in kind.own_fields()
    }
    assert want - have == INERT


def drawn(layer):
    """The layer with random weights, its variances positive."""
    with torch.no_grad():
        for i, (name, w) in enumerate(layer.weights.items()):
            w.copy_(random(*w.shape, seed=50 + i))
            if name.endswith("variance"):
                w.abs_().add_(0.5)
    return layer


def called(layer, row, xs, weights=None, samples=None, dtype=torch.float64):
    samples = samples or (len(xs[0]) if xs else row.samples)
    at = ForwardContext(not row.evaluation, 0, 0, samples, samples, dtype, torch.device("cpu"))
    given = (*xs, *(layer.weights.values() if weights is None else weights))
    return layer.forward(at, *given) if layer.with_pass else layer.forward(*given)


def numpy(tensors):
    return [x.detach().numpy().copy() for x in tensors]


@pytest.mark.parametrize("row", TABLE, ids=repr)
def test_values_are_those_of_numpy(row):
    layer = drawn(row.layer)
    want = row.expression(*numpy(row.xs), *numpy(layer.weights.values()))
    y = called(layer, row, [x.detach() for x in row.xs])
    assert y.dtype == torch.float64
    np.testing.assert_allclose(y.detach(), want, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("row", TABLE, ids=repr)
def test_gradients_are_finite_differences(row):
    """For every input that has one and for all weights; for the other inputs there is none."""
    layer = drawn(row.layer)
    trained = [name for name in layer.weights if layer.plan.weights[name].trainable]
    xs = [x.detach().clone().requires_grad_() for x in row.xs]
    weights = [layer.weights[name].detach().clone().requires_grad_() for name in trained]
    running = {name: w.detach().clone() for name, w in layer.weights.items() if name not in trained}

    def f(*tensors):
        inputs = list(xs)
        for i, x in zip(row.smooth, tensors, strict=False):
            inputs[i] = x
        own = dict(zip(trained, tensors[len(row.smooth) :], strict=True))
        given = [own[name] if name in own else running[name].clone() for name in layer.weights]
        return called(layer, row, inputs, given)

    tensors = [xs[i] for i in row.smooth] + weights
    if tensors:
        assert torch.autograd.gradcheck(f, tensors)
    y = f(*tensors)
    others = [x for i, x in enumerate(xs) if i not in row.smooth]
    if others and y.requires_grad:
        found = torch.autograd.grad(y.sum(), others, allow_unused=True)
        assert all(one is None or not one.any() for one in found)
    assert tensors or not y.requires_grad


@pytest.mark.parametrize("row", [row for row in TABLE if not row.whole], ids=repr)
def test_a_batch_of_one_is_a_sample_of_the_batch(row):
    layer = drawn(row.layer)
    whole = called(layer, row, [x.detach() for x in row.xs])
    for n in range(row.samples if not row.xs else len(row.xs[0])):
        one = called(layer, row, [x.detach()[n : n + 1] for x in row.xs], samples=1)
        torch.testing.assert_close(one[0], whole[n], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("row", [row for row in TABLE if row.xs], ids=repr)
def test_the_order_in_memory_does_not_matter(row):
    """Inputs whose last dimension does not lie together, as a permuted or sliced tensor's."""
    layer = drawn(row.layer)
    spread = [torch.stack([x.detach(), torch.full_like(x, torch.nan)], -1)[..., 0] for x in row.xs]
    assert not any(x.is_contiguous() for x in spread if x.numel() > 1)
    want = called(drawn(row.layer), row, [x.detach() for x in row.xs])
    torch.testing.assert_close(called(layer, row, spread), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("row", [row for row in TABLE if row.kind != "UniformHash"], ids=repr)  # it hashes bytes
def test_float32_is_the_same_to_rounding(row):
    layer = drawn(row.layer)
    small = [x.detach().float() for x in row.xs]
    want = called(drawn(row.layer), row, [x.double() for x in small])
    got = called(layer, row, small, [w.detach().float() for w in layer.weights.values()], dtype=torch.float32)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("row", [row for row in TABLE if row.xs and not row.whole], ids=repr)
def test_an_empty_part_of_a_batch_gives_nothing(row):
    """The share of a rank that has no samples left."""
    layer = drawn(row.layer)
    y = called(layer, row, [x.detach()[:0] for x in row.xs], samples=0)
    assert tuple(y.shape) == (0, *layer.shape)


@pytest.mark.parametrize("kind", RANDOM)
def test_random_kinds_follow_their_laws(kind):
    """Mean and variance over 40,000 numbers, to five standard errors; see each kind's own tests for the rest."""
    q, n = 0.3, 40_000
    shape = {"neuron_dims": [n]}
    alpha = -1.6732632423543772 * 1.0507009873554805
    x = torch.full((1, n), 2.0, dtype=torch.float64)
    a = (q + alpha**2 * q * (1 - q)) ** -0.5
    kept, dropped = a * 2 - a * (1 - q) * alpha, a * alpha - a * (1 - q) * alpha
    laws = {
        "Bernoulli": ({"prob": q, **shape}, (), q, q * (1 - q)),
        "Gaussian": ({"mean": 2, "stdev": 3, **shape}, (), 2, 9),
        "Uniform": ({"min": -1, "max": 5, **shape}, (), 2, 3),
        "Dropout": ({"keep_prob": q}, (x,), 2, 4 * (1 / q - 1)),
        "SeluDropout": ({"keep_prob": q}, (x,), q * kept + (1 - q) * dropped, q * (1 - q) * (kept - dropped) ** 2),
    }
    if kind == "Cutout":
        image = torch.ones(1, 1, 8, 8, dtype=torch.float64)
        layer = Single(lambda s, side: descend.Cutout(s, side), (1, 8, 8), (1,))
        holes = [int((layer(image, f64([3.0]), seed=seed) == 0).sum()) for seed in range(64)]
        assert set(holes) <= {4, 6, 9}
        assert holes.count(9) > holes.count(4)
        return
    fields, xs, mean, variance = laws[kind]
    y = Single(lambda *s: getattr(descend, kind)(*s, name="r", **fields), *((n,) for _ in xs))(*xs, samples=1)
    assert y.mean().item() == pytest.approx(mean, abs=5 * math.sqrt(variance / n))
    fourth = ((y - y.mean()) ** 4).mean().item()
    assert y.var().item() == pytest.approx(variance, abs=5 * math.sqrt((fourth + variance**2) / n))


def test_rows_of_weights_have_their_norms():
    x = descend.Input(data_field="x", name="x")
    w = descend.Weights(descend.ValueInitializer(values=[3, 0, 4, 0, 0, 0]), name="w")
    y = descend.FullyConnected(x, num_neurons=3, weights=[w], name="y")
    norms = descend.RowwiseWeightsNorms(weights=[w], name="norms")
    plan = g.check(descend.Model(1, layers=[y, norms], objective_function=descend.L2Norm2(norms)), {"x": (2,)})
    forward, _ = module.lowering(next(layer for layer in plan.layers if layer.name == "norms"))
    at = ForwardContext(True, 0, 0, 2, 2, torch.float64, torch.device("cpu"))
    matrix = f64([3, 0], [0, 0], [4, 1]).requires_grad_()
    found = forward(at, matrix)
    torch.testing.assert_close(found.detach(), f64([3, 0, 17**0.5], [3, 0, 17**0.5]))
    found.sum().backward()
    torch.testing.assert_close(matrix.grad, 2 * f64([1, 0], [0, 0], [4 / 17**0.5, 1 / 17**0.5]))


# The format's own numbers where a formula alone would give others.


def test_softmax_is_clipped_where_its_logarithm_would_not_be_finite():
    for dtype, mode in ((torch.float32, ""), (torch.float64, "channel")):
        layer = Single(lambda s, mode=mode: descend.Softmax(s, softmax_mode=mode), (3,))
        x = torch.tensor([[0.0, -2000.0, 1.0]], dtype=dtype, requires_grad=True)
        y = layer.forward(x)
        assert y[0, 1].item() == pytest.approx(math.sqrt(torch.finfo(dtype).tiny), rel=1e-6)
        y.log()[0, 1].backward()
        assert x.grad.isfinite().all()


def test_cross_entropy_leaves_out_what_has_no_weight():
    layer = Single(lambda p, y: descend.CrossEntropy(p, y), (3,), (3,))
    p, y = f64([0.0, 0.5, 0.0]).requires_grad_(), f64([0.0, 1.0, 0.0]).requires_grad_()
    loss = layer(p, y)
    loss.sum().backward()
    assert loss.item() == pytest.approx(math.log(2))
    assert p.grad.tolist() == [[0, -2, 0]]
    assert y.grad.isfinite().all()


def test_an_absolute_value_of_nothing_has_no_slope():
    for kind in (descend.MeanAbsoluteError, descend.L1Norm):
        xs = [f64([1.0, 0.0]).requires_grad_() for _ in range(2 if kind is descend.MeanAbsoluteError else 1)]
        Single(lambda *s, kind=kind: kind(*s), *((2,) for _ in xs))(*xs).sum().backward()
        assert xs[0].grad[0, 1] == 0


def test_relu_has_no_slope_at_zero():
    x = f64([0.0, -0.0]).requires_grad_()
    Single(lambda s: descend.Relu(s), (2,))(x).sum().backward()
    assert x.grad.tolist() == [[0, 0]]


def test_float32_extremes_stay_finite():
    big = torch.tensor([[1e12, -1e12, 0.0]])
    for make in (
        lambda s: descend.Softmax(s),
        lambda s: descend.LogSoftmax(s),
        lambda s: descend.Sigmoid(s),
        lambda s: descend.LogSigmoid(s),
        lambda s: descend.Softplus(s),
        lambda s: descend.Tanh(s),
        lambda s: descend.Elu(s),
        lambda s: descend.Selu(s),
        lambda s: descend.Gelu(s),
        lambda s: descend.Softsign(s),
        lambda s: descend.Erf(s),
        lambda s: descend.ChannelwiseSoftmax(s),
    ):
        x = big.clone().requires_grad_()
        y = Single(make, (3,)).forward(x)
        y.sum().backward()
        assert y.isfinite().all(), make
        assert x.grad.isfinite().all(), make


def test_a_place_outside_is_refused():
    layer = Single(lambda x, p: descend.Crop(x, p, dims=[2]), (5,), (1,))
    for place in (-0.01, 1.01, math.nan):
        with pytest.raises(DataError, match=r"a position is outside \[0, 1\]"):
            layer(random(1, 5), f64([place]))
