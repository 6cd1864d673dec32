"""Every operator against NumPy or SciPy, its gradient against finite differences, and the format's own rules."""

import math

import numpy as np
import pytest
import scipy.special as special
import torch

import descend
from descend.graph import ops
from descend.lower.operators import function_of
from tests.lower.single import Single, f64, random

nan, inf = math.nan, math.inf


def logical(x):
    return (x != 0) & ~np.isnan(x)


# The operator, the expression, the range that its inputs are drawn from, and whether the gradient is that of calculus.
UNARY = [
    (ops.Abs(), np.abs, (-2, 2), True),
    (ops.Negative(), np.negative, (-2, 2), True),
    (ops.Reciprocal(), np.reciprocal, (0.5, 2), True),
    (ops.SafeReciprocal(), np.reciprocal, (0.5, 2), True),
    (ops.Square(), np.square, (-2, 2), True),
    (ops.Sqrt(), np.sqrt, (0.5, 2), True),
    (ops.Rsqrt(), lambda x: x**-0.5, (0.5, 2), True),
    (ops.Exp(), np.exp, (-2, 2), True),
    (ops.Expm1(), np.expm1, (-2, 2), True),
    (ops.Log(), np.log, (0.5, 2), True),
    (ops.Log1p(), np.log1p, (-0.5, 2), True),
    (ops.Cos(), np.cos, (-2, 2), True),
    (ops.Sin(), np.sin, (-2, 2), True),
    (ops.Tan(), np.tan, (-1, 1), True),
    (ops.Acos(), np.arccos, (-0.9, 0.9), True),
    (ops.Asin(), np.arcsin, (-0.9, 0.9), True),
    (ops.Atan(), np.arctan, (-2, 2), True),
    (ops.Cosh(), np.cosh, (-2, 2), True),
    (ops.Sinh(), np.sinh, (-2, 2), True),
    (ops.Tanh(), np.tanh, (-2, 2), True),
    (ops.Acosh(), np.arccosh, (1.1, 3), True),
    (ops.Asinh(), np.arcsinh, (-2, 2), True),
    (ops.Atanh(), np.arctanh, (-0.9, 0.9), True),
    (ops.Erf(), special.erf, (-2, 2), True),
    (ops.ErfInv(), special.erfinv, (-0.9, 0.9), True),
    (
        ops.Gelu(),
        lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        (-2, 2),
        True,
    ),
    (ops.Sigmoid(), special.expit, (-2, 2), True),
    (ops.LogSigmoid(), special.log_expit, (-2, 2), True),
    (
        ops.Selu(),
        lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
        (-2, 2),
        True,
    ),
    (ops.Softplus(), lambda x: np.log1p(np.exp(x)), (-2, 2), True),
    (ops.Softsign(), lambda x: x / (1 + np.abs(x)), (-2, 2), True),
    (ops.LogSoftmax(), lambda x: x - special.logsumexp(x, axis=1, keepdims=True), (-2, 2), True),
    (ops.Clamp(min=-1, max=0.5), lambda x: np.clip(x, -1, 0.5), (-2, 2), True),
    (ops.AddConstant(constant=3), lambda x: x + 3, (-2, 2), True),
    (ops.Scale(constant=3), lambda x: x * 3, (-2, 2), True),
    (ops.SubtractConstant(constant=3), lambda x: x - 3, (-2, 2), True),
    (ops.ConstantSubtract(constant=3), lambda x: 3 - x, (-2, 2), True),
    (ops.MaxConstant(constant=0.25), lambda x: np.maximum(x, 0.25), (-2, 2), True),
    (ops.MinConstant(constant=0.25), lambda x: np.minimum(x, 0.25), (-2, 2), True),
    (ops.LogicalNot(), lambda x: ~logical(x), (-2, 2), False),
    (ops.Sign(), np.sign, (-2, 2), False),
    (ops.Round(), np.round, (-2, 2), False),
    (ops.Ceil(), np.ceil, (-2, 2), False),
    (ops.Floor(), np.floor, (-2, 2), False),
    (ops.EqualConstant(constant=1), lambda x: x == 1, (-2, 2), False),
    (ops.NotEqualConstant(constant=1), lambda x: x != 1, (-2, 2), False),
    (ops.LessConstant(constant=1), lambda x: x < 1, (-2, 2), False),
    (ops.LessEqualConstant(constant=1), lambda x: x <= 1, (-2, 2), False),
    (ops.GreaterConstant(constant=1), lambda x: x > 1, (-2, 2), False),
    (ops.GreaterEqualConstant(constant=1), lambda x: x >= 1, (-2, 2), False),
]
BINARY = [
    (ops.Add(), np.add, (-2, 2), True),
    (ops.Subtract(), np.subtract, (-2, 2), True),
    (ops.Multiply(), np.multiply, (-2, 2), True),
    (ops.Divide(), np.divide, (0.5, 2), True),
    (ops.SafeDivide(), np.divide, (0.5, 2), True),
    (ops.Mod(), np.fmod, (0.5, 2), True),
    (ops.Pow(), np.power, (0.5, 2), True),
    (ops.SquaredDifference(), lambda a, b: (a - b) ** 2, (-2, 2), True),
    (ops.Max(), np.maximum, (-2, 2), True),
    (ops.Min(), np.minimum, (-2, 2), True),
    (ops.BinaryCrossEntropy(), lambda p, y: -y * np.log(p) - (1 - y) * np.log(1 - p), (0.1, 0.9), True),
    (
        ops.SigmoidBinaryCrossEntropy(),
        lambda x, y: -y * np.log(special.expit(x)) - (1 - y) * np.log(special.expit(-x)),
        (0.1, 0.9),
        True,
    ),
    (ops.Equal(), np.equal, (-2, 2), False),
    (ops.NotEqual(), np.not_equal, (-2, 2), False),
    (ops.Less(), np.less, (-2, 2), False),
    (ops.LessEqual(), np.less_equal, (-2, 2), False),
    (ops.Greater(), np.greater, (-2, 2), False),
    (ops.GreaterEqual(), np.greater_equal, (-2, 2), False),
    (ops.LogicalAnd(), lambda a, b: logical(a) & logical(b), (-2, 2), False),
    (ops.LogicalOr(), lambda a, b: logical(a) | logical(b), (-2, 2), False),
    (ops.LogicalXor(), lambda a, b: logical(a) ^ logical(b), (-2, 2), False),
    (ops.BooleanAccuracy(), lambda p, y: (p >= 0.5) == (y >= 0.5), (0, 1), False),
    (ops.BooleanFalseNegative(), lambda p, y: (p < 0.5) & (y >= 0.5), (0, 1), False),
    (ops.BooleanFalsePositive(), lambda p, y: (p >= 0.5) & (y < 0.5), (0, 1), False),
]
TERNARY = [(ops.Select(value=0.5, epsilon=0.7), lambda c, a, b: np.where(abs(c - 0.5) < 0.7, a, b), (-2, 2), True)]
ALL = UNARY + BINARY + TERNARY
NAMES = [type(row[0]).__name__ for row in ALL]


def drawn(op, bounds):
    return [random(3, 4, seed=i + 1, low=bounds[0], high=bounds[1]) for i in range(op.count_inputs())]


def test_the_table_has_every_operator():
    assert sorted(NAMES) == sorted(name for name in ops.__all__ if name != "Operator")


@pytest.mark.parametrize(("op", "expression", "bounds", "smooth"), ALL, ids=NAMES)
def test_an_operator_is_its_expression(op, expression, bounds, smooth):
    xs = drawn(op, bounds)
    y = function_of(op)(*xs)
    assert y.dtype == torch.float64
    np.testing.assert_allclose(y.detach(), expression(*[x.detach().numpy() for x in xs]), rtol=1e-12, atol=1e-14)
    if smooth:
        assert torch.autograd.gradcheck(function_of(op), xs)
    elif y.requires_grad:
        y.sum().backward()
        assert all(x.grad.eq(0).all() for x in xs)


@pytest.mark.parametrize(("op", "expression", "bounds", "smooth"), ALL, ids=NAMES)
def test_an_operator_is_a_layer_of_its_own_and_part_of_a_chain(op, expression, bounds, smooth):
    xs = drawn(op, bounds)
    want = function_of(op)(*xs)
    shapes = [(4,)] * len(xs)
    chain = Single(lambda *s: descend.OperatorLayer(*s, ops=[op, ops.Negative()]), *shapes)
    torch.testing.assert_close(chain(*xs), -want, rtol=0, atol=0)
    if isinstance(op, ops.LogSoftmax):  # a layer without operators has this name
        return
    own = {name: getattr(op, name) for name in type(op).__dataclass_fields__ if name not in BASE}
    layer = Single(lambda *s: getattr(descend, type(op).__name__)(*s, **own), *shapes)
    torch.testing.assert_close(layer(*xs), want, rtol=0, atol=0)


BASE = ops.Operator.__dataclass_fields__

# The operator, its inputs, its values there, and the gradient of their sum for each input. All by the format's rules.
EDGES = [
    (ops.Abs(), [f64(0.0)], [0], [[0]]),
    (ops.LogicalNot(), [f64(0, -0.0, nan, inf, 1e-300)], [1, 1, 1, 0, 0], None),
    (ops.LogicalAnd(), [f64(1, 1, nan), f64(1, 0, 1)], [1, 0, 0], None),
    (ops.LogicalOr(), [f64(0, 0, nan), f64(0, -2, nan)], [0, 1, 0], None),
    (ops.LogicalXor(), [f64(1, 1, nan), f64(1, 0, 1)], [0, 1, 1], None),
    (ops.Round(), [f64(0.5, 1.5, -0.5, 2.4)], [0, 2, 0, 2], [[0, 0, 0, 0]]),
    (ops.SafeReciprocal(), [f64(0, nan, 1e-310, 2)], [0, 0, 0, 0.5], [[0, 0, 0, -0.25]]),
    (ops.SafeDivide(), [f64(1, 0, nan, 6), f64(0, 0, 1, 3)], [0, 0, 0, 2], [[0, 0, 0, 1 / 3], [0, 0, 0, -2 / 3]]),
    (ops.Mod(), [f64(-5, 5, 7), f64(3, -3, 2)], [-2, 2, 1], [[1, 1, 1], [2, 2, -3]]),
    (ops.Max(), [f64(1, 2, 3), f64(1, 1, 4)], [1, 2, 4], [[0.5, 1, 0], [0.5, 0, 1]]),
    (ops.Min(), [f64(1, 2, 3), f64(1, 1, 4)], [1, 1, 3], [[0.5, 0, 1], [0.5, 1, 0]]),
    (ops.MaxConstant(constant=1), [f64(1, 0, 2)], [1, 1, 2], [[0.5, 0, 1]]),
    (ops.MinConstant(constant=1), [f64(1, 0, 2)], [1, 0, 1], [[0.5, 1, 0]]),
    (ops.Clamp(min=0, max=1), [f64(-1, 0, 0.5, 1, 2)], [0, 0, 0.5, 1, 1], [[0, 0, 1, 0, 0]]),
    (ops.Select(), [f64(0, 1e-6, 1e-5, 1), f64(1, 2, 3, 4), f64(5, 6, 7, 8)], [1, 2, 7, 8],
     [[0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1]]),
    (ops.Select(constant_if_true=True, value_if_true=9), [f64(0, 1), f64(5, 6)], [9, 6], [[0, 0], [0, 1]]),
    (ops.Select(value=1, constant_if_false=True, value_if_false=-1), [f64(0, 1), f64(5, 6)], [-1, 6], [[0, 0], [0, 1]]),
    (ops.Select(constant_if_true=True, constant_if_false=True, value_if_true=2), [f64(0, 1)], [2, 0], None),
    (ops.Sigmoid(), [f64(-1000, 1000)], [2**-52, 1 - 2**-52], [[0, 0]]),
    (ops.Softplus(), [f64(-1000, 1000)], [0, 1000], [[0, 1]]),
    (ops.LogSigmoid(), [f64(-1000, 1000)], [-1000, 0], [[1, 0]]),
    (ops.BinaryCrossEntropy(), [f64(0, 1, 0.5), f64(0, 1, 1)], [0, 0, math.log(2)],
     [[1, -1, -2], [0, 0, 0]]),
    (ops.SigmoidBinaryCrossEntropy(), [f64(1000, -1000, 0), f64(1, 0, 2)], [0, 0, math.log(2)],
     [[0, 0, -0.5], [-1000, 1000, 0]]),
    (ops.BooleanAccuracy(), [f64(0.5, 0.5, 0.4), f64(1, 0.4, 0)], [1, 0, 1], None),
    (ops.Equal(), [f64(nan, 0.0), f64(nan, -0.0)], [0, 1], None),
]  # fmt: skip


@pytest.mark.parametrize(("op", "xs", "values", "gradients"), EDGES, ids=[type(row[0]).__name__ for row in EDGES])
def test_edges_have_the_formats_values_and_gradients(op, xs, values, gradients):
    xs = [x.clone().requires_grad_() for x in xs]
    y = function_of(op)(*xs)
    assert y.tolist() == pytest.approx(values, rel=1e-12, abs=1e-300)
    if gradients is None:
        assert not y.requires_grad
        return
    y.sum().backward()
    for x, want in zip(xs, gradients, strict=True):
        got = [0.0] * len(want) if x.grad is None else x.grad.tolist()
        assert got == pytest.approx(want, rel=1e-12, abs=1e-300)


def test_the_gradient_of_a_reciprocal_is_zero_where_none_comes_in():
    x = f64(0.0, 2.0).requires_grad_()
    function_of(ops.Reciprocal())(x).backward(f64(0.0, 1.0))
    assert x.grad.tolist() == [0.0, -0.25]


def test_the_gradient_of_acosh_rises():
    """LBANN has the wrong sign here."""
    x = f64(2.0).requires_grad_()
    function_of(ops.Acosh())(x).sum().backward()
    assert x.grad.item() == pytest.approx(1 / math.sqrt(3), rel=1e-12)


@pytest.mark.parametrize("op", [ops.Clamp(min=0, max=1), ops.SafeReciprocal(), ops.Mod()], ids=repr)
def test_rules_of_our_own_work_under_vmap(op):
    xs = [random(5, 3, seed=i, low=0.2) for i in range(op.count_inputs())]
    one = lambda *x: function_of(op)(*x).sum()  # noqa: E731
    got = torch.vmap(torch.func.grad(one))(*xs)
    function_of(op)(*xs).sum().backward()
    torch.testing.assert_close(got, xs[0].grad)


WIDE_RANGE = (-80.0, -15.0, -8.0, -1.0, -1e-8, 0.0, 1e-8, 1.0, 8.0, 15.0, 80.0)


@pytest.mark.parametrize(
    ("op", "value", "gradient"),
    [
        (ops.Expm1(), np.expm1, np.exp),
        (ops.Softsign(), lambda x: x / (1 + np.abs(x)), lambda x: (1 + np.abs(x)) ** -2),
    ],
    ids=["Expm1", "Softsign"],
)
def test_small_gradients_keep_their_digits_in_float32(op, value, gradient):
    x = torch.tensor(WIDE_RANGE, requires_grad=True)
    wide = x.detach().double().numpy()
    y = function_of(op)(x)
    np.testing.assert_allclose(y.detach(), value(wide), rtol=1e-6)
    y.sum().backward()
    np.testing.assert_allclose(x.grad, gradient(wide), rtol=1e-6)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_the_loss_of_a_sure_and_right_prediction_keeps_its_digits_in_float32(label):
    """The loss of a label of 1 is log(1 + e⁻ˣ), that of 0 log(1 + eˣ)."""
    x = torch.tensor(WIDE_RANGE)
    found = function_of(ops.SigmoidBinaryCrossEntropy())(x, torch.full_like(x, label))
    np.testing.assert_allclose(found, np.logaddexp(0, (1 - 2 * label) * x.double().numpy()), rtol=1e-6)
