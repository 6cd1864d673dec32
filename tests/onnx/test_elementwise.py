"""Activations, normalizations, reductions and losses, run by onnxruntime, against the modules they are written from."""

import numpy as np
import torch

import descend
from tests.onnx.exported import agree, made, run, session_of

IMAGE, ROW = (4, 6, 5), (7,)


def test_activations():
    agree(
        [
            lambda x: descend.Softmax(x),
            lambda x: descend.Softmax(x, softmax_mode="channel"),
            lambda x: descend.LogSoftmax(x),
            lambda x: descend.ChannelwiseSoftmax(x),
            lambda x: descend.ChannelwiseSoftmax(x, dim=-1),
            lambda x: descend.ChannelwiseSoftmax(x, dim=1, single_dim_mode=True),
            lambda x: descend.Relu(x),
            lambda x: descend.LeakyRelu(x, negative_slope=0.2),
            lambda x: descend.Elu(x),
            lambda x: descend.Elu(x, alpha=0.5),
        ],
        IMAGE,
    )
    agree([lambda x: descend.Softmax(x), lambda x: descend.LogSoftmax(x)], ROW)


def test_normalizations():
    local = {"lrn_alpha": 0.1, "lrn_k": 1}
    agree(
        [
            lambda x: descend.BatchNormalization(x),
            lambda x: descend.EntrywiseBatchNormalization(x, epsilon=1e-3),
            lambda x: descend.LayerNorm(x, start_dim=1, scale=True, bias=True),
            lambda x: descend.LayerNorm(x),
            lambda x: descend.InstanceNorm(x),
            lambda x: descend.LocalResponseNormalization(x, window_width=3, lrn_beta=0.75, **local),
        ],
        IMAGE,
    )
    even = {"window_width": 2, "lrn_beta": 0.5, **local}
    agree([lambda x: descend.BatchNormalization(x), lambda x: descend.LocalResponseNormalization(x, **even)], ROW)


def test_reductions():
    agree(
        [
            lambda x: descend.Reduction(x, mode="mean"),
            lambda x: descend.Reduction(x, mode="sum"),
            *(
                lambda x, mode=mode: descend.MultiDimReduction(x, mode=mode, axes=[0, 2])
                for mode in ("sum", "product", "max", "min")
            ),
            lambda x: descend.MultiDimReduction(x, axes=[0, 1, 2]),
            lambda x: descend.ChannelwiseMean(x),
            lambda x: descend.Variance(x),
            lambda x: descend.Variance(x, biased=True),
            lambda x: descend.BatchwiseReduceSum(x),
            lambda x: descend.L1Norm(x),
            lambda x: descend.L2Norm2(x),
        ],
        IMAGE,
    )


def test_losses_and_metrics_of_two_tensors():
    agree(
        [
            lambda x, y: descend.Covariance(x, y, biased=True),
            lambda x, y: descend.MeanSquaredError(x, y),
            lambda x, y: descend.MeanAbsoluteError(x, y),
        ],
        IMAGE,
        IMAGE,
    )
    agree(lambda x, y: descend.CategoricalAccuracy(x, y), ROW, ROW)


def test_an_exported_accuracy_counts_no_nan_as_a_hit():
    module, model = made(descend.CategoricalAccuracy, (3,), (3,))
    nan, inf = np.nan, np.inf
    p = [[0.1, 0.7, 0.2], [nan, 0.7, 0.2], [nan] * 3, [0.5, 0.5, 0], [0, 1, nan], [0, inf, -inf], [0, 1, 0], [-inf] * 3]
    t = [[0, 1, 0], [0, 1, 0], [1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [nan, 1, 0], [1, 0, 0]]
    fields = np.array(p, np.float32), np.array(t, np.float32)
    truth = [[1], [0], [0], [1], [0], [1], [0], [1]]
    np.testing.assert_array_equal(run(session_of(model), *fields)[0], truth)
    np.testing.assert_array_equal(module(*map(torch.from_numpy, fields)).detach().numpy(), truth)


def test_layers_without_parents():
    agree(
        [
            lambda x: descend.Sum(x, descend.Constant(value=1.5, num_neurons=[7])),
            lambda x: descend.Sum(x, descend.Bernoulli(prob=0.5, neuron_dims=[7])),
            lambda x: descend.Sum(x, descend.WeightsLayer(dims=[7])),
        ],
        ROW,
    )
    agree([lambda x: descend.Sum(x, descend.MiniBatchSize()), lambda x: descend.Sum(x, descend.MiniBatchIndex())], (1,))


def test_cross_entropy_leaves_out_labels_of_zero():
    module, model = made(descend.CrossEntropy, (3,), (3,))
    p, t = np.array([[0.0, 0.25, 0.75]], np.float32), np.array([[0.0, 1.0, 0.0]], np.float32)
    np.testing.assert_allclose(run(session_of(model), p, t)[0], [[-np.log(0.25)]], rtol=1e-6)
    assert module(torch.from_numpy(p), torch.from_numpy(t)).isfinite().all()
    _, indexed = made(lambda a, b: descend.CrossEntropy(a, b, use_labels=True), (3,), (1,))
    got = run(session_of(indexed), p, np.array([[2.0]], np.float32))[0]
    np.testing.assert_allclose(got, [[-np.log(0.75)]], rtol=1e-6)
