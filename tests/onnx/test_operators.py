"""Operators as ONNX nodes, run by onnxruntime, against the modules that they are written from."""

import numpy as np

import descend
from tests.onnx.exported import agree, same

ops = descend.ops
NAMES = [name for name in ops.__all__ if name not in ("Operator", "ErfInv")]
UNARY = [name for name in NAMES if getattr(ops, name)().count_inputs() == 1]
BINARY = [name for name in NAMES if getattr(ops, name)().count_inputs() == 2]
FIELDS = {"Clamp": {"min": -0.5, "max": 0.75}}
FIELDS |= {name: {"constant": 0.75} for name in UNARY if name.endswith("Constant") or name == "ConstantSubtract"}
FIELDS["Scale"] = {"constant": 0.75}
RANGES = {
    "Acosh": (1.1, 3.0),
    "Log": (0.1, 3.0),
    "Sqrt": (0.1, 3.0),
    "Rsqrt": (0.1, 3.0),
    "Log1p": (-0.5, 2.0),
    "Pow": (0.2, 2.0),
}
RANGES |= dict.fromkeys(("Acos", "Asin", "Atanh", "BinaryCrossEntropy", "SigmoidBinaryCrossEntropy"), (0.1, 0.9))


def all_of(names, shapes):
    """Operators of one domain go into one file."""
    domains = {name: RANGES.get(name, (-2.0, 2.0)) for name in names}
    for low, high in set(domains.values()):
        makes = [
            lambda *xs, name=name: descend.OperatorLayer(
                *xs, ops=[getattr(ops, name)(**FIELDS.get(name, {}))], name=name
            )
            for name in names
            if domains[name] == (low, high)
        ]
        agree(makes, *shapes, low=low, high=high)


def test_operators_of_one_tensor():
    assert len(UNARY) > 40
    all_of(UNARY, [(3, 4)])


def test_operators_of_two_tensors():
    assert len(BINARY) > 20
    all_of(BINARY, [(3, 4), (3, 4)])


def test_one_operator_after_the_other():
    agree(lambda x: descend.OperatorLayer(x, ops=[ops.Square(), ops.AddConstant(constant=1.0), ops.Log()]), (3, 4))


def test_select_takes_constants_and_tensors():
    for true in (True, False):
        for false in (True, False):
            fields = {"constant_if_true": true, "constant_if_false": false}
            fields |= {"value_if_true": 2.0, "value_if_false": -3.0}

            def make(predicate, *branches, fields=fields):
                return descend.Select(descend.Round(predicate), *branches, value=1.0, **fields)

            agree(make, *[(3, 4)] * (1 + (not true) + (not false)))


def test_exact_cases():
    """Zeros, ties and divisions by zero, which drawn numbers do not meet."""
    x = np.array([[0.0, 0.0, 1.0, 1.0, -1.0, 0.5]], np.float32)
    y = np.array([[0.0, 1.0, 0.0, 1.0, 0.0, 0.5]], np.float32)
    two = ["LogicalAnd", "LogicalOr", "LogicalXor", "SafeDivide", "BooleanAccuracy"]
    two += ["Equal", "NotEqual", "LessEqual", "GreaterEqual"]
    one = ["LogicalNot", "SafeReciprocal", "Sign", "Round"]
    same(
        [lambda a, b, name=name: descend.OperatorLayer(a, b, ops=[getattr(ops, name)()], name=name) for name in two],
        x,
        y,
        tolerance=0,
    )
    same(
        [lambda a, name=name: descend.OperatorLayer(a, ops=[getattr(ops, name)()], name=name) for name in one],
        x,
        tolerance=0,
    )
