"""A trace is its function, whatever is left out of it and wherever its results are written."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from descend.study.running.traced import traced

UNARY = [torch.exp, torch.neg, torch.relu, lambda x: x.t(), lambda x: x.reshape(3, 3), lambda x: x[:, :1], torch.clone]
BINARY = [torch.add, torch.sub, torch.mul, torch.mm, lambda x, y: x + y.split(1, 1)[1]]


def nine(x):
    """Any value in the shape of all of them."""
    return x if x.shape == (3, 3) else x.expand(3, 3)


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=12))
def test_random_functions_give_the_same_bits(program):
    """Values that are read later, views of them, and the inputs themselves are left alone."""

    def function(*given):
        values = list(given)
        for which, first, second in program:
            x, y = nine(values[first % len(values)]), nine(values[second % len(values)])
            values.append(UNARY[which](x) if which < 7 else BINARY[which - 7](x, y))
        return values[len(given) + len(program) // 2 :]

    torch.manual_seed(0)
    inputs = [0.3 * torch.randn(3, 3, dtype=torch.float64) for _ in range(2)]
    kept = [x.clone() for x in inputs]
    wanted = function(*inputs)
    run = traced(function, *inputs)
    spending = traced(function, *inputs, spent=2)(*[x.clone() for x in inputs])
    for one, other in zip(spending, wanted, strict=True):
        assert torch.equal(one, other) or not other.isfinite().all()
    for _ in range(2):  # what is run again has the same inputs
        for one, other in zip(run(*inputs), wanted, strict=True):
            assert torch.equal(one, other) or not other.isfinite().all()
    assert all(torch.equal(x, other) for x, other in zip(inputs, kept, strict=True))


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=8))
def test_what_is_fused_is_the_same_up_to_rounding(program):
    """Sums and products, over each other and over the inputs, which may be written over."""
    steps = [
        lambda x, y: x + 0.9 * y,
        lambda x, y: x * 0.5 - y,
        lambda x, y: x - x * y,
        lambda x, y: x * y + y,
        lambda x, y: x - 0.1 * y,
        lambda x, y: x[:, :1] * y - x,
    ]

    def function(*given):
        values = list(given)
        for which, first, second in program:
            values.append(steps[which](values[first % len(values)], values[second % len(values)]))
        return values[-2:]

    torch.manual_seed(0)
    inputs = [0.3 * torch.randn(3, 5, dtype=torch.float64) for _ in range(3)]
    wanted = function(*inputs)
    run = traced(function, *inputs, fused=True)
    for _ in range(2):
        for one, other in zip(run(*inputs), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    spending = traced(function, *inputs, spent=2, fused=True)(*[x.clone() for x in inputs])
    for one, other in zip(spending, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_narrow_products_and_what_is_done_with_them():
    """The transpose is computed, and views and reductions of it are those of the product."""

    def function(x, y):
        z = torch.bmm(x, y)
        return [
            z,
            z.reshape(2, -1),
            z.argmax(2),
            z.flatten(0, 1).argmax(0),
            z.sum(1),
            torch.log_softmax(z, 2),
            z.mT @ x,
        ]

    for columns in (1, 10, 15, 16):
        x, y = torch.randn(2, 20, 7, dtype=torch.float64), torch.randn(2, 7, columns, dtype=torch.float64)
        for pair in ((x, y), (x.mT.contiguous().mT, y.mT.contiguous().mT)):
            for one, other in zip(traced(function, *pair)(*pair), function(*pair), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_without_an_interpreter_the_operations_are_called_one_by_one(monkeypatch):
    def refusing(*given, **options):
        raise RuntimeError("not here")

    monkeypatch.setattr(torch.jit, "trace", refusing)
    (found,) = traced(lambda x: [x * 2 + 1], torch.ones(3))(torch.ones(3))
    assert found.tolist() == [3.0, 3.0, 3.0]


def test_results_that_share_memory_are_not_written_over_when_they_come_back():
    """As where a rule keeps the weights, or the number of the update, in its state."""

    def function(p, kept, same, number):
        new = p * 2 + kept
        return [new * number, new + same, new + same + 0 * number, number][:3]

    def keeping(p, kept, number):
        new = p + kept * number
        return [new, new, number]

    def constant(p, kept, number):
        return [p * number + kept, number]

    for made, count in ((function, 3), (keeping, 2), (constant, 2)):
        numbers = torch.full((4, 3), 3.0)
        given = [torch.ones(4, 3) for _ in range(count)]
        wanted = [x.clone() for x in given]
        run = traced(made, *given, numbers, spent=count)
        for _ in range(3):
            given, wanted = run(*given, numbers)[:count], made(*wanted, torch.full((4, 3), 3.0))[:count]
        for one, other in zip(given, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
        assert (numbers == 3).all()


def test_what_writes_by_itself_is_left_as_it_is():
    def function(x):
        mean = torch.zeros(4)
        y = torch.native_batch_norm(x, None, None, mean, torch.ones(4), True, 0.5, 1e-5)[0]
        return [y.exp(), mean.exp(), mean.exp()]

    x = torch.randn(6, 4)
    for one, other in zip(traced(function, x)(x), function(x), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_softmax_agrees_with_that_of_torch():
    x = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)

    def function(x):
        with torch.enable_grad():
            y = torch.log_softmax(x, 1)
            return [y, *torch.autograd.grad((y * torch.arange(7)).sum(), x)]

    for one, other in zip(traced(function, x)(x), function(x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    wide = torch.tensor([[1000.0, 0.0, float("-inf")]])
    (found,) = traced(lambda x: [torch.log_softmax(x, 1)], wide)(wide)
    assert found.tolist() == [[0.0, -1000.0, float("-inf")]]


@pytest.mark.parametrize("shape", [(3, 1, 4), (3, 4, 1), (3, 2, 2)])
def test_one_times_a_part_of_a_row_is_no_operation(shape):
    """As `torch.addmm` scales a bias by 1. Its view lies as the part does, and what is added to it by itself."""

    def function(x, y):
        scaled = x[:, 1:5] * 1
        return [(scaled.view(shape) + y).exp()]

    x, y = torch.randn(3, 7), torch.randn(shape)
    found = traced(function, x, y)(x, y)
    assert torch.equal(found[0], function(x, y)[0])


def test_one_times_what_cannot_be_viewed_is_computed():
    def function(x):
        scaled = torch.ops.aten.mul.Scalar(x.t(), 1).contiguous()
        return [scaled.view(-1) + 1, torch.ops.aten.mul.Scalar(x[:, :2], 1).contiguous().view(-1)]

    x = torch.randn(3, 4)
    for ours, theirs in zip(traced(function, x)(x), function(x), strict=True):
        assert torch.equal(ours, theirs)
