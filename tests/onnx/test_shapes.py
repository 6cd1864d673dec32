"""Layers that move, join, pool, pick and repeat, run by onnxruntime, against the modules that they are written from."""

import numpy as np

import descend
from tests.onnx.exported import agree, same

IMAGE, ROW = (4, 6, 5), (7,)


def test_entries_that_stay_move_and_are_repeated():
    agree(
        [
            lambda x: descend.Identity(x),
            lambda x: descend.StopGradient(x),
            lambda x: descend.IdentityZero(x, freeze=True),
            lambda x: descend.IdentityZero(x, freeze=False),
            lambda x: descend.SeluDropout(x, keep_prob=0.5),
            lambda x: descend.Dropout(x, keep_prob=0.5),
            lambda x: descend.Reshape(x, dims=[5, -1]),
            lambda x: descend.TensorPermute(x, axes=[2, 0, 1]),
            lambda x: descend.Tessellate(x, dims=[5, 6, 12]),
            lambda x: descend.Upsample(x, num_dims=2, upsample_mode="nearest", scale_factors_i=2),
            lambda x: descend.BilinearResize(x, height=9, width=4),
        ],
        IMAGE,
    )


def test_pooling():
    window = {"pool_dims_i": 3, "pool_strides_i": 2, "pool_pads_i": 1}
    agree(
        [
            lambda x, mode=mode: descend.Pooling(x, num_dims=2, pool_mode=mode, **window)
            for mode in ("max", "average", "average_no_pad")
        ],
        IMAGE,
    )


def test_tensors_that_come_together():
    agree(
        [
            lambda x, y: descend.Sum(x, y, x),
            lambda x, y: descend.Hadamard(x, y, x),
            lambda x, y: descend.WeightedSum(x, y, scaling_factors=[2, -0.5]),
            lambda x, y: descend.Concatenation(x, y, axis=1),
        ],
        IMAGE,
        IMAGE,
    )


def test_orders_and_places():
    agree(
        [
            lambda x: descend.Argmax(x),
            lambda x: descend.Argmin(x),
            lambda x: descend.Sort(x),
            lambda x: descend.Sort(x, descending=True),
        ],
        ROW,
    )


def test_indices_out_of_range_are_what_they_are_in_training():
    """Gather gives 0 for them, Scatter adds nothing, OneHot has no 1."""
    index = np.random.default_rng(0).uniform(-1.5, 7.0, (3, 9)).astype(np.float32)
    data, rows = index[:, :6] + 1, np.random.default_rng(1).normal(size=(3, 6, 3)).astype(np.float32)
    columns = rows.transpose(0, 2, 1).copy()
    same(lambda x: descend.OneHot(x, size=4), index[:, :1])
    same(lambda x: descend.OneHot(x, size=4), np.array([[-1.0], [0.0], [3.5], [4.0]], np.float32))
    same([lambda x, i: descend.Gather(x, i)], data, index)
    same([lambda x, i: descend.Gather(x, i, axis=0)], rows, index)
    same([lambda x, i: descend.Gather(x, i, axis=1)], columns, index)
    same([lambda x, i: descend.Scatter(x, i, dims=[5])], data, index[:, :6])
    same([lambda x, i: descend.Scatter(x, i, dims=[5, 3], axis=0)], rows, index[:, :6])
    same([lambda x, i: descend.Scatter(x, i, dims=[3, 5], axis=1)], columns, index[:, :6])


def test_pieces_of_several_children():
    def make(x):
        pieces = descend.Slice(x, axis=1, slice_points=[1, 2, 5], name="cut")
        first, second = descend.Identity(pieces, name="first"), descend.Identity(pieces, name="second")
        return descend.Concatenation(second, first, axis=1, name="y")

    agree(make, (2, 6))


def test_sums_over_a_grid_are_cut_into_a_piece_for_each_child():
    def make(kind):
        def net(x, y):
            whole = kind(x, y)
            first, second = descend.Identity(whole), descend.Square(whole)
            return descend.Concatenation(first, second, axis=0)

        return net

    agree([make(descend.Cross_Grid_Sum), make(descend.Cross_Grid_Sum_Slice)], (4, 3), (4, 3))
