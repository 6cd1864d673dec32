"""Batch norm over groups that span ranks, which are threads: against torch's batch norm of each whole group."""

import pytest
import torch
from thread_ranks import on_ranks
from torch.nn import functional

from descend.runtime import Communicator
from descend.train.patches.sync_batch_norm import GroupRows, normalize

EPS = 1e-3
WEIGHT = torch.tensor([1.5, -0.5], dtype=torch.float64)
BIAS = torch.tensor([0.25, 3.0], dtype=torch.float64)

# Rows of each group on each rank.
ROWS = {
    "groups of one rank each": [(3, 0), (0, 4)],
    "a group over both": [(2, 3), (4, 1)],
    "three ranks, one without samples": [(2, 0), (0, 0), (1, 5)],
}


def inputs(rows, space):
    draw = torch.Generator().manual_seed(len(rows))
    of_rank = [torch.randn(sum(sizes), 2, *space, generator=draw, dtype=torch.float64) * 3 + 7 for sizes in rows]
    seeds = [torch.randn(x.shape, generator=draw, dtype=torch.float64) for x in of_rank]
    return of_rank, seeds


def reference(rows, of_rank, seeds, weight, bias):
    """Output, gradients and moments by torch, one group after the other, put back into the places of the ranks."""
    xs = [x.clone().requires_grad_() for x in of_rank]
    w, b = (None if p is None else p.clone().requires_grad_() for p in (weight, bias))
    parts = [list(x.split(list(sizes))) for x, sizes in zip(xs, rows, strict=True)]
    moments = []
    for group in range(len(rows[0])):
        whole = torch.cat([of[group] for of in parts])
        columns = whole.detach().movedim(1, -1).reshape(-1, 2)
        moments.append((len(columns), columns.mean(0), columns.var(0, unbiased=False)))
        y = functional.batch_norm(whole, None, None, w, b, training=True, eps=EPS)
        for of, piece in zip(parts, y.split([sizes[group] for sizes in rows]), strict=True):
            of[group] = piece
    ys = [torch.cat(of) for of in parts]
    torch.autograd.backward(ys, seeds)
    return [y.detach() for y in ys], [x.grad for x in xs], w, b, moments


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize(("weight", "bias", "space"), [(WEIGHT, BIAS, ()), (None, None, (3,)), (WEIGHT, None, (2, 2))])
def test_output_moments_and_gradients_are_those_of_whole_groups(rows, weight, bias, space):
    of_rank, seeds = inputs(rows, space)
    ys, grads, w, b, moments = reference(rows, of_rank, seeds, weight, bias)

    def act(communicator):
        x = of_rank[communicator.rank].clone().requires_grad_()
        own = [None if p is None else p.clone().requires_grad_() for p in (weight, bias)]
        y, found = normalize(x, *own, EPS, GroupRows(rows[communicator.rank], True), communicator)
        y.backward(seeds[communicator.rank])
        return y.detach(), x.grad, [None if p is None else p.grad for p in own], found

    found = on_ranks(len(rows), act)
    for (y, grad, _, of_all), y_expected, grad_expected in zip(found, ys, grads, strict=True):
        torch.testing.assert_close(y, y_expected)
        torch.testing.assert_close(grad, grad_expected)
        for i, (n, mean, variance) in enumerate(moments):
            assert of_all.values[i] == n
            torch.testing.assert_close(of_all.mean[i], mean)
            torch.testing.assert_close(of_all.variance[i], variance)
        assert all(torch.equal(a, b) for a, b in zip(of_all, found[0][3], strict=True))
    # Gradients of the affine parameters are those of each rank's samples; their sum is that of all.
    if w is not None:
        torch.testing.assert_close(sum(own[0] for _, _, own, _ in found), w.grad)
    if b is not None:
        torch.testing.assert_close(sum(own[1] for _, _, own, _ in found), b.grad)


def test_padding_is_normalized_and_counts_neither_forward_nor_backward():
    x = torch.tensor([[0.0], [2.0]], dtype=torch.float64)

    def act(communicator):
        real = communicator.rank == 0
        own = (x if real else torch.full((1, 1), 1e6, dtype=torch.float64)).clone().requires_grad_()
        rows = GroupRows((2,) if real else (1,), real)
        y, moments = normalize(own, None, None, 0.0, rows, communicator)
        y.backward(torch.tensor([[1.0], [0.0]], dtype=torch.float64) if real else torch.zeros_like(y))
        return y.detach().flatten().tolist(), own.grad.flatten().tolist(), moments.values.tolist()

    (y, grad, count), (padded, of_padding, _) = on_ranks(2, act)
    assert (y, count) == ([-1.0, 1.0], [2.0])
    # Two values of one group are always ±1, whatever they are: the gradient is 0.
    assert grad == pytest.approx([0.0, 0.0], abs=1e-12)
    assert padded == [1e6 - 1]
    assert of_padding == [0.0]


def test_statistics_are_of_float64_where_the_input_is_of_float32():
    """Values near 10⁴ with a spread of 1: a mean of squares in float32 would lose the variance."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(500, 1, generator=draw) + 1e4
    y, moments = normalize(x, None, None, 0.0, GroupRows((500,), True), Communicator())
    exact = x.double()
    assert moments.variance.dtype == torch.float64
    assert float(moments.variance) == pytest.approx(float(exact.var(unbiased=False)), rel=1e-12)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y.double(), (exact - exact.mean()) / exact.std(unbiased=False), rtol=0, atol=1e-2)


def test_parameters_of_another_type_get_gradients_of_their_own_type():
    x = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    w = torch.ones(2, requires_grad=True)
    y, _ = normalize(x, w, None, EPS, GroupRows((4,), True), Communicator())
    y.sum().backward()
    assert (y.dtype, x.grad.dtype, w.grad.dtype) == (torch.float64, torch.float64, torch.float32)


def test_without_affine_parameters_the_output_is_not_the_tensor_saved_for_the_gradient():
    x = torch.tensor([[1.0], [4.0], [5.0]], dtype=torch.float64, requires_grad=True)
    y, _ = normalize(x, None, None, EPS, GroupRows((3,), True), Communicator())
    y.mul_(2.0).backward(torch.tensor([[1.0], [0.0], [0.0]], dtype=torch.float64))
    expected = x.detach().clone().requires_grad_()
    (2 * functional.batch_norm(expected, None, None, training=True, eps=EPS))[0].sum().backward()
    torch.testing.assert_close(x.grad, expected.grad)
