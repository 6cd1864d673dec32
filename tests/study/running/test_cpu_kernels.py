"""Other forms of operations against torch's own, in double precision."""

import pytest
import torch

from descend.study.running import cpu_kernels
from descend.study.running.cpu_kernels import decompositions

aten = torch.ops.aten
FASTER = decompositions(())


def draws(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


CONVOLUTIONS = {  # input, weight, stride, padding, dilation, groups
    "plain": ((4, 3, 8, 8), (5, 3, 3, 3), [1, 1], [1, 1], [1, 1], 1),
    "stride that leaves out a column": ((4, 3, 8, 9), (6, 3, 3, 2), [2, 3], [0, 1], [1, 1], 1),
    "dilation and groups": ((2, 6, 9, 9), (8, 3, 3, 3), [1, 2], [2, 1], [2, 3], 2),
    "one channel a group": ((2, 4, 5, 5), (4, 1, 3, 3), [1, 1], [1, 1], [1, 1], 4),
    "one dimension": ((3, 4, 11), (6, 2, 3), [2], [1], [1], 2),
    "three dimensions": ((2, 2, 4, 5, 6), (3, 2, 2, 3, 1), [1, 2, 1], [0, 1, 0], [1, 1, 2], 1),
}
MASKS = [[False, True, True], [False, True, False], [True, True, False], [True, True, True], [True, False, True]]


@pytest.mark.parametrize("most", [2**24, 0], ids=["by windows", "by torch"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradients_of_a_convolution(name, mask, most, monkeypatch):
    monkeypatch.setattr(cpu_kernels, "_MOST_UNFOLDED", most)
    shape, kernel, stride, padding, dilation, groups = CONVOLUTIONS[name]
    x, weight = draws(shape, kernel)
    rest = (stride, padding, dilation, False, [0] * len(stride), groups)
    (g,) = draws(aten.convolution(x, weight, None, *rest).shape)
    expected = aten.convolution_backward(g, x, weight, [len(weight)], *rest, mask)
    found = FASTER[aten.convolution_backward.default](g, x, weight, [len(weight)], *rest, mask)
    if mask[0] or not most:
        assert found is NotImplemented
        return
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("most", [2**24, 0], ids=["by windows", "by torch"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_few_channels(name, most, monkeypatch):
    monkeypatch.setattr(cpu_kernels, "_MOST_UNFOLDED", most)
    shape, kernel, stride, padding, dilation, groups = CONVOLUTIONS[name]
    x, weight = draws(shape, kernel)
    rest = (stride, padding, dilation, False, [0] * len(stride), groups)
    found = FASTER[aten.convolution.default](x, weight, None, *rest)
    if groups in (1, len(weight)) or not most:
        assert found is NotImplemented
    else:
        expected = aten.convolution(x, weight, None, *rest)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_convolutions_that_are_left_to_torch():
    x, weight, wide, bias = draws((2, 16, 5, 5), (16, 2, 3, 3), (16, 4, 3, 3), (16,))
    rest = ([1, 1], [1, 1], [1, 1], False, [0, 0])
    ours = FASTER[aten.convolution.default]
    assert ours(x, weight, None, *rest, 8) is not NotImplemented
    assert ours(x, wide, None, *rest, 4) is NotImplemented  # enough channels for torch's kernel
    assert ours(x, weight, bias, *rest, 8) is NotImplemented
    assert ours(x, weight, None, [1, 1], [1, 1], [1, 1], True, [0, 0], 8) is NotImplemented


POOLS = {  # kernel, stride, padding, dilation, whether a last part of a window counts
    "halves": ([2, 2],),
    "windows that overlap, with a margin": ([3, 2], [2, 1], [1, 1]),
    "dilation and a last part": ([2, 3], [3, 2], [0, 1], [2, 1], True),
}


@pytest.mark.parametrize("name", POOLS)
def test_largest_elements_of_windows(name):
    (x,) = draws((6, 8, 9, 7))
    x[0, 0], x[1, 1, 2, 3] = 0.0, torch.nan  # all are equal; not a number counts as the largest
    found = FASTER[aten.max_pool2d_with_indices.default](x, *POOLS[name])
    expected = aten.max_pool2d_with_indices(x, *POOLS[name])
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.is_contiguous()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def test_pools_that_are_left_to_torch():
    ours = FASTER[aten.max_pool2d_with_indices.default]
    x, few, single = draws((4, 8, 4, 4), (3, 5, 4, 4), (4, 8, 1, 1))
    assert ours(x, [2, 2]) is not NotImplemented
    for left in (x.contiguous(memory_format=torch.channels_last), x[0], few, single):
        assert ours(left, [1, 1]) is NotImplemented


@pytest.mark.parametrize(
    ("shape", "of_weights", "turned"),
    [
        ((3, 40, 20, 4), False, True),
        ((3, 4, 20, 40), True, False),
        ((3, 17, 20, 40), True, True),
        ((3, 40, 20, 17), True, False),
        ((3, 17, 20, 40), False, False),  # the gradient of weights, which is added to them
    ],
)
def test_products_of_stacks(shape, of_weights, turned):
    trials, rows, inner, columns = shape
    x, weights = draws((trials, rows, inner), (trials, columns, inner))
    found = decompositions([weights] if of_weights else [])[aten.bmm.default](x, weights.mT)
    assert (found is not NotImplemented) == turned
    if turned:
        torch.testing.assert_close(found, torch.einsum("tij,tkj->tik", x, weights), rtol=1e-12, atol=1e-12)


def test_log_softmax_and_its_gradient():
    (x,) = draws((3, 7, 5))
    x.requires_grad_()
    y = torch.log_softmax(x, 2)
    (g,) = draws(y.shape)
    y.backward(g)
    ours = torch.ops.aten._log_softmax.default, torch.ops.aten._log_softmax_backward_data.default
    with torch.no_grad():
        torch.testing.assert_close(FASTER[ours[0]](x, 2, False), y, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(FASTER[ours[1]](g, y, 2, x.dtype), x.grad, rtol=1e-12, atol=1e-12)


def test_the_class_of_the_largest_output_of_a_transposed_stack():
    (x,) = draws((3, 5, 7))
    assert torch.equal(FASTER[aten.argmax.default](x.mT, 2), x.mT.argmax(2))
    assert FASTER[aten.argmax.default](x, 2) is NotImplemented
