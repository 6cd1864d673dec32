"""Layers with matrices, kernels and tables, run by onnxruntime, against the modules that they are written from."""

import numpy as np
import pytest

import descend
from descend.onnx.graph_exporter import GraphExporter
from descend.onnx.linear import whole_indices
from tests.onnx.exported import agree, made, run, same, session_of

IMAGE = (4, 6, 5)


def test_products_and_scales():
    agree(
        [
            lambda x: descend.FullyConnected(x, num_neurons=3, transpose=True),
            lambda x: descend.FullyConnected(x, num_neurons=3, has_bias=True),
            lambda x: descend.ChannelwiseFullyConnected(x, output_channel_dims=[2, 3]),
            lambda x: descend.ChannelwiseScaleBias(x),
            lambda x: descend.EntrywiseScaleBias(x),
        ],
        IMAGE,
    )
    agree(lambda x: descend.ChannelwiseFullyConnected(x, output_channel_dims=3, transpose=True, bias=False), (4, 6))


def test_convolutions():
    window = {"kernel_size": [3, 2], "stride": [2, 1], "padding": [1, 0], "dilation": [1, 2], "groups": 2}
    wider = {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1, "groups": 2}
    agree(
        [
            lambda x: descend.Convolution(x, num_dims=2, out_channels=6, **window),
            lambda x: descend.Deconvolution(x, num_dims=2, out_channels=2, **wider),
        ],
        IMAGE,
    )
    agree(lambda x: descend.Convolution(x, num_dims=1, out_channels=2, kernel_size=3, has_bias=False), (4, 6))
    agree(lambda x: descend.Convolution(x, num_dims=3, out_channels=2, kernel_size=2), (2, 4, 4, 3))


def test_products_of_two_tensors():
    agree(lambda x, y: descend.MatMul(x, y, transpose_a=True, transpose_b=True), (2, 5, 3), (2, 4, 5))
    agree(lambda x, y: descend.MatMul(x, y), (5, 3), (3, 2))


def test_recurrent_layers_of_several_layers():
    agree(lambda x, h: descend.GRU(x, h, hidden_size=3, num_layers=2), (4, 5), (2, 3))


def test_indices_of_a_table_are_rounded_down_and_give_zeros_out_of_range():
    x = np.array([[[-1.0, 0.0, 0.9, 1.0], [2.0, 4.99, 5.0, np.nan]]], np.float32)
    same(lambda x: descend.Embedding(x, num_embeddings=5, embedding_dim=3, padding_idx=2), x[..., :3])
    _, model = made(lambda x: descend.Embedding(x, num_embeddings=5, embedding_dim=3), (2, 4))
    (got,) = run(session_of(model), x)
    assert (got == 0).all(-1).tolist() == [[[True, False, False, False], [False, False, True, True]]]
    np.testing.assert_array_equal(got[0, 0, 1], got[0, 0, 2])  # 0 and 0.9 are one row


@pytest.mark.parametrize("count", [1, 5])
def test_an_index_comes_with_whether_it_is_in_range(count):
    w = GraphExporter(["x"])
    index, valid = whole_indices(w, "x", count)
    kinds = {one.output[0]: one.op_type for one in w.nodes}
    assert (kinds[index], kinds[valid]) == ("Cast", "And")
