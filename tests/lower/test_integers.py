"""Layers that compute in a format of numbers: what numpy and torch compute in that format."""

import numpy as np
import pytest
import torch

import descend
from descend.errors import DataError
from descend.graph.kinds.integers import CheckedIndex, IntegerConstant, IntegerOperator, IntegerReduction, ToFormat

FORMATS = ("int8", "int16", "int32", "int64", "uint8")


def module(kind, *shapes, **fields):
    """A module of one layer."""
    inputs = [descend.Input(data_field=f"x{i}", name=f"x{i}") for i in range(len(shapes))]
    layer = kind(*inputs, name="layer", **fields)
    own = {f"x{i}": shape for i, shape in enumerate(shapes)}
    return descend.Model(0, layers=[*inputs, layer]).to_torch(fields=own, outputs=["layer"]).eval()


def run(kind, *xs, **fields):
    with torch.no_grad():
        return module(kind, *[tuple(x.shape[1:]) for x in xs], **fields)(*xs)


@pytest.mark.parametrize("word", FORMATS)
def test_conversions_wrap_around_and_drop_what_is_behind_the_point(word):
    integers = torch.tensor([[300, -5, 2**31, -(2**40), 127]])
    assert torch.equal(run(ToFormat, integers, format=word), torch.from_numpy(integers.numpy().astype(word)))
    assert run(ToFormat, torch.tensor([[2.9, -2.9, 0.5]]), format="int32").tolist() == [[2, -2, 0]]


def test_narrow_formats_round_become_infinite_and_pass_gradients():
    x = torch.tensor([[70000.0, 1.0001, -7e4, 3e38]])
    assert run(ToFormat, x, format="float16").tolist() == [[float("inf"), 1.0, float("-inf"), float("inf")]]
    assert torch.equal(run(ToFormat, x, format="bfloat16"), x.to(torch.bfloat16).float())
    x = torch.tensor([[0.1, 70000.0]], requires_grad=True)
    module(ToFormat, (2,), format="float16")(x).backward(torch.tensor([[1e-9, 2.0]]))
    assert torch.equal(x.grad, torch.tensor([[1e-9, 2.0]]))


def test_integers_and_truths_become_numbers_of_the_run():
    assert run(ToFormat, torch.tensor([[3, -4]]), format="float").dtype == torch.float32
    assert run(ToFormat, torch.tensor([[True, False]]), format="float").tolist() == [[1.0, 0.0]]
    assert run(ToFormat, torch.tensor([[1.5]], dtype=torch.float64), format="float").dtype == torch.float64


@pytest.mark.parametrize("word", FORMATS)
@pytest.mark.parametrize("operation", ["divide", "remainder", "modulo"])
def test_quotients_are_those_of_numpy(word, operation):
    draw = np.random.default_rng(0)
    bounds = np.iinfo(word)
    a = draw.integers(bounds.min, bounds.max, (4, 50), dtype=word, endpoint=True)
    b = draw.integers(bounds.min, bounds.max, (4, 50), dtype=word, endpoint=True)
    b[:, :20] = draw.integers(1, 5, (4, 20), dtype=word)
    b = np.where(b == 0, 1, b).astype(word)
    if bounds.min:
        a[0, 0], b[0, 0] = bounds.min, -1  # an exception of the processor
    with np.errstate(all="ignore"):
        remainder = np.fmod(a, b)
        want = {"divide": (a - remainder) // b, "remainder": remainder, "modulo": np.mod(a, b)}[operation]
    want[0, 0] = want[0, 0] if not bounds.min else bounds.min if operation == "divide" else 0
    got = run(IntegerOperator, torch.from_numpy(a), torch.from_numpy(b), operation=operation)
    np.testing.assert_array_equal(got.numpy(), want)


def test_powers_have_no_fractions():
    a = torch.tensor([[2, -3, 1, -1, -1, 5, 3]])
    b = torch.tensor([[10, 3, -4, -3, -2, -1, 0]])
    assert run(IntegerOperator, a, b, operation="power").tolist() == [[1024, -27, 1, -1, 1, 0, 1]]


@pytest.mark.parametrize(
    ("operation", "a", "b", "message"),
    [("divide", 3, 0, "divides by 0"), ("modulo", 3, 0, "divides by 0"), ("power", 0, -1, "raises 0 to an exponent")],
)
def test_what_no_integer_is_stops_the_run(operation, a, b, message):
    with pytest.raises(DataError, match=rf"layer 'layer' \({operation}\) {message}"):
        run(IntegerOperator, torch.tensor([[1, a]]), torch.tensor([[1, b]]), operation=operation)


def test_sums_are_exact_and_end_at_the_bounds_of_the_format():
    large = torch.tensor([[2**31 - 1, 7, -3]], dtype=torch.int32)
    assert run(IntegerReduction, large, operation="sum", axes=[0]).tolist() == [[2**31 - 1]]
    assert run(IntegerReduction, -large, operation="sum", axes=[0]).tolist() == [[-(2**31)]]
    assert run(IntegerReduction, large, operation="squares", axes=[0]).dtype == torch.int32
    exact = torch.tensor([[2**53 + 1, 2, 2**53]])
    assert run(IntegerReduction, exact, operation="sum", axes=[0]).tolist() == [[2**54 + 3]]
    assert run(IntegerReduction, torch.tensor([[2**62, 2**62]]), operation="sum", axes=[0]).tolist() == [[2**63 - 1]]


@pytest.mark.parametrize("operation", ["sum", "mean", "product", "magnitudes", "squares", "norm"])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_reductions_are_those_of_numpy(operation, axes):
    x = np.random.default_rng(1).integers(-4, 5, (2, 3, 2, 4))
    over = tuple(axis + 1 for axis in axes)
    want = {
        "sum": x.sum(over),
        "mean": np.trunc(x.mean(over)),
        "product": x.prod(over),
        "magnitudes": np.abs(x).sum(over),
        "squares": (x * x).sum(over),
        "norm": np.trunc(np.sqrt((x * x).sum(over))),
    }[operation]
    got = run(IntegerReduction, torch.from_numpy(x), operation=operation, axes=axes)
    np.testing.assert_array_equal(got.numpy().reshape(want.shape), want)


def test_indices_count_from_the_end_and_those_outside_stop_the_run():
    assert run(CheckedIndex, torch.tensor([[0, -1, 4, -5]]), size=5).tolist() == [[0, 4, 4, 0]]
    assert run(CheckedIndex, torch.tensor([[2.0, -2.0]]), size=5).tolist() == [[2.0, 3.0]]
    for wrong in (5, -6, 2**40):
        with pytest.raises(DataError, match=f"layer 'layer': an index must be from -5 to 4, got {wrong}$"):
            run(CheckedIndex, torch.tensor([[0, wrong]]), size=5)
    with pytest.raises(DataError, match=r"node 'lookup': .* got nan"):
        run(CheckedIndex, torch.tensor([[float("nan")]]), size=5, reader="node 'lookup'")


def test_constants_are_exact_for_every_sample():
    x = descend.Input(data_field="x", name="x")
    constant = IntegerConstant(values=[2**60 + 1, -7], dims=[2], name="c")
    y = descend.Add(descend.Identity(ToFormat(x, format="int64")), constant, name="y")
    got = descend.Model(0, layers=[y]).to_torch(fields={"x": (2,)}, outputs=["y"])(torch.tensor([[1, 1], [2, 2]]))
    assert got.tolist() == [[2**60 + 2, -6], [2**60 + 3, -5]]
